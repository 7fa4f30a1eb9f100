"""A classifier's folder and a file of texts -> a file of labels, one line per input line, in order.

    file -> one reader on this node -> pieces of 128 KiB -> a pool of classifiers over the cluster -> JSONL

Out: {"label": ..., "score": ...}, or {"error": ...} for a line that is blank or cannot be read. Only this node reads
model and input: the model goes through Ray's object store. What a line is stands in data/texts.py, what a classifier is
in model/classifier.py. Ray is joined by the caller.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from data.config import UserError
from data.formats import Format
from data.texts import check_input, count_lines, read_texts
from model.classifier import Loaded, check_folder, label_texts, load_classifier

# One piece: about 1,000 tweets or 50 pages. Seconds of work, and enough of like length to batch with little padding.
PIECE_BYTES = 128 * 1024
PIECE_LINES = 2048  # of a file of blank lines
LINES_PER_CLASSIFIER = 4096  # starting one takes 5 s, which a small file is not worth


def check(model: Path, input: Path, output: Path | None, text_field: str = "text") -> tuple[Format, Path]:
    """What files alone tell, in a moment and before Ray starts: the input's format and where the labels go.

    `predict` checks it again. Raises UserError: the model is no classifier, the input is missing, empty, of no known
    format or without `text_field`, the output cannot be written.
    """
    source = Path(os.path.abspath(input))
    format = check_input(source, text_field)
    target = _check_output(source, output)
    try:
        check_folder(Path(os.path.abspath(model)))
    except ValueError as error:
        raise UserError(f"{os.path.abspath(model)}: {error}") from None
    return format, target


def predict(
    model: Path,
    input: Path,
    output: Path | None,
    progress: Callable[[str, float | None], None],
    text_field: str = "text",
) -> Path:
    """Label every line of `input`; returns the file written (None: INPUT.predictions.jsonl beside the input).

    The file replaces an older one once it is whole. Raises UserError before any work, for what `check` sees and for
    weights that cannot be loaded.
    """
    format, target = check(model, input, output, text_field)
    folder, source = Path(os.path.abspath(model)), Path(os.path.abspath(input))
    progress("loading the model", None)
    try:
        loaded = load_classifier(folder)
    except ValueError as error:
        raise UserError(f"{folder}: {error}") from error
    num_lines = count_lines(source, format)

    part = target.with_name(target.name + ".part")
    done = errors = cut = 0
    with part.open("w", encoding="utf-8") as file:
        for row in _labelled(loaded, partial(_pieces, source, format, text_field), num_lines):
            if row["index"] != done:
                raise RuntimeError(f"Ray Data brought row {row['index']} where {done} was due")
            done += 1
            errors += row["error"] is not None
            cut += row["cut"]
            answer = {"error": row["error"]} if row["error"] else {"label": row["label"], "score": row["score"]}
            file.write(json.dumps(answer, ensure_ascii=False) + "\n")
            if done % 100 == 0:
                progress(f"{done:,} lines", min(row["number"] / num_lines, 1.0))
    os.replace(part, target)
    notes = [f"{done - errors:,} lines labelled"]
    notes += [f"{errors:,} with an error instead"] if errors else []
    notes += [f"{cut:,} cut at {loaded.length} tokens"] if cut else []
    progress(", ".join(notes), 1.0)
    return target


def _check_output(source: Path, output: Path | None) -> Path:
    """Where the labels go. Raises UserError."""
    target = source.with_name(source.name + ".predictions.jsonl") if output is None else Path(os.path.abspath(output))
    if target == source:
        raise UserError(f"-o {output}: is the input itself; give another file")
    if target.is_dir():
        raise UserError(f"-o {output}: is a folder; give a file in it")
    if target.exists() and not target.is_file():
        raise UserError(f"-o {output}: is no regular file, and would be replaced; give another")
    if not target.parent.is_dir():
        raise UserError(f"-o {output}: {target.parent} does not exist; make it, or give a file elsewhere")
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"{target.parent}: cannot be written to; give -o FILE elsewhere")
    return target


def _pieces(source: Path, format: Format, text_field: str) -> Iterator[Any]:
    """The input as Arrow tables of one row, a piece: lists of index, number, text and error of its lines.

    One row is what Ray neither cuts nor merges, and a batch of one is what it asks for where there are GPUs.
    """
    import pyarrow as pa

    types = {"index": pa.int64(), "number": pa.int64(), "text": pa.large_string(), "error": pa.string()}
    schema = pa.schema([(name, pa.list_(type)) for name, type in types.items()])
    piece: list[tuple[Any, ...]] = []
    num_bytes = 0

    def table() -> Any:
        return pa.table([[list(column)] for column in zip(*piece, strict=True)], schema=schema)

    for index, line in enumerate(read_texts(source, format, text_field)):
        piece.append((index, *line))
        num_bytes += len(piece[-1][2] or "")
        if num_bytes >= PIECE_BYTES or len(piece) >= PIECE_LINES:
            yield table()
            piece, num_bytes = [], 0
    if piece:
        yield table()


class Labeller:
    """One classifier of the pool, in a process of its own."""

    def __init__(self, reference: Any) -> None:
        import ray
        import torch

        self._device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
        if self._device == "cpu":
            torch.set_num_threads(1)  # what it asked of Ray; also, sums in another order are other last digits
        self._loaded: Loaded = ray.get(reference[0])  # pyright: ignore[reportAttributeAccessIssue]
        self._loaded.model.to(self._device)

    def __call__(self, piece: Any) -> Any:
        """Put label, score and cut in the place of the texts; lines with an error keep it and get no label."""
        import pyarrow as pa

        texts = piece.column("text")[0].as_py()
        found = iter(label_texts(self._loaded, [text for text in texts if text is not None], self._device))
        answers = [(None, None, False) if text is None else tuple(next(found)) for text in texts]
        labels, scores, cuts = ([list(column)] for column in zip(*answers, strict=True))
        return (
            piece.drop_columns(["text"])
            .append_column("label", pa.array(labels, pa.list_(pa.string())))
            .append_column("score", pa.array(scores, pa.list_(pa.float64())))
            .append_column("cut", pa.array(cuts, pa.list_(pa.bool_())))
        )


def _labelled(loaded: Loaded, pieces: Callable[[], Iterator[Any]], num_lines: int) -> Iterator[dict[str, Any]]:
    """Rows with their labels, in order."""
    import ray
    from ray.data import ActorPoolStrategy
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    class Pieces(Datasource):
        """One task that reads the input from its beginning to its end, on the driver's node."""

        @property
        def supports_distributed_reads(self) -> bool:
            return False  # read where the file lies

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
            return [ReadTask(pieces, BlockMetadata(None, None, None, None))]

    resources = ray.cluster_resources()
    gpus, cpus = int(resources.get("GPU", 0)), resources.get("CPU", 1.0)
    wanted = math.ceil(num_lines / LINES_PER_CLASSIFIER)
    size = max(1, min(wanted, gpus or int(cpus)))
    with _ordered_blocks():
        # The reader asks for no CPU: it waits more than it works, and the pool may have taken them all.
        dataset = ray.data.read_datasource(Pieces(), num_cpus=0, override_num_blocks=1)
        dataset = dataset.map_batches(
            Labeller,
            fn_constructor_args=([ray.put(loaded)],),  # in a list, so that Ray hands on the reference
            batch_size=1,  # a piece as it was cut: what is batched together does not depend on the pool
            batch_format="pyarrow",
            compute=ActorPoolStrategy(min_size=1, max_size=size, initial_size=size),
            num_cpus=0 if gpus else min(1.0, cpus),
            num_gpus=1 if gpus else 0,
        )
        dataset.set_name("cloze-predict")
    batches: Any = dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    for batch in batches:
        for piece in batch.to_pylist():
            yield from (dict(zip(piece, line, strict=True)) for line in zip(*piece.values(), strict=True))


@contextmanager
def _ordered_blocks() -> Iterator[None]:
    """Datasets made inside keep their order, stay quiet, and have blocks of one piece."""
    from ray.data import DataContext

    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1
    with DataContext.current(context):
        yield
