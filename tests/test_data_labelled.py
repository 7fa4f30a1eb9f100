"""Files of labelled examples as programs write them: byte order marks, encodings, quotes, line ends, formats told."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from test_data_tasks import squad

from data.config import Task, UserError
from data.examples import Examples
from data.labelled import read_examples

ROWS = [("Ein Café – „schön“", "gut"), ('say "no", or;not', "böse"), ("two\nlines", "gut"), ("tab\there", "böse")]
TEXTS = [text for text, _ in ROWS]


def read(path: Path, kind: str = "classification", **task: Any) -> Examples:
    return read_examples(f"task.train={path}", str(path), Task(**task), kind, "in_batch")


def refused(path: Path, kind: str = "classification", **task: Any) -> str:
    with pytest.raises(UserError) as error:
        read(path, kind, **task)
    (line,) = str(error.value).splitlines()
    return line


def table(path: Path, encoding: str, delimiter: str = ",", end: str = "\r\n") -> Path:
    """A table as spreadsheets write one."""
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
        writer.writerows([("text", "label"), *ROWS])
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "gb18030"])
def test_tables_in_any_encoding(tmp_path: Path, suffix: str, end: str, encoding: str) -> None:
    path = table(tmp_path / f"a.{suffix}", encoding, "\t" if suffix == "tsv" else ",", end)
    asked = {} if encoding.startswith("utf-8") else {"encoding": encoding}
    examples = read(path, **asked)
    assert list(zip(examples.texts, examples.targets or [], strict=True)) == ROWS
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed, **asked).texts == examples.texts


def test_what_is_in_another_encoding_is_told_with_the_remedy(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "cp1252")
    assert refused(path) == (
        f"task.train={path}: 3 examples cannot be used, first {path}:2: text is not valid text; repair or remove them, "
        f"or give task.encoding=NAME of theirs (it is utf-8)"
    )
    path = table(tmp_path / "b.csv", "utf-16")
    assert refused(path) == (
        f"task.train={path}: cannot be read: it begins with a byte order mark of UTF-16; give task.encoding=utf-16; "
        f"repair the file"
    )
    assert read(path, encoding="utf-16").texts == TEXTS
    assert refused(path, encoding="klingon") == (
        "task.encoding=klingon: no text encoding; give one such as utf-8 or cp1252"
    )


def test_other_delimiters_are_told(tmp_path: Path) -> None:
    told = refused(table(tmp_path / "a.csv", "utf-8", ";"))
    assert "no column 'text', 'label'; the columns there are: text;label" in told
    assert "it seems to be delimited by semicolons (';'): write it with commas instead; name them with" in told
    tabs = table(tmp_path / "b.csv", "utf-8", "\t")
    assert "it seems to be delimited by tabs ('\\t'): give task.format=tsv; name them with task.text=" in refused(tabs)
    assert read(tabs, format="tsv").texts == TEXTS


def test_a_format_that_is_told_wins_over_the_suffix(tmp_path: Path) -> None:
    words = "a O\nb B-X\n\nc O\nd B-X\n"
    for name in ("a.txt", "a.tsv", "a.csv", "a"):
        (tmp_path / name).write_text(words)
        assert read(tmp_path / name, "tagging", format="conll").words == [["a", "b"], ["c", "d"]]
    assert "its suffix tells no format; give one of .jsonl" in refused(tmp_path / "a", "tagging")
    assert "task.format=conll is for kind tagging; give one of" in refused(tmp_path / "a.csv", format="conll")
    path = table(tmp_path / "b.txt", "utf-8", "\t")
    assert read(path, format="tsv").texts == TEXTS
    assert "its suffix tells no format; give one of .jsonl .ndjson" in refused(path)
    listed = tmp_path / "c.json"
    listed.write_text(json.dumps([{"text": "who?", "context": "Bob", "label": "Bob"}]))
    assert read(listed, "answering", format="jsonl").targets == [[(0, "Bob")]]


def test_conll_and_squad_have_encodings_too(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes("Café O\nMünchen B-LOC\n".encode("cp1252"))
    assert read(path, "tagging", encoding="cp1252").words == [["Café", "München"]]
    assert "it is not valid text; repair or remove them, or give task.encoding=NAME" in refused(path, "tagging")
    asked = squad({"id": "1", "question": "où?", "answers": []}, context="là")
    for encoding, written in (("utf-8", "utf-8-sig"), ("utf-16", "utf-16"), ("cp1252", "cp1252")):
        (tmp_path / "a.json").write_bytes(asked.replace("\\u00f9", "ù").replace("\\u00e0", "à").encode(written))
        assert read(tmp_path / "a.json", "answering", encoding=encoding).pairs == ["là"]
    assert "cannot be read: " in refused(tmp_path / "a.json", "answering")


def test_a_file_that_breaks_off_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\n" + b"some text,a\n" * 5000)[:-30])
    assert refused(path).startswith(f"task.train={path}: cannot be read: ")


@pytest.mark.shared
def test_quotes_of_every_sort(shared: Path) -> None:
    """csv-spectrum's tables, their first column as the text and the last as the label."""
    read_tables = 0
    for path in sorted((shared / "bad_csv_spectrum" / "csvs").glob("*.csv")):
        rows = json.loads((shared / "bad_csv_spectrum" / "json" / f"{path.stem}.json").read_text(encoding="utf-8"))
        rows = rows if isinstance(rows, list) else [rows]
        first, *_, last = rows[0]
        is_other = path.stem == "location_coordinates"  # its JSON has another telephone number than its CSV
        if is_other or any(not row[first].strip() or not row[last].strip() for row in rows):
            continue
        examples = read(path, text=first, label=last)
        assert examples.texts == [row[first].strip() for row in rows]
        assert examples.targets == [row[last].strip() for row in rows]
        read_tables += 1
    assert read_tables >= 7
