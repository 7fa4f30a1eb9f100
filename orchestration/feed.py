"""What a worker trains and evaluates on: the parts of its shard as micro-batches of tensors.

In: parts (data/batches.py), in the order of the stream. Out: per step its number and this rank's micro-batches.
Knows torch; where the parts come from is orchestration/stream.py.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.batches import Part, micro_batches, steps_of
from orchestration.steps import Batch, Step


@dataclass(frozen=True)
class Feed:
    """How this rank's parts become micro-batches."""

    rank: int
    seed: int
    micro_batch: int
    accumulation: int
    """Micro-batches per step."""
    pad_id: int
    dump_folder: Path | None = None

    def steps(
        self, parts: Iterable[Part], step: int, read: Callable[[np.ndarray, int], None], at: Callable[[str, int], None]
    ) -> Iterator[Step]:
        """Each step, `step` first. Raises RuntimeError where it is another one.

        `read` is told the lengths of the rows and the positions they take; `at` each step that begins.
        """
        for part in parts:
            if part.first_step != step:
                raise RuntimeError(f"the stream brought step {part.first_step} where {step} was due")
            for step, rows in steps_of(part):
                at("reading", step)
                seed_dropout(self.seed, step, self.rank)
                batches = micro_batches(part, rows, self.micro_batch, self.accumulation, self.pad_id)
                read(part.lengths[rows], sum(batch["input_ids"].size for batch in batches))
                if self.dump_folder:
                    dump(self.dump_folder, part, rows, self.micro_batch)
                yield Step(step, tensors(batches), part.row_ids[rows].tolist())
            step = part.last_step

    def evaluation(self, parts: Iterable[Part]) -> Iterator[Batch]:
        """This rank's held-out batches; every rank has the same number."""
        for part in parts:
            for _, rows in steps_of(part):
                yield from tensors(micro_batches(part, rows, self.micro_batch, 1, self.pad_id))


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Dropout is keyed by (seed, step, rank): what a step drops depends on no step before it.

    Not by torch.manual_seed: where CUDA is not in use it notes from where it was called, 2 ms at every step.
    """
    key = int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)


def tensors(batches: list[dict[str, Any]]) -> list[Batch]:
    """Arrays to torch tensors, without a copy."""
    return [{key: torch.from_numpy(array) for key, array in batch.items()} for batch in batches]


def dump(folder: Path, part: Part, rows: Any, micro_batch: int) -> None:
    """Append one step's rows as trained: one JSON object a micro-batch, padding and filler rows left out."""
    with (folder / f"rank{part.rank}.jsonl").open("a", encoding="utf-8") as file:
        for begin in range(0, len(rows), micro_batch):
            chosen = rows[begin : begin + micro_batch]
            line = {"step": int(part.step[chosen[0]]), "row_ids": part.row_ids[chosen].tolist()}
            for name, values in (("input_ids", part.input_ids), ("labels", part.labels)):
                line[name] = [values[row, : part.lengths[row]].tolist() for row in chosen]
            file.write(json.dumps(line) + "\n")
