"""JSON files in every form: lines, an array, objects over several lines; whole, broken and hostile."""

import gzip
import json
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data.objects
from data.formats import read_records
from data.objects import BLOCK_CHARACTERS
from data.records import Bad, Record

RECORDS = [{"text": f"document {i}", "meta": {"n": i, "tags": ["a", {"b": None}]}} for i in range(500)]
TEXTS = [record["text"] for record in RECORDS]
BROKEN = ("broken_json", "encoding", "unreadable")


def read(path: Path, *fields: str, encoding: str = "utf-8") -> list[Record | Bad]:
    return list(read_records(str(path), "jsonl", fields or ("text",), encoding))


def values(path: Path, *fields: str, encoding: str = "utf-8") -> list[object]:
    records = read(path, *fields, encoding=encoding)
    assert not [record for record in records if isinstance(record, Bad)]
    return [record.values[0] for record in records if isinstance(record, Record)]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(map(json.dumps, RECORDS)),
        json.dumps(RECORDS),
        json.dumps(RECORDS, indent=2),
        " \n[\n" + ",\n".join(map(json.dumps, RECORDS)) + "\n]\n\n",
        "\n".join(json.dumps(record, indent=1) for record in RECORDS),
        "\n\n".join(map(json.dumps, RECORDS)) + "\n",
    ],
    ids=["lines", "array", "indented", "array-of-lines", "objects", "blank-lines"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_form_of_json_gives_the_same_records(tmp_path: Path, text: str, encoding: str):
    (tmp_path / "a.json").write_text(text, encoding=encoding)
    assert values(tmp_path / "a.json", encoding=encoding.removesuffix("-sig")) == TEXTS
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode(encoding)))
    assert values(tmp_path / "a.json.gz", "meta.n", encoding=encoding.removesuffix("-sig")) == list(range(500))


def test_one_object_is_one_record(tmp_path: Path):
    for indent in (None, 2):
        (tmp_path / "a.json").write_text(json.dumps(RECORDS[7], indent=indent))
        assert values(tmp_path / "a.json") == ["document 7"]


def test_strings_in_place_of_an_arrays_records_are_texts(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('"one"\n{"text": "two"}\n')
    assert [record[0] for record in read(tmp_path / "a.jsonl")] == ["not_object", 2]
    (tmp_path / "a.json").write_text('["one", {"text": "two"}, 3, "four"]')
    assert [record[1] for record in read(tmp_path / "a.json")] == [
        ("one",),
        ("two",),
        str(tmp_path / "a.json"),
        ("four",),
    ]
    assert read(tmp_path / "a.json")[2][0] == "not_object"
    assert [record[0] for record in read(tmp_path / "a.json", "text", "label")][:2] == ["not_object", "missing_field"]


@pytest.mark.parametrize("cut", [2, 20, 400, 5000])
@pytest.mark.parametrize("indent", [None, 1])
def test_broken_tail_of_an_array_is_one_bad_and_what_stands_before_it_is_kept(tmp_path: Path, cut: int, indent: int):
    text = json.dumps(RECORDS, indent=indent)
    (tmp_path / "a.json").write_text(text[:-cut])
    *records, last = read(tmp_path / "a.json")
    assert [record.values[0] for record in records if isinstance(record, Record)] == TEXTS[: len(records)]
    assert len(records) >= 500 - cut // 10 - 1
    assert isinstance(last, Bad) and (last.reason, last.line) == ("unreadable", len(records) + 1)
    assert "broken_json here" in last.detail


def test_bad_bytes_and_half_characters_cost_their_element_of_an_array_only(tmp_path: Path):
    (tmp_path / "a.json").write_bytes(b'[{"text": "caf\xe9"}, {"text": "half \\ud800"}, {"text": "good"}]')
    texts = values(tmp_path / "a.json")
    assert len(texts) == 3 and texts[2] == "good"
    for text in texts[:2]:
        with pytest.raises(UnicodeEncodeError):
            str(text).encode()  # which the reader of documents quarantines


def test_elements_that_lie_across_blocks_are_whole(tmp_path: Path):
    sizes = [BLOCK_CHARACTERS - 30, 5, BLOCK_CHARACTERS * 3, 1, BLOCK_CHARACTERS - 1, BLOCK_CHARACTERS // 2]
    texts = ['\u4eba\\"' * (size // 3) + "x" for size in sizes]
    numbers = [10**i for i in range(300)]
    (tmp_path / "a.json").write_text(json.dumps([*({"text": text} for text in texts), *({"text": n} for n in numbers)]))
    assert values(tmp_path / "a.json") == [*texts, *numbers]
    (tmp_path / "b.json").write_text("[" + " " * (BLOCK_CHARACTERS - 3) + "12345]")
    assert "int, not an object" in str(read(tmp_path / "b.json")[0])


KEYS = st.text("ab\\\"\U0001f600", max_size=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs"]), max_size=30),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(KEYS, inside, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON, max_size=8), st.integers(1, 40), st.sampled_from([None, 1]), st.booleans(), st.integers(0, 60))
def test_window_of_any_size_sees_what_the_whole_parser_sees(
    elements: list[object], block: int, indent: int | None, ascii: bool, cut: int
):
    whole = json.dumps([{"text": element} for element in elements], indent=indent, ensure_ascii=ascii)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.objects, "BLOCK_CHARACTERS", block)
        path = Path(folder) / "a.json"
        path.write_text(whole, encoding="utf-8")
        assert values(path) == elements
        if cut:
            path.write_text(whole[:-cut], encoding="utf-8")
            *records, last = read(path) or [None]
            assert [record[1][0] for record in records] == elements[: len(records)]  # type: ignore[index]
            assert last is None or last[0] == "unreadable"
            assert last is not None or not whole[:-cut].strip()


def test_array_is_not_held_in_memory(tmp_path: Path):
    line = json.dumps({"text": "word " * 20_000, "meta": {"n": 1}})
    with open(tmp_path / "a.json", "w") as file:
        file.write("[" + ",".join([line] * 400) + "]")
    assert (tmp_path / "a.json").stat().st_size > 40_000_000
    tracemalloc.start()
    number = sum(1 for _ in read_records(str(tmp_path / "a.json"), "jsonl", ("text",)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert number == 400 and peak < 12_000_000


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_is_refused_in_lines_as_in_arrays(tmp_path: Path, constant: str):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "n": {constant}}}\n{{"text": "b"}}\n')
    assert [record[0] for record in read(tmp_path / "a.jsonl")] == ["broken_json", 2]
    (tmp_path / "a.json").write_text(f'[{{"text": "b"}}, {{"text": "a", "n": {constant}}}]')
    assert [record[0] for record in read(tmp_path / "a.json")] == [1, "unreadable"]


@pytest.mark.shared
def test_parsing_suite(shared: Path):
    names: dict[str, int] = {"y": 0, "n": 0, "i": 0}
    for path in sorted((shared / "bad_json_testsuite").glob("*.json")):
        bads = [record for record in read(path) if isinstance(record, Bad)]
        kind = path.name[0]
        names[kind] += 1
        if kind == "y":
            assert not [bad for bad in bads if bad.reason in BROKEN], path.name
        elif kind == "n" and path.read_bytes().strip(b" \xef\xbb\xbf"):  # of nothing there is no record to reject
            assert bads, path.name
    assert min(names.values()) >= 35
