"""A file of texts to search -> texts by id.

In: a file with the columns id and text. Out: a mapping, or a UserError in one line.
"""

from data.config import UserError
from data.formats import format_of, read_records
from data.lines import clean
from data.records import Bad
from data.refusals import path_of


def read_passages(file: str, encoding: str = "utf-8") -> dict[str, str]:
    """Texts by id. Raises UserError."""
    key = f"task.passages={file}"
    path = path_of(key, file, encoding)
    format = format_of(path)
    if format is None or format == "text":
        raise UserError(f"{key}: its suffix tells no format; give a CSV, TSV, JSONL, Parquet or Arrow file with the "
                        f"columns id and text")  # fmt: skip
    passages: dict[str, str] = {}
    faults: list[str] = []
    for record in read_records(path, format, ("id", "text"), encoding):
        if isinstance(record, Bad):
            faults.append(str(record))
            continue
        number, text = record.values
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        number = "" if number is None else str(number).strip()
        if not number or not isinstance(text, str) or not text.strip() or clean(text) is None:
            faults.append(f"{file}:{record.line}: no {'valid text' if number else 'id'}")
        elif passages.setdefault(number, text.strip()) != text.strip():
            faults.append(f"{file}:{record.line}: another text for the id {number!r}")
    if faults:
        raise UserError(f"{key}: {len(faults)} passages cannot be used, first {faults[0]}; repair or remove them")
    if not passages:
        raise UserError(f"{key}: holds no passages; give a file with the columns id and text")
    return passages
