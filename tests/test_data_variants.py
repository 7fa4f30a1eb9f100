"""Real and hostile files, each read as it is known to be: what is kept, what is quarantined and why."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.census import decide, take_census
from data.chunks import read_chunks, scan_chunk
from data.config import Corpus, Tokenizer, UserError
from data.corpus import find_files
from data.documents import read_documents
from data.formats import read_records
from data.records import Bad
from data.tally import tally

pytestmark = pytest.mark.shared
OUTCOMES = ("kept", "empty", "duplicate", "quarantined")


def read(path: Path, **source: str) -> list[Any]:
    (file,) = find_files(Corpus(sources=[{"path": str(path), **source}]))  # type: ignore[list-item]
    return list(read_documents(file))


def texts(path: Path, **source: str) -> list[str]:
    return [document for document in read(path, **source) if isinstance(document, str)]


def count(path: Path, **source: str) -> tuple[tuple[int, ...], dict[str, int]]:
    """Kept, empty, duplicate and quarantined documents of a file, as prepare counts them, and why."""
    corpus = Corpus(sources=[{"path": str(path), **source}])  # type: ignore[list-item]
    files = find_files(corpus)
    scans = [scan_chunk(chunk, 0.0, Tokenizer()) for chunk in read_chunks(0, files, 1_000_000)]
    _, counts = decide([files], take_census(scans), corpus)
    facts = tally(corpus, files, counts, [])
    assert facts["documents_read"] == sum(facts[f"documents_{outcome}"] for outcome in OUTCOMES)
    return tuple(facts[f"documents_{outcome}"] for outcome in OUTCOMES), facts["quarantined_by_reason"]


VARIANTS: list[tuple[str, dict[str, str], tuple[int, int, int, int], dict[str, int]]] = [
    ("binary_text_int_label.parquet", {}, (296, 0, 4, 0), {}),
    ("cp1252_in_utf8.txt", {}, (20, 0, 0, 1), {"encoding": 1}),
    ("cp1252_in_utf8.txt", {"encoding": "cp1252"}, (21, 0, 0, 0), {}),
    ("cr_only.txt", {}, (1, 0, 0, 0), {}),
    ("cut_in_middle_of_char.txt", {}, (8, 0, 0, 1), {"encoding": 1}),
    ("gb18030_zh.txt", {}, (0, 0, 0, 64), {"encoding": 64}),
    ("gb18030_zh.txt", {"encoding": "gb18030"}, (64, 0, 0, 0), {}),
    ("largestring_dictionary.parquet", {"text_field": "sentence"}, (296, 0, 4, 0), {}),
    ("largestring_dictionary.parquet", {"text_field": "y"}, (2, 0, 298, 0), {}),
    ("mixed_line_ends.txt", {}, (1, 0, 0, 0), {}),
    ("mojibake_double_utf8.txt", {}, (4, 0, 0, 0), {}),
    ("nested_text.parquet", {"text_field": "messages"}, (0, 0, 0, 300), {"not_text": 300}),
    ("newlines.tsv", {}, (400, 0, 0, 0), {}),
    ("newlines_quotes.csv", {}, (400, 0, 0, 0), {}),
    ("no_final_newline.txt", {}, (1, 0, 0, 0), {}),
    ("nul_bytes.txt", {}, (1, 0, 0, 0), {}),
    ("null_text_label.parquet", {}, (279, 18, 3, 0), {}),
    ("null_type.parquet", {}, (0, 20, 0, 0), {}),
    ("one_long_line.txt", {}, (1, 0, 0, 0), {}),
    ("only_blank_lines.txt", {}, (0, 0, 0, 0), {}),
    ("only_bom.txt", {}, (0, 0, 0, 0), {}),
    ("unicode_line_separators.txt", {}, (1, 0, 0, 0), {}),
    ("unicode_line_separators.txt", {"document": "line"}, (2, 0, 0, 0), {}),
    ("utf16be_nobom_zh.txt", {}, (4, 0, 0, 60), {"encoding": 60}),
    ("utf16be_nobom_zh.txt", {"encoding": "utf-16"}, (0, 0, 0, 1), {"unreadable": 1}),
    ("utf16be_nobom_zh.txt", {"encoding": "utf-16-be"}, (64, 0, 0, 0), {}),
    ("utf16le_bom_zh.txt", {}, (0, 0, 0, 1), {"unreadable": 1}),
    ("utf16le_bom_zh.txt", {"encoding": "utf-16"}, (64, 0, 0, 0), {}),
    ("utf16le_bom_zh.txt", {"encoding": "utf-16-le"}, (64, 0, 0, 0), {}),
    ("utf8_bom_crlf.txt", {}, (1, 0, 0, 0), {}),
    ("zero_rows.parquet", {}, (0, 0, 0, 0), {}),
]  # fmt: skip
REFUSED = {
    "empty.txt": {"": "all 1 files are empty"},
    "nested_text.parquet": {"": "no column 'text'; the columns", "messages.content": "messages is list.* not a struct"},
    "semicolon_cp1252.csv": {"": r"delimited by semicolons \(';'\): write it with commas"},
}


@pytest.mark.parametrize(("name", "source", "counts", "reasons"), VARIANTS)
def test_variant(shared: Path, name: str, source: dict[str, str], counts: tuple[int, ...], reasons: dict[str, int]):
    assert count(shared / "bad_made_variants" / name, **source) == (counts, reasons)


def test_variants_that_are_refused_say_why_in_one_line(shared: Path):
    for name, tries in REFUSED.items():
        for field, told in tries.items():
            with pytest.raises(UserError, match=told) as error:
                read(shared / "bad_made_variants" / name, **({"text_field": field} if field else {}))
            assert "\n" not in str(error.value)


def test_no_variant_is_forgotten(shared: Path):
    known = {name for name, *_ in VARIANTS} | REFUSED.keys() | {"README.txt", "broken.jsonl", "broken.expected.json"}
    assert known == {path.name for path in (shared / "bad_made_variants").iterdir()}


def test_broken_lines_are_exactly_those_it_is_known_for(shared: Path):
    path = shared / "bad_made_variants" / "broken.jsonl"
    known = json.loads((shared / "bad_made_variants" / "broken.expected.json").read_text())["line"]
    usable = ("label", "duplicate key", "null", "empty", "blank")  # nothing is wrong with the text, or there is none
    bad = {int(line) for line, what in known.items() if not any(word in what for word in usable)}
    documents = read(path)
    assert {document.line for document in documents if isinstance(document, Bad)} == bad
    assert documents.count("") == sum(what in ("text is null", "text empty") for what in known.values())
    assert (
        len(documents) == len(path.read_text(encoding="utf-8-sig").split("\n")) - 2
    )  # less the blank one and the last
    reasons = Counter(document.reason for document in documents if isinstance(document, Bad))
    assert reasons == {"broken_json": 5, "not_text": 2, "missing_field": 1, "not_object": 1, "encoding": 1}


def test_one_text_is_the_same_whatever_file_it_is_in(shared: Path):
    folder = shared / "bad_made_variants"
    chinese = texts(folder / "gb18030_zh.txt", encoding="gb18030")
    assert chinese == texts(folder / "utf16be_nobom_zh.txt", encoding="utf-16-be")
    assert chinese == texts(folder / "utf16le_bom_zh.txt", encoding="utf-16")
    assert texts(folder / "newlines.tsv") == texts(folder / "newlines_quotes.csv")
    plain = (folder / "cr_only.txt").read_text().replace("\r", "\n").strip()
    assert texts(folder / "cr_only.txt") == [plain] == texts(folder / "mixed_line_ends.txt")
    assert texts(folder / "utf8_bom_crlf.txt") == [plain]
    (without_nul,) = texts(folder / "nul_bytes.txt")
    assert "\0" not in without_nul and plain.startswith(without_nul[:3000])


def test_csv_spectrum_is_the_expected_json(shared: Path):
    for path in sorted((shared / "bad_csv_spectrum" / "csvs").glob("*.csv")):
        expected = json.loads((shared / "bad_csv_spectrum" / "json" / f"{path.stem}.json").read_text(errors="replace"))
        rows = expected if isinstance(expected, list) else [expected]
        fields = tuple(rows[0])
        found = [dict(zip(fields, values, strict=True)) for _, values in read_records(str(path), "csv", fields)]
        if path.stem == "location_coordinates":  # of the telephone number its JSON has another one than its CSV
            assert [list(row)[1:] for row in found] == [list(row)[1:] for row in rows]
            assert found[0]["Cities"] == rows[0]["Cities"]
        else:
            assert found == rows, path


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "tsv", "parquet", "arrow", "txt"])
def test_every_naughty_string_survives_in_every_format(shared: Path, tmp_path: Path, form: str):
    strings = json.loads((shared / "bad_blns" / "blns.json").read_text(encoding="utf-8"))
    assert len(strings) > 450
    path = tmp_path / f"a.{form}"
    if form == "json":
        path.write_bytes((shared / "bad_blns" / "blns.json").read_bytes())
    elif form == "jsonl":
        path.write_text("\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in strings), encoding="utf-8")
    elif form in ("csv", "tsv"):
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="," if form == "csv" else "\t")
            writer.writerows([("id", "text"), *enumerate(strings)])
    elif form == "parquet":
        pq.write_table(pa.table({"text": strings}), path)
    elif form == "arrow":
        with pa.ipc.new_stream(path, pa.schema([("text", pa.string())])) as stream:
            stream.write_table(pa.table({"text": strings}))
    else:
        strings = [text for text in strings if text.strip()]
        path.write_text("\n\n".join(strings), encoding="utf-8")
    assert read(path) == [text.strip() for text in strings]


def test_naughty_file_loses_no_line(shared: Path):
    path = shared / "bad_blns" / "blns.txt"
    lines = path.read_text(encoding="utf-8").split("\n")
    assert read(path, document="line") == [line.strip() for line in lines if line.strip()]
    assert "".join("".join(texts(path)).split()) == "".join("".join(lines).split())
