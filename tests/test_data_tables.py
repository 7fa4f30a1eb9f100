"""CSV and TSV: a broken row costs itself, and what is wrong with a header says what it is instead."""

from pathlib import Path

import pytest

from data.config import UserError
from data.formats import read_records
from data.records import Bad


def read(path: Path, *fields: str) -> list[tuple[object, ...]]:
    kind = "tsv" if path.name.endswith("tsv") else "csv"
    return [
        (record.line, record.reason) if isinstance(record, Bad) else (record.line, *record.values)
        for record in read_records(str(path), kind, fields or ("text",))
    ]


def test_open_quote_costs_its_line_and_none_after_it(tmp_path: Path):
    rows = [f"{i},text {i}\n" for i in range(2, 2000)]
    rows[10] = '12,"open quote\n'
    rows[20] = '22,"stray "quote" in it"\n'
    rows[30] = '32,"two\n'
    rows[31] = 'lines"\n'
    rows[-1] = '1999,"open at the end'
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(rows))
    found = read(tmp_path / "a.csv")
    bad = [place for place, *rest in found if rest == ["broken_row"]]
    assert bad == [12, 22, 1999]
    assert (32, "two\nlines") in found and [place for place, *_ in found] == [n for n in range(2, 2000) if n != 33]
    assert all(text == f"text {place}" for place, text in found if place not in (12, 22, 32, 1999))


def test_lines_are_counted_whatever_ends_them(tmp_path: Path):
    for newline in (b"\n", b"\r\n", b"\r"):
        (tmp_path / "a.csv").write_bytes(newline.join([b"id,text", b'1,"a', b'b"', b"", b"2,c,d", b"3,e", b""]))
        assert [place for place, *_ in read(tmp_path / "a.csv")] == [2, 5, 6]


def test_columns_are_found_by_name_in_any_order_behind_a_mark(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,"the ""label""",n\r\nx,y,1\r\n')
    assert read(tmp_path / "a.csv", 'the "label"', "text") == [(2, "y", "x")]


@pytest.mark.parametrize(
    ("name", "header", "told"),
    [
        ("a.csv", "text;label", r"no column 'text'; .*semicolons \(';'\): write it with commas instead"),
        ("a.csv", "text\tlabel", r"tabs \('\\t'\): give format: tsv"),
        ("a.tsv", "text,label", r"commas \(','\): give format: csv"),
        ("a.csv", "text|label", "vertical bars"),
        ("a.csv", "body,label", "the columns there are: body, label; name one of them$"),
    ],
)
def test_wrong_delimiter_is_named(tmp_path: Path, name: str, header: str, told: str):
    (tmp_path / name).write_text(f"{header}\nx{header[4]}y\n")
    with pytest.raises(UserError, match=told) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)


def test_nothing_at_all_and_a_header_alone_are_no_records(tmp_path: Path):
    for content in ("", "\ufeff", "id,text\n"):
        (tmp_path / "a.csv").write_text(content)
        assert read(tmp_path / "a.csv") == []
