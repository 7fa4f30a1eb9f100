"""The embedded corpus and the built-in task: docstrings of installed, pinned packages.

In: package names and a cache folder. Out: Parquet files of docstrings to pretrain on, one per package, and the splits
of a classification task (which of 8 packages is this text from?) whose validation and test files, and texts like
theirs, stand in no other part. Sources are parsed with `ast`, never imported; Ray Data parses packages side by side.
"""

import ast
import gc
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.storage import alone, fetch
from data.store import MANIFEST, fresh_folder

FORMAT = 1  # of what is built here; a change builds it anew
# A committed list of pinned requirements, not all that is installed: another pip install does not change the corpus.
PACKAGES = (
    "aiohttp", "deepspeed", "fontTools", "fsspec", "huggingface_hub", "jinja2", "joblib", "matplotlib", "mpmath",
    "networkx", "numpy", "pandas", "pyarrow", "pydantic", "pygments", "ray", "scipy", "sklearn", "sympy", "torch",
    "transformers",
)  # fmt: skip
DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # where it is not called as it is imported
CLASSES = ("matplotlib", "networkx", "pandas", "ray", "scipy", "sympy", "torch", "transformers")
PACKAGE_BYTES = 2_000_000  # of text from one package: about 20 MB over all, and no package drowns the others
SHORTEST_CHARACTERS = 80  # "Return the name." teaches nothing
LEAST_LETTERS = 0.65  # of the characters, white space counted: below it is a table or code
KEY_WORDS = 12  # docstrings with these first words in common are taken for copies
PER_CLASS = {"train": 500, "validation": 100, "test": 100}  # examples of one package
HELD = ("test", "validation")  # splits whose source files are kept out of the corpus
PER_FILE = 10  # examples of one file in those splits: a score over few files would tell of the files
HELD_FILES = 0.2  # of a package's files, at most, go to each of those splits
SPARE = 1.3  # so many times PER_CLASS are read for them: some turn out too short or are copies
HEAD_CHARACTERS = 1000  # of a docstring that are looked at to judge it
TASK_CHARACTERS = 1000  # of a text: 64 to 128 tokens are used of it
SKIPPED_FOLDERS = {"tests", "test", "testing", "__pycache__", "_vendor", "vendor", "thirdparty_files"}
# Names that give the answer away: long ones wherever they stand, short ones only as words of their own.
_GIVEAWAYS = re.compile(
    r"(?i:pytorch|torch|transformers|huggingface|hugging face|matplotlib|pyplot|networkx|pandas|scipy|sympy)"
    r"|(?<![A-Za-z])(?i:ray|pd|nx|plt|mpl|np|tf|hf)(?![A-Za-z])|(?<![A-Za-z])Ray(?=[A-Z])"
)
_NO_LETTER = re.compile(r"[^A-Za-z\s]+")
# Names of things, which copies of a docstring differ in: A_b, AbCd, `x`, x.y, 3.
_NAME = re.compile(r"`[^`]*`|\S*[A-Za-z0-9)][_./:0-9]\S*|\b[A-Za-z]+[A-Z]\w*|[^A-Za-z\s]+")


class Docstring(NamedTuple):
    """A docstring, where it stands, what its copies share, and its file's split ("train" for all but HELD)."""

    text: str
    package: str
    file: str
    split: str
    copy_key: str


def key(packages: Sequence[str] = PACKAGES, classes: Sequence[str] = CLASSES) -> str:
    """Fingerprint of the corpus: the list, the versions (builds for CPU and CUDA are equal) and our format."""
    versions = [(package, _version(package)) for package in packages]
    return hashlib.sha256(json.dumps([FORMAT, versions, list(classes)]).encode()).hexdigest()[:16]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(package, package)).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def build(
    cache: Path,
    progress: Callable[[str, float | None], None],
    packages: Sequence[str] = PACKAGES,
    classes: Sequence[str] = CLASSES,
    run: str = "cloze",
) -> Path:
    """Build corpus-<package>.parquet (text, file) and task-<split>.parquet (text, label, file), or find them built.

    Returns their folder, `cache`/docstrings-<key>. Ray must have been started if they are not built yet; its execution
    is named after `run`.
    """
    target = Path(cache).absolute() / f"docstrings-{key(packages, classes)}"
    with alone(target):
        return _build(target, progress, packages, classes, run)


def _build(
    target: Path,
    progress: Callable[[str, float | None], None],
    packages: Sequence[str],
    classes: Sequence[str],
    run: str,
) -> Path:
    fetch(target)
    if (target / MANIFEST).is_file():
        return target
    shutil.rmtree(target, ignore_errors=True)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with fresh_folder(target) as part:
        found = _read_packages(packages, classes, progress, run)
        corpus, task = _divide(found, classes)
        for package, docstrings in corpus.items():
            columns = {"text": [one.text for one in docstrings], "file": [one.file for one in docstrings]}
            pq.write_table(pa.table(columns), part / f"corpus-{package}.parquet", compression="zstd")
        for split in PER_CLASS:
            columns = {
                "text": [_hide_names(one.text) for one in task[split]],
                "label": [one.package for one in task[split]],
                "file": [one.file for one in task[split]],
            }
            schema = pa.schema([(name, pa.string()) for name in columns])
            pq.write_table(pa.table(columns, schema), part / f"task-{split}.parquet")
        (part / MANIFEST).write_text(json.dumps({"packages": list(packages), "classes": list(classes)}) + "\n")
    return target


def docstring_task(cache: Path, progress: Callable[[str, float | None], None], **choice: Any) -> dict[str, Path]:
    """Files of the built-in task by split: Parquet with text and label. `choice` is passed to `build`."""
    folder = build(cache, progress, **choice)
    return {split: folder / f"task-{split}.parquet" for split in PER_CLASS}


