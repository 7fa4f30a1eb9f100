"""What a checkpoint costs training: its stall, the work beside it, and the share of the time at the default cadence.

    make bench BENCH=checkpoint ARGS="[FOLDER]"

Two ranks over gloo train, at ZeRO stage 1, a tiny BERT and one of 30 million parameters into FOLDER (a temporary one,
if none is given). Stall: seconds that `Saver.save` holds a rank. Beside: seconds from there until the checkpoint
counts. Share: stall over the time of checkpoints.every_steps steps. Then: GB/s of hashing, of one thread and of two.
"""

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from training_ranks import OWNER, in_ranks

from data.batches import Part, micro_batches
from model.config import Encoder
from model.encoder import build_encoder
from model.objectives.masked import MaskedLM
from orchestration import checkpoint
from orchestration.config import Checkpoints
from orchestration.engine import DeepSpeedEngine
from orchestration.pacer import Pacer
from orchestration.resuming import Beginning
from orchestration.saving import Saver
from orchestration.steps import train_steps

ROWS, LENGTH, STEPS, EVERY = 4, 64, 13, 4
SIZES = {
    "tiny": (Encoder(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64), 200),
    "30M": (Encoder(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048), 8192),
}


def rows(step: int, vocabulary: int, rank: int) -> list[dict[str, torch.Tensor]]:
    draw = np.random.default_rng(step)
    ids = draw.integers(5, vocabulary, (ROWS, LENGTH)).astype(np.int32)
    labels = np.where(draw.random(ids.shape) < 0.15, ids, -100).astype(np.int32)
    lengths = np.full(ROWS, LENGTH, np.int32)
    part = Part(False, step, step + 1, 0, 0, np.full(ROWS, step), np.arange(ROWS), lengths, ids, labels)
    arrays = micro_batches(part, np.arange(ROWS)[rank::2], ROWS // 2, 1, pad_id=0)
    return [{key: torch.from_numpy(value) for key, value in batch.items()} for batch in arrays]


def train(pacer: Any, size: str, group: int, folder: str) -> dict[str, Any]:
    """Seconds of steps with and without a save beside them, of stalls, and of the work beside."""
    import torch.distributed as dist

    encoder, vocabulary = SIZES[size]
    model = build_encoder(encoder, {"vocab_size": vocabulary, "pad_id": 0}, seed=0)[0]
    engine = DeepSpeedEngine(
        MaskedLM(model), stage=1, micro_batch=ROWS // 2, accumulation=1, weight_decay=0.01, gradient_clipping=1.0,
        persistence_threshold=0, device="cpu",
    )  # fmt: skip
    run = Path(folder) / size
    saver = Saver(
        run, Checkpoints(), engine, rank=dist.get_rank(), ranks=2, pacer=pacer, group=group,
        lease=None, beginning=Beginning(0, None, float("inf")), owner=OWNER,
        made_by={"zero_stage": 1, "precision": "fp32"},
    )  # fmt: skip
    steps = ((step, rows(step, vocabulary, dist.get_rank())) for step in range(STEPS))
    alone, beside, stalls = [], [], []
    begun, saves = time.perf_counter(), False
    for record in train_steps(engine, steps, lambda step: 1e-4):
        seconds = time.perf_counter() - begun
        if record.step:  # the first one warms up
            (beside if saves else alone).append(seconds)
        if (record.step + 1) % EVERY == 0:
            before = saver.stall_seconds
            saver.save(record.step + 1, None, {})
            stalls.append(saver.stall_seconds - before)
        begun, saves = time.perf_counter(), saver._thread is not None and saver._thread.is_alive()
    saver.finish()
    _, manifest, _ = checkpoint.newest(run, OWNER)
    assert manifest is not None
    return {
        "parameters": sum(p.numel() for p in engine.module.parameters()),
        "bytes": sum(file["bytes"] for file in manifest["files"].values()),
        "alone": alone, "beside": beside, "stalls": stalls, "beside_save": saver.beside_seconds / len(stalls),
    }  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[1] if len(sys.argv) > 1 else temporary
        context = ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        pacer = Pacer.options(name="pacer-of-tests", namespace="tests").remote()
        every = Checkpoints().every_steps
        for size in SIZES:
            group = ray.get(pacer.open.remote(0))
            told = in_ranks(train, size, group, folder, address=context.address_info["gcs_address"], seconds=900)[0]
            step, stall = float(np.median(told["alone"])), float(np.median(told["stalls"]))
            print(
                f"{size:5} {told['parameters'] / 1e6:6.2f}M parameters  {told['bytes'] / 1e6:8.1f} MB a checkpoint  "
                f"step {step:.3f} s (beside a save: {[round(s, 2) for s in told['beside']]})  stall {stall:.3f} s "
                f"{[round(s, 3) for s in told['stalls']]}  beside {told['beside_save']:.2f} s  "
                f"share at every {every} steps {stall / (every * step):.2%}"
            )
        ray.shutdown()
        files = []
        for number in range(2):
            files.append(Path(temporary) / f"{number}.bin")
            files[-1].write_bytes(np.random.default_rng(number).bytes(2**29))
        for threads in (1, 2):
            begun = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(checkpoint.digest, files))
            print(f"hashing, {threads} thread(s): {2 * 2**29 / 1e9 / (time.perf_counter() - begun):.2f} GB/s")


if __name__ == "__main__":
    main()
