"""texts: a line out for every line in, with the values of its fields or why there are none."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.config import UserError
from data.texts import Line, check_input, read_texts


def texts_of(file: Path, text_field: str = "text") -> list[str | None]:
    fields = (text_field,)
    return [line.values and line.values[0] for line in read_texts(file, check_input(file, fields), fields)]


def test_text_lines_end_at_newlines_only(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\n\n two\rthree \xe2\x80\xa8 four\n\xff\nlast without newline")
    assert texts_of(file) == ["one", None, "two\rthree \u2028 four", None, "last without newline"]


def test_csv_records_with_newlines_blank_lines_and_wrong_width(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('id,text\n1,"two\nlines, one record"\n\n2,plain\n3,too,wide\n4\n5,""\n')
    assert texts_of(file) == ["two\nlines, one record", None, "plain", None, None, None]


def test_tsv_with_stray_quotes(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text('text\tlabel\n"open quote\tx\nsay "yes"\ty\n')
    assert texts_of(file) == ['"open quote', 'say "yes"']


def test_parquet_nulls_and_another_field(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x", None, "z"], "n": [1, 2, 3]}), file)
    assert texts_of(file, "body") == ["x", None, "z"]
    assert texts_of(file, "n") == [None, None, None]


def test_a_cut_archive_gives_what_can_be_read_and_says_so(tmp_path):
    file = tmp_path / "a.txt.gz"
    whole = gzip.compress("\n".join(f"text {i} " * (i % 9 + 1) for i in range(5000)).encode())
    file.write_bytes(whole[: len(whole) // 2])
    lines = list(read_texts(file, "text", ("text",)))
    assert lines[-1].number == 0
    assert "the rest of the file" in str(lines[-1].error)
    assert all(line.values for line in lines[:-1])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "no such file"),
        ("empty.txt", b"", "is empty"),
        ("empty.csv", b"", "is empty"),
        ("header.csv", b"text,label\n", "holds no rows"),
        ("other.csv", b"body,label\nx,y\n", "no column 'text'; the columns there are: body, label"),
        ("other.jsonl", b'{"body": "x"}\n{"body": "y"}\n', "no 'text' in its first 2 lines"),
        ("texts.docx", b"PK", "suffix tells no format"),
        ("blank.txt", b"\n  \n\t\n", "holds only blank lines"),
        ("blank.csv", b"id,text\n1,\n2,  \n", "'text' is blank in all of its 2 lines"),
    ],
)
def test_bad_input_is_refused_in_one_line(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        check_input(tmp_path / name, ("text",))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def read(file: Path, *fields: str, words: bool = False) -> list[Line]:
    return list(read_texts(file, check_input(file, fields, words), fields, words))


def test_a_pair_with_one_side_missing_is_that_lines_error(tmp_path):
    rows = [
        {"question": " Who? ", "context": "Me."}, {"question": "Who?"}, {"question": "Who?", "context": "  "},
        {"question": None, "context": "Me."}, {"question": "Who?", "context": 5},
        {"question": "谁？", "context": "我。"},
    ]  # fmt: skip
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    found = read(file, "question", "context")
    assert [line.values for line in found if line.values] == [("Who?", "Me."), ("谁？", "我。")]
    assert [line.number for line in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [line.error for line in found if line.error] == [
        "line 2: missing field (no 'context' among question)", "line 3: context: blank",
        "line 4: question: null, not text", "line 5: context: int, not text", "line 7: blank",
    ]  # fmt: skip


def test_words_come_as_lists_and_as_text(tmp_path):
    file = tmp_path / "words.jsonl"
    rows = [["Ann", "lives", "here"], "Ann lives", [], ["Ann", " "], ["Ann", None], ["我", "爱"]]
    file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    found = read(file, "text", words=True)
    assert [line.values and line.values[0] for line in found] == [
        ("Ann", "lives", "here"), "Ann lives", None, None, None, ("我", "爱")
    ]  # fmt: skip
    assert [line.error for line in found if line.error] == [
        "line 3: blank", "line 4: word 2: blank", "line 5: word 2: null, not text"
    ]  # fmt: skip
    assert [line.error for line in read(file, "text")][0] == "line 1: list, not text"


def test_words_in_a_column_of_lists(tmp_path):
    file = tmp_path / "words.parquet"
    pq.write_table(pa.table({"text": [["a", "b"], None, ["c"]]}), file)
    assert [line.values for line in read(file, "text", words=True)] == [(("a", "b"),), None, (("c",),)]


def test_exact_texts_lose_the_end_of_their_line_only(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"  one \r\n\t\n two")
    (tmp_path / "a.jsonl").write_text('{"text": "  one \\n"}\n')
    for name, stripped, exact in (("a.txt", ["one", None, "two"], ["  one ", None, " two"]),
                                  ("a.jsonl", ["one"], ["  one \n"])):  # fmt: skip
        file = tmp_path / name
        format = check_input(file, ("text",))
        for asked, texts in ((False, stripped), (True, exact)):
            found = read_texts(file, format, ("text",), exact=asked)
            assert [line.values and line.values[0] for line in found] == texts


def test_a_text_file_holds_no_pairs(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    with pytest.raises(UserError, match="has one text a line, and question, context are needed; give JSONL"):
        check_input(file, ("question", "context"))


def test_blank_lines_before_the_first_text_are_no_fault(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("\n" * 500 + "one\n")
    found = read(file, "text")
    assert len(found) == 501 and found[-1] == Line(501, ("one",), None)