def _read_packages(
    packages: Sequence[str], classes: Sequence[str], progress: Callable[[str, float | None], None], run: str
) -> list[Docstring]:
    """Docstrings of all packages, each package's in its own order, packages in the order of the list."""
    import pyarrow as pa
    import ray

    assert ray.is_initialized(), "the driver starts Ray before it builds the embedded corpus"
    files = {package: _list_files(package) for package in packages}
    heaviest_first = sorted(packages, key=lambda package: (-sum(size for _, _, size in files[package]), package))

    def read(batch: pa.Table) -> Iterator[pa.Table]:
        for package in batch["item"].to_pylist():
            gc.disable()  # trees have no cycles, and looking for them takes a fifth of the time
            found = read_package(package, files[package], package in classes) or [Docstring("", package, "", "", "")]
            gc.enable()
            yield pa.Table.from_pylist([one._asdict() for one in found])

    dataset = ray.data.from_items(heaviest_first, override_num_blocks=len(packages))
    dataset.context.enable_progress_bars = dataset.context.print_on_execution_start = False
    dataset = dataset.map_batches(read, batch_size=1, batch_format="pyarrow", num_cpus=0.5)
    dataset.set_name(f"{run}-docstrings")
    found: dict[str, list[Docstring]] = defaultdict(list)
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in batch.to_pylist():  # pyright: ignore[reportAttributeAccessIssue]
            found[row["package"]].append(Docstring(**row))
        progress(f"docstrings: {len(found)} of {len(packages)} packages", len(found) / len(packages))
    return [one for package in packages for one in found[package] if one.text]


def _list_files(package: str) -> list[tuple[str, str, int]]:
    """(name below site-packages, path, bytes) of a package's sources, by hash of name: an order that draws fairly."""
    spec = importlib.util.find_spec(package)
    files: list[tuple[str, str, int]] = []
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
            for name in names:
                if name.endswith(".py") and not name.startswith(("test_", "conftest")) and not name.endswith("_pb2.py"):
                    path = os.path.join(folder, name)
                    files.append((f"{package}/{os.path.relpath(path, root)}", path, os.path.getsize(path)))
    return sorted(files, key=lambda file: _hash(file[0]))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_package(package: str, files: Sequence[tuple[str, str, int]], is_class: bool) -> list[Docstring]:
    """Docstrings of one package without copies; its first files are test, then validation, then PACKAGE_BYTES of train.

    Of two copies the first is kept, so train holds no text of the other splits.
    """
    found: list[Docstring] = []
    seen: set[str] = set()
    splits = [*HELD, "train"] if is_class else ["train"]
    filled = 0.0  # examples of a held split, bytes of train
    num_files = 0
    for name, path, _ in files:
        new = []
        for text in parse_docstrings(Path(path).read_bytes()):
            if (copy := copy_key(text)) not in seen:
                seen.add(copy)
                new.append(Docstring(text, package, name, splits[0], copy))
        found += new
        if splits[0] in HELD:
            filled += min(PER_FILE, len(new))
            num_files += 1
            if filled >= SPARE * PER_CLASS[splits[0]] or num_files >= HELD_FILES * len(files):
                splits, filled, num_files = splits[1:], 0.0, 0
        else:
            filled += sum(len(one.text.encode()) for one in new)
            if filled >= PACKAGE_BYTES:
                break
    return found


def parse_docstrings(source: bytes) -> Iterator[str]:
    """Docstrings of a module, its classes and functions that are long enough and mostly words; none of bad sources."""
    if source.count(b'"""') + source.count(b"'''") < 2:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in other people's sources
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "").strip()
            head = text[:HEAD_CHARACTERS]
            if len(text) >= SHORTEST_CHARACTERS and len(_NO_LETTER.sub("", head)) >= LEAST_LETTERS * len(head):
                yield text
        if not isinstance(node, ast.expr):
            nodes.extend(reversed([child for child in getattr(node, "body", []) if hasattr(child, "body")]))


def copy_key(text: str) -> str:
    """What near-identical docstrings share: their first plain words, names of things aside."""
    head = text[:HEAD_CHARACTERS]
    words = _NAME.sub(" ", head).lower().split()
    words = words if len(words) >= KEY_WORDS // 2 else re.findall(r"[a-z]+", head.lower())
    return " ".join(words[:KEY_WORDS])


def _hide_names(text: str) -> str:
    return _GIVEAWAYS.sub("", text)[:TASK_CHARACTERS].strip()


def _divide(
    found: list[Docstring], classes: Sequence[str]
) -> tuple[dict[str, list[Docstring]], dict[str, list[Docstring]]]:
    """The corpus by package and the task by split. A text that validation or test hold stands in no other part."""
    owner: dict[str, str] = {}
    for split in HELD:
        for one in found:
            if one.split == split:
                owner.setdefault(one.copy_key, split)
    corpus: dict[str, list[Docstring]] = defaultdict(list)
    for one in found:
        if one.split not in HELD and one.copy_key not in owner:
            corpus[one.package].append(one)
    task: dict[str, list[Docstring]] = {split: [] for split in PER_CLASS}
    counts: Counter[tuple[str, ...]] = Counter()
    for one in sorted(found, key=lambda one: _hash(one.text)):
        group, file = (one.split, one.package), (one.split, one.file)
        kept = one.package in classes and one.split == owner.get(one.copy_key, "train")
        room = counts[group] < PER_CLASS[one.split] and (one.split not in HELD or counts[file] < PER_FILE)
        if kept and room and len(_hide_names(one.text)) >= SHORTEST_CHARACTERS:
            counts.update([group, file])
            task[one.split].append(one)
    return corpus, task
