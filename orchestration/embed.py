"""An encoder's folder and a file of texts -> a Parquet file of vectors, a row for each input line, in order.

    ray.init()
    embed("runs/law/export", "letters.txt", "vectors.parquet")

Out: columns line (int64, 1-based, where the text begins in the input), vector (D float32, of length 1; null where there
is an error) and error (null where there is a vector). How a folder makes vectors stands in model/embedder.py, what a
line is in data/texts.py. Ray is joined by the caller.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.examples import Examples
from data.texts import Value, check_input, count_lines, read_texts
from model.embedder import Role, check_embedder, load_embedder
from model.families import setting
from orchestration.inference import Loaded, load, outputs_of
from orchestration.output import Progress, check_output, replacing, silent
from orchestration.places import blaming
from orchestration.pool import Answered, answer_lines

GROUP_ROWS = 4096  # of the Parquet file, held in memory: 6 MB of 384 numbers


class Vector(NamedTuple):
    """What the encoder makes of one text."""

    numbers: np.ndarray
    """(D,) float32"""
    cut: bool
    """The text was longer than the encoder reads; the vector is that of its beginning."""


def check(
    model: Path | str,
    input: Path | str,
    output: Path | str | None = None,
    text_field: str = "text",
    role: Role | None = None,
    pickled: bool = False,
) -> Path:
    """What files alone tell, in a moment and before Ray starts; returns where the vectors go.

    `embed` checks it again. Raises UserError: no model's folder, no prefix for `role`; the input is missing, empty, of
    no known format or without `text_field`; the output cannot be written.
    """
    source = Path(os.path.abspath(input))
    check_input(source, (text_field,))
    target = check_output(source, output, ".vectors.parquet")
    with blaming(model):
        check_embedder(Path(os.path.abspath(model)), role, pickled)
    return target


def embed(
    model: Path | str,
    input: Path | str,
    output: Path | str | None = None,
    progress: Progress = silent,
    text_field: str = "text",
    role: Role | None = None,
    pickled: bool = False,
) -> Path:
    """Write the vector of every line of `input`; returns the file written (None: INPUT.vectors.parquet beside it).

    `role`: query or passage, whose prefix the model's folder tells. `pickled`: open pickled weights, which can run
    code. `progress` is told (what is done, share). The file replaces an older one once it is whole. Raises UserError
    before any work, for what `check` sees and for weights that cannot be loaded.
    """
    target = check(model, input, output, text_field, role, pickled)
    folder, source = Path(os.path.abspath(model)), Path(os.path.abspath(input))
    format = check_input(source, (text_field,))
    progress("loading the model", None)
    with blaming(model):
        module, about, prefix, note = load_embedder(folder, role, pickled)
        loaded = load(module, about, folder, prefix)
    width = setting(module.encoder.config, "hidden_size")
    num_lines = count_lines(source, format)
    lines = partial(read_texts, source, format, (text_field,))
    done = errors = cut = 0
    with replacing(target) as part, VectorFile(part, width) as file:
        for line in answer_lines(loaded, embed_texts, lines, num_lines, "cloze-embed"):
            done += 1
            errors += line.error is not None
            cut += line.error is None and line.answer.cut
            file.add(line)
            if done % 100 == 0:
                progress(f"{done:,} lines", min(line.number / num_lines, 1.0))
    notes = [f"{done - errors:,} vectors of {width} numbers"]
    notes += [f"{errors:,} lines with an error instead"] if errors else []
    notes += [f"{cut:,} cut at {about.length} tokens"] if cut else []
    notes += [note] if note else []
    progress(", ".join(notes), 1.0)
    return target


def embed_texts(loaded: Loaded, texts: list[tuple[Value, ...]], device: str) -> list[Vector]:
    """Vectors of the texts, in their order."""
    encoded = loaded.read(Examples("embedding", [str(values[0]) for values in texts]))
    vectors = outputs_of(loaded.module, encoded, device)["vectors"]
    return [Vector(numbers, bool(cut)) for numbers, cut in zip(vectors, encoded.cuts, strict=True)]


class VectorFile:
    """A Parquet file that is written while answers come; memory holds one row group."""

    def __init__(self, path: Path, width: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        vector = pa.list_(pa.float32(), width)
        self._schema = pa.schema([("line", pa.int64()), ("vector", vector), ("error", pa.string())])
        self._writer: Any = pq.ParquetWriter(path, self._schema)
        self._lines: list[Answered] = []

    def __enter__(self) -> "VectorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._writer.close()

    def add(self, line: Answered) -> None:
        """One row."""
        self._lines.append(line)
        if len(self._lines) >= GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        if self._lines:
            width = self._schema.field("vector").type.list_size
            absent = np.array([line.error is not None for line in self._lines])
            numbers = np.concatenate(
                [np.zeros(width, np.float32) if line.error is not None else line.answer.numbers for line in self._lines]
            )
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), width, mask=pa.array(absent))
            places = pa.array([line.number for line in self._lines])
            errors = pa.array([line.error for line in self._lines], pa.string())
            self._writer.write_table(pa.table([places, vectors, errors], self._schema))
            self._lines = []
