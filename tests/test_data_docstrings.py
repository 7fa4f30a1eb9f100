"""The embedded corpus and its task: real, the same each time, and without one text of the validation and test files."""

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data import docstrings
from data.config import Corpus, Rows, Task, Tokenizer
from data.docstrings import CLASSES, PACKAGES, PER_CLASS, build, copy_key, docstring_task, parse_docstrings
from data.prepare import prepare
from data.store import open_store
from data.tasks import load_task

pytestmark = pytest.mark.usefixtures("ray_4_cpus")
SMALL = {"packages": ("fsspec", "jinja2", "joblib"), "classes": ("fsspec", "jinja2")}


def quiet(text: str, fraction: float | None) -> None:
    assert fraction is None or 0 <= fraction <= 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the whole embedded corpus, built once: half a minute of two cores."""
    folder = tmp_path_factory.mktemp("cache")
    build(folder, quiet)
    return folder


def read_corpus(folder: Path) -> list[dict[str, str]]:
    return [row for path in sorted(folder.glob("corpus-*.parquet")) for row in pq.read_table(path).to_pylist()]


def site_packages(package: str) -> Path:
    import importlib.util

    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent.parent


def test_corpus_is_about_20_mb_of_distinct_text_that_no_package_dominates(cache: Path):
    rows = read_corpus(build(cache, quiet))
    num_bytes: dict[str, int] = defaultdict(int)
    for row in rows:
        num_bytes[row["file"].split("/")[0]] += len(row["text"].encode())
    assert set(num_bytes) == set(PACKAGES)
    assert 15e6 < sum(num_bytes.values()) < 25e6
    assert max(num_bytes.values()) < 0.12 * sum(num_bytes.values())
    assert min(len(row["text"]) for row in rows) >= 80
    assert len({row["text"] for row in rows}) > 0.99 * len(rows)


def test_no_file_and_no_text_of_validation_and_test_files_is_pretrained_on(cache: Path):
    folder = build(cache, quiet)
    rows = read_corpus(folder)
    texts, files = {row["text"] for row in rows}, {row["file"] for row in rows}
    for split in ("validation", "test"):
        held = set(pq.read_table(folder / f"task-{split}.parquet")["file"].to_pylist())
        assert held and not held & files
        for file in held:
            for text in parse_docstrings((site_packages(file.split("/")[0]) / file).read_bytes()):
                assert text not in texts, (file, text[:80])


def test_splits_share_no_file_and_no_near_copy_and_are_balanced(cache: Path):
    tables = {split: pq.read_table(path) for split, path in docstring_task(cache, quiet).items()}
    files = {split: set(table["file"].to_pylist()) for split, table in tables.items()}
    keys = {split: set(map(copy_key, table["text"].to_pylist())) for split, table in tables.items()}
    texts = {split: set(table["text"].to_pylist()) for split, table in tables.items()}
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not files[one] & files[other] and not texts[one] & texts[other]
        assert len(keys[one] & keys[other]) < 0.01 * len(keys[other])  # names were taken out since copies were told
    for split, table in tables.items():
        assert Counter(table["label"].to_pylist()) == {package: PER_CLASS[split] for package in CLASSES}
    for split in ("validation", "test"):
        assert max(Counter(tables[split]["file"].to_pylist()).values()) <= docstrings.PER_FILE


def test_names_of_packages_are_gone_from_the_texts(cache: Path):
    names = ("torch", "pandas", "sympy", "scipy", "networkx", "matplotlib", "transformers", " pd.", " ray ", "@ray.")
    for path in docstring_task(cache, quiet).values():
        for text in pq.read_table(path)["text"].to_pylist():
            assert not any(name in text.lower() for name in names), text


def test_built_in_task_loads_by_its_name(cache: Path):
    task = load_task(Task(train_size=2000), "classification", seed=0, cache=cache, progress=quiet)
    assert task.labels == sorted(CLASSES) and task.test is not None
    assert (len(task.train.texts), len(task.validation.texts), len(task.test.texts)) == (2000, 800, 800)
    assert Counter(task.train.targets).most_common()[-1][1] > 150


def test_built_corpus_is_found_again_and_built_equal_elsewhere(tmp_path: Path):
    folders = [build(tmp_path / name, quiet, **SMALL) for name in "ab"]
    names = [path.name for path in sorted(folders[0].glob("*.parquet"))]
    assert names == ["corpus-fsspec.parquet", "corpus-jinja2.parquet", "corpus-joblib.parquet"] + [
        f"task-{split}.parquet" for split in ("test", "train", "validation")
    ]
    for name in names:
        assert pq.read_table(folders[0] / name).equals(pq.read_table(folders[1] / name)), name
    stamp = folders[0].stat().st_mtime_ns
    assert build(tmp_path / "a", quiet, **SMALL) == folders[0] and folders[0].stat().st_mtime_ns == stamp


def test_source_docstrings_is_prepared_like_files(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(docstrings, "build", partial(build, **SMALL))
    store = prepare(Corpus(), Tokenizer(vocab_size=1000), Rows(), cache, quiet)
    corpus = read_corpus(build(cache, quiet, **SMALL))
    assert store.manifest["documents_read"] == len(corpus) > 300
    assert open_store(store.path) == store


def test_parse_finds_docstrings_of_modules_classes_and_functions_at_any_depth():
    long = "It takes the words of a sentence and gives them back in the order in which they were said, one by one."
    source = f'''
"""Module. {long}"""
if True:
    class A:
        """Class. {long}"""
        async def method(self):
            """Method. {long}"""
            def inner():
                """Inner. {long}"""
        def short(self):
            """Too short."""
        def table(self):
            """{"1.0 | 2.0 | " * 20}"""
x = """No docstring. {long}"""
'''
    assert [text.split(".")[0] for text in parse_docstrings(source.encode())] == ["Module", "Class", "Method", "Inner"]
    assert list(parse_docstrings(b'"""broken""" ( """')) == []


def test_near_copies_share_a_key_and_different_texts_do_not():
    first = "Instantiate a BertConfig from `bert_base` and hand it to the model that will be trained on corpora (v1.2)."
    second = first.replace("BertConfig", "RobertaConfig").replace("bert_base", "roberta").replace("1.2", "3.4")
    assert copy_key(first) == copy_key(second)
    assert copy_key(first) != copy_key(first.replace("model", "tokenizer"))
