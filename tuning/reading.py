"""What the trials of a sweep read: tokens of a task's splits, made once for each tokenizer and way of reading, the
features of frozen encoders, and which training examples a trial of fewer has.

In: a task, encoders, the points that may come. Out: trials that know what they read by its fingerprint, and what
travels to them. Knows no results and no ray.tune.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data.config import UserError
from data.examples import TaskData
from model.config import Head
from orchestration.config import Config
from orchestration.progress import Update
from tuning.config import Finetune
from tuning.features import Request, cache_features, encoder_fingerprint, readings
from tuning.finetune import Goal, Part
from tuning.inputs import read_part, task_fingerprint
from tuning.space import Point, points
from tuning.trials import Trial

Key = tuple[Any, ...]  # what decides the tokens, or the cached features: Trial.reading, Trial.pooled


class Reading:
    """Of one task, by all encoders of a sweep."""

    def __init__(
        self, config: Config, task: TaskData, goal: Goal, encoders: Mapping[str, Path], tokenizers: Mapping[str, Path]
    ) -> None:
        """`encoders`: folders of weights by name; `tokenizers`: folders of their tokenizers."""
        self.parts: dict[Key, dict[str, Part]] = {}
        """Trial.reading -> "train" and "validation"."""
        self._config, self._goal, self._encoders = config, goal, encoders
        self._encoder_prints = {name: encoder_fingerprint(folder) for name, folder in encoders.items()}
        self._task_prints: dict[Key, str] = {}
        made: dict[Key, dict[str, Part]] = {}
        for trial in self.possible():
            if trial.reading in self.parts:
                continue
            key = (tokenizers[trial.encoder], *trial.reading[1:])
            if key not in made:
                settings = Finetune(**trial.finetune), Head(**trial.head)
                made[key] = {
                    split: read_part(getattr(task, split), task, goal, tokenizers[trial.encoder], *settings)
                    for split in ("train", "validation")
                }
            self.parts[trial.reading] = made[key]
        prints = {id(parts): task_fingerprint(parts, goal) for parts in made.values()}
        self._task_prints = {reading: prints[id(parts)] for reading, parts in self.parts.items()}

    def possible(self) -> list[Trial]:
        """A trial of every encoder and point that is known beforehand (tuning/space.py)."""
        found = points(self._config)
        return [self.trial(name, None, point, self._config.seed) for point in found for name in self._encoders]

    def trial(self, encoder: str, size: int | None, point: Point, seed: int) -> Trial:
        """One seed of a point on an encoder, with `size` training examples (None: all)."""
        finetune, head = point.config.finetune, point.config.head
        trial = Trial(
            id=f"{slug(encoder)}-{point.id}{'' if size is None else f'-n{size}'}-s{seed}",
            encoder=encoder,
            folder=str(self._encoders[encoder]),
            point=point.id,
            values=point.values,
            finetune=finetune.model_dump(mode="json"),
            head=head.model_dump(mode="json"),
            seed=seed,
            metric=self._goal.metric,
            inputs="",
            train_size=size,
        )
        inputs = f"{self._encoder_prints[encoder]}-{self._task_prints.get(trial.reading, '')}-{self._goal.metric}"
        workers = 1 if trial.pooled else self._config.sweep.asked(finetune.mode)[0]
        return replace(trial, inputs=inputs, workers=workers)

    def features(self, trials: Iterable[Trial], cache: Path, progress: Update, run: str) -> dict[Key, str | None]:
        """Folders of cached features for every trial that trains on them, computed where they are not there; None where
        they cannot be. `run` stands before the name of the execution."""
        wanted: dict[Key, dict[str, None]] = {}
        first: dict[Key, Trial] = {}
        for trial in trials:
            if trial.pooled is not None:
                wanted.setdefault(trial.reading, {})[trial.pooled[1]] = None
                first.setdefault(trial.reading, trial)
        requests = [
            Request(
                self._encoders[trial.encoder], self._encoder_prints[trial.encoder], readings(self.parts[reading]),
                tuple(wanted[reading]),
            )
            for reading, trial in first.items()
        ]  # fmt: skip
        _, cpus, gpus = self._config.sweep.asked("frozen")
        found = cache_features(requests, cache, cpus, gpus, progress, run)
        return {
            (reading, pooling): str(folders[pooling]) if pooling in folders else None
            for (reading, poolings), folders in zip(wanted.items(), found, strict=True)
            for pooling in poolings
        }


def slug(encoder: str) -> str:
    """A short name for folders: pretrained, random, or the folder's own name and a hash of its path."""
    if encoder in ("pretrained", "random"):
        return encoder
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(encoder).name).strip("-")[:24]
    return f"{name}-{hashlib.sha256(encoder.encode()).hexdigest()[:6]}"


def train_sizes(config: Config, total: int) -> list[int | None]:
    """The numbers of training examples of a sweep on a task of `total`, largest first; None stands for all of them.

    Raises UserError for a number that there is not.
    """
    asked = config.sweep.train_sizes or ("all",)
    if too_many := [size for size in asked if size != "all" and size > total]:
        raise UserError(
            f"sweep.train_sizes={list(asked)}: the task has {total} training examples, not {max(too_many)}; give "
            f"numbers up to {total}, or all"
        )
    sizes = {total if size == "all" else size for size in asked}
    return [None if size == total else size for size in sorted(sizes, reverse=True)]


def subsets(sizes: Sequence[int | None], total: int, seed: int) -> dict[int, np.ndarray]:
    """Numbers of the examples that a trial of so many trains on, ascending: the first of one shuffle, so that a smaller
    number's are among a larger one's."""
    order = np.random.default_rng(seed).permutation(total)
    return {size: np.sort(order[:size]) for size in sizes if size is not None}
