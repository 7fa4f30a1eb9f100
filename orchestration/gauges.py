"""Metrics for Prometheus, from the processes that do the work: `cloze_*` through Ray's own endpoints.

In: a worker's steps, saves and evaluations; a sweep's trials. Out: gauges and a counter, labelled by run, and by rank
or trial where these differ. What is equal on all ranks is told by rank 0 alone. Ray collects every 10 seconds, so
values are means over PUBLISH_SECONDS, and a step costs a few additions.
Knows no files, and torch only to ask the devices.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch
import torch.distributed as dist
from ray.util.metrics import Counter, Gauge

from model.flops import peak_flops

PUBLISH_SECONDS = 2.0
TELL_SECONDS = 1.0

# name -> (labels beside run, what it is). Ray puts `ray_` before a name and `_total` behind a counter's.
METRICS: dict[str, tuple[tuple[str, ...], str]] = {
    "cloze_step_seconds": (("rank",), "seconds of an optimizer step"),
    "cloze_data_wait_fraction": (("rank",), "share of that time spent waiting for rows"),
    "cloze_memory_bytes": (("rank", "device"), "memory: of the process (device=cpu), largest so far on its GPU (cuda)"),
    "cloze_step": ((), "optimizer steps done"),
    "cloze_loss": ((), "training loss"),
    "cloze_learning_rate": ((), "learning rate"),
    "cloze_gradient_norm": ((), "gradient norm before clipping"),
    "cloze_eval_loss": ((), "held-out loss"),
    "cloze_eval_accuracy": ((), "held-out accuracy at the masked positions"),
    "cloze_tokens": ((), "tokens trained on, padding left out (a counter)"),
    "cloze_tokens_per_second": ((), "tokens trained on per second"),
    "cloze_flops_utilisation": (("peak",), "model FLOPs utilisation; peak=published or measured at the start"),
    "cloze_padding_fraction": ((), "share of the positions computed that hold no token, on rank 0"),
    "cloze_checkpoint_seconds": ((), "seconds of the last checkpoint"),
    "cloze_eta_seconds": ((), "seconds left"),
    "cloze_restarts": ((), "restarts of the worker group after a failure"),
    "cloze_workers": ((), "workers that train now"),
    "cloze_skipped_steps": ((), "steps skipped since the last start: loss or gradient was no finite number"),
    "cloze_trials": (("state",), "trials of a sweep: waiting, running, done, stopped, failed, nan"),
    "cloze_best_score": ((), "mean score of the leading point so far"),
    "cloze_trial_score": (("trial",), "score of a trial's last epoch"),
}
COUNTERS = {"cloze_tokens"}


class Metrics:
    """The metrics of one process. Ray forgets a gauge that is not set for two of its collections (20 s), so between
    `start` and `stop` a thread tells every value again and again: one is set as rarely as it changes.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._made: dict[str, Any] = {}
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._stop = threading.Event()

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge, or add to a counter."""
        if name in COUNTERS:
            self._tell(name, value, labels)
        else:
            self._values[name, tuple(labels.items())] = value

    def start(self) -> None:
        """Tell from now on."""
        threading.Thread(target=self._tell_again, daemon=True, name="cloze-metrics").start()

    def stop(self) -> None:
        """Tell no more."""
        self._stop.set()

    def _tell_again(self) -> None:
        while not self._stop.wait(TELL_SECONDS):
            for (name, labels), value in list(self._values.items()):
                self._tell(name, value, dict(labels))

    def _tell(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        if name not in self._made:
            also, text = METRICS[name]
            kind = Counter if name in COUNTERS else Gauge
            self._made[name] = kind(name, text, tag_keys=("run", *also))
        tags = {"run": self._run, **labels}
        if name not in COUNTERS:
            self._made[name].set(value, tags)
        elif value > 0:
            self._made[name].inc(value, tags)


class WorkerGauges:
    """What one rank tells while it trains.

    `flops(tokens, targets by term, row_tokens)`: operations of that much work; `peak`: what `group_peak` returned.
    """

    def __init__(
        self,
        run: str,
        rank: int,
        restarts: int,
        flops: Callable[[float, Mapping[str, float], float], float],
        peak: tuple[float, str],
        device: torch.device,
    ) -> None:
        self._metrics = Metrics(run)
        self._rank = str(rank)
        self._flops, self._peak = flops, peak
        self._device = device
        self._process = psutil.Process()
        self._first: tuple[float, float] | None = None
        self._skipped = 0
        self._clear()
        if rank == 0:
            self._metrics.set("cloze_restarts", restarts)
            self._metrics.set("cloze_workers", dist.get_world_size() if dist.is_initialized() else 1)
        self._metrics.start()  # until the process ends

    def _clear(self) -> None:
        self._published = time.monotonic()
        self._laps = 0
        self._seconds = self._waited = 0.0
        self._tokens, self._targets = 0.0, dict[str, float]()
        self._rows = self._row_tokens = self._positions = 0

    def read(self, lengths: Any, positions: int) -> None:
        """This rank's rows of a step: their lengths, and the positions that its micro-batches hold."""
        self._rows += len(lengths)
        self._row_tokens += int(lengths.sum())
        self._positions += positions

    def step(self, record: Any, seconds: float, waited_seconds: float, share: float) -> None:
        """A step that took so long, part of it waiting for rows; the run is done to `share` of its steps or budget."""
        self._laps += 1
        self._seconds += seconds
        self._waited += waited_seconds
        self._tokens += record.metrics["tokens"]
        self._skipped += record.skipped
        for term, count in record.counts.items():
            self._targets[term] = self._targets.get(term, 0.0) + count
        now = time.monotonic()
        if self._first is None:
            self._first = now, share
        elif now - self._published >= PUBLISH_SECONDS or share >= 1:
            self._publish(record, now, share)

    def _publish(self, record: Any, now: float, share: float) -> None:
        tell, seconds = self._metrics.set, max(self._seconds, 1e-9)
        tell("cloze_step_seconds", seconds / self._laps, rank=self._rank)
        tell("cloze_data_wait_fraction", self._waited / seconds, rank=self._rank)
        tell("cloze_memory_bytes", self._process.memory_info().rss, rank=self._rank, device="cpu")
        if self._device.type == "cuda":
            used = torch.cuda.max_memory_allocated(self._device)
            tell("cloze_memory_bytes", used, rank=self._rank, device="cuda")
        if self._rank == "0" and self._first is not None:
            begun, first = self._first
            tell("cloze_step", record.step + 1)
            tell("cloze_loss", record.loss)
            tell("cloze_learning_rate", record.learning_rate)
            tell("cloze_gradient_norm", record.gradient_norm)
            tell("cloze_skipped_steps", self._skipped)
            tell("cloze_tokens", self._tokens)
            tell("cloze_tokens_per_second", self._tokens / seconds)
            if self._rows:
                flops = self._flops(self._tokens, self._targets, self._row_tokens / self._rows)
                tell("cloze_flops_utilisation", flops / seconds / self._peak[0], peak=self._peak[1])
                tell("cloze_padding_fraction", 1 - self._row_tokens / self._positions)
            # Saves and evaluations included, as they were so far.
            if share > first:
                tell("cloze_eta_seconds", (now - begun) * (1 - share) / (share - first))
        self._clear()

    def checkpoint(self, seconds: float) -> None:
        """A save that took so long; ranks wait for one another in it."""
        if self._rank == "0":
            self._metrics.set("cloze_checkpoint_seconds", seconds)

    def evaluation(self, scores: Mapping[str, float]) -> None:
        """Sums over held-out rows."""
        if self._rank == "0":
            self._metrics.set("cloze_eval_loss", scores["loss"])
            if "accuracy" in scores:
                self._metrics.set("cloze_eval_accuracy", scores["accuracy"])


def group_peak(device: torch.device, bf16: bool, gpus_per_worker: float) -> tuple[float, str]:
    """(operations per second of all ranks together, "published" or "measured"). Every rank must call it.

    Ranks that share a GPU share its peak.
    """
    peak, measured = peak_flops(device, bf16)
    share = min(1.0, gpus_per_worker) if device.type == "cuda" else 1.0
    total = torch.tensor([peak * share, float(measured)], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return float(total[0]), "measured" if total[1] else "published"
