"""Lines of a file -> their answers, in order, by a pool of processes over a Ray cluster.

    one reader on this node -> pieces of 128 KiB -> a pool that each holds the model -> answers, in the order of lines

In: anything that answers texts, a function that asks it, and lines (data/texts.py). Out: for each line its answer, or
why it got none. Only this node reads model and input: the model goes through Ray's object store. What an answer is
stays between the function and the caller. Ray is joined by the caller.
"""

import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from data.texts import Line, Value

# One piece: about 1,000 tweets or 50 pages. Seconds of work, and enough of like length to batch with little padding.
PIECE_BYTES = 128 * 1024
PIECE_LINES = 2048  # of a file of blank lines
LINES_PER_PROCESS = 4096  # starting one takes 5 s, which a small file is not worth


class Movable(Protocol):
    """A model that is in memory, and can be brought to a device."""

    def to(self, device: str) -> Any:
        """Move it, in place."""
        ...


Ask = Callable[[Any, list[tuple[Value, ...]], str], list[Any]]
"""(what answers, the values of lines, the device it is on) -> an answer for each, in order."""


class Answered(NamedTuple):
    """One line with its answer. Exactly one of answer and error is None."""

    number: int
    """As data/texts.py's Line has it."""
    answer: Any
    error: str | None


def answer_lines(
    loaded: Movable, ask: Ask, lines: Callable[[], Iterator[Line]], num_lines: int, name: str
) -> Iterator[Answered]:
    """The lines with their answers, as many and in the same order.

    `lines` is called in one other process of this node; `num_lines` (about) decides how many processes answer; `name`
    is what Ray's dashboard shows. Raises RuntimeError where Ray brings them in another order.
    """
    done = 0
    for first, answers in _answered_pieces(loaded, ask, lines, num_lines, name):
        if first != done:
            raise RuntimeError(f"Ray Data brought line {first} where {done} was due")
        done += len(answers)
        yield from answers


def _pieces(lines: Callable[[], Iterator[Line]]) -> Iterator[Any]:
    """The input as Arrow tables of one row, a piece: the number of its first line (from 0), and its lines.

    One row is what Ray neither cuts nor merges, and a batch of one is what it asks for where there are GPUs.
    """
    piece: list[Line] = []
    num_bytes = first = 0
    for line in lines():
        piece.append(line)
        num_bytes += sum(map(_size, line.values or ()))
        if num_bytes >= PIECE_BYTES or len(piece) >= PIECE_LINES:
            yield _table(first, piece)
            first += len(piece)
            piece, num_bytes = [], 0
    if piece:
        yield _table(first, piece)


def _size(value: Value) -> int:
    return len(value) if isinstance(value, str) else sum(map(len, value))


def _table(first: int, lines: list[Any]) -> Any:
    """One row of it; the lines pickled, as between any two processes of Ray: their values are of any type."""
    import pyarrow as pa

    return pa.table({"first": [first], "lines": pa.array([pickle.dumps(lines)], pa.large_binary())})


class Process:
    """One of the pool."""

    def __init__(self, reference: Any, ask: Ask) -> None:
        import ray
        import torch

        self._device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
        if self._device == "cpu":
            torch.set_num_threads(1)  # what it asked of Ray; also, sums in another order are other last digits
        self._loaded: Any = ray.get(reference[0])  # pyright: ignore[reportAttributeAccessIssue]
        self._loaded.to(self._device)
        self._ask = ask

    def __call__(self, piece: Any) -> Any:
        """Put answers in the place of the lines; lines with an error keep it and get none."""
        lines: list[Line] = pickle.loads(piece.column("lines")[0].as_py())
        asked = [line.values for line in lines if line.values is not None]
        answers = iter(self._ask(self._loaded, asked, self._device) if asked else [])
        answered = [Answered(n, None if values is None else next(answers), error) for n, values, error in lines]
        return _table(piece.column("first")[0].as_py(), answered)


def _answered_pieces(
    loaded: Movable, ask: Ask, lines: Callable[[], Iterator[Line]], num_lines: int, name: str
) -> Iterator[tuple[int, list[Answered]]]:
    """Pieces with their answers, in order, and the number of the first line of each."""
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
            return [ReadTask(lambda: _pieces(lines), BlockMetadata(None, None, None, None))]

    resources = ray.cluster_resources()
    gpus, cpus = int(resources.get("GPU", 0)), resources.get("CPU", 1.0)
    wanted = math.ceil(num_lines / LINES_PER_PROCESS)
    size = max(1, min(wanted, gpus or int(cpus)))
    with _ordered_blocks():
        # The reader asks for no CPU: it waits more than it works, and the pool may have taken them all.
        dataset = ray.data.read_datasource(Pieces(), num_cpus=0, override_num_blocks=1)
        dataset = dataset.map_batches(
            Process,
            fn_constructor_args=([ray.put(loaded)], ask),  # in a list, so that Ray hands on the reference
            batch_size=1,  # a piece as it was cut: what is batched together does not depend on the pool
            batch_format="pyarrow",
            compute=ActorPoolStrategy(min_size=1, max_size=size, initial_size=size),
            num_cpus=0 if gpus else min(1.0, cpus),
            num_gpus=1 if gpus else 0,
        )
        dataset.set_name(name)
    batches: Any = dataset.iter_batches(batch_size=None, batch_format="pyarrow")
    for batch in batches:
        for first, answers in zip(batch.column("first").to_pylist(), batch.column("lines").to_pylist(), strict=True):
            yield first, pickle.loads(answers)


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
