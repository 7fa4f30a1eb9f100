"""GPUs asked of Ray are held while training and trials run, in the numbers and fractions that were asked.

Ray's logical GPUs stand for real ones: who gets how many is Ray's bookkeeping, and torch then computes on the CPU.
"""

import os
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.road, pytest.mark.timeout(300)]

ENCODER = [
    "tokenizer.vocab_size=60", "rows.length=32", "corpus.held_out=0.1", "encoder.hidden_size=16",
    "encoder.num_attention_heads=2", "encoder.intermediate_size=32",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpus")
    (folder / "corpus.txt").write_text("\n\n".join(f"doc{n:03d} the cat saw the dog" for n in range(100)))
    lines = [f"{'cat' if n % 2 else 'dog'} number {n},{'cat' if n % 2 else 'dog'}" for n in range(64)]
    (folder / "task.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    return folder


def gpus_held(words, home, address) -> list[float]:
    """Run the command line and return the numbers of GPUs that were taken meanwhile, each change."""
    import ray

    process = subprocess.Popen(
        [sys.executable, "-m", "orchestration", *words], cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "RAY_ADDRESS": address},
    )  # fmt: skip
    held = [0.0]
    while process.poll() is None:
        taken = 8 - ray.available_resources().get("GPU", 0)
        if taken != held[-1]:
            held.append(taken)
        time.sleep(0.02)
    assert process.returncode == 0, process.stderr.read()
    return held


@pytest.fixture(scope="module")
def pretrained(home, ray_4_cpus) -> list[float]:
    """A run with three workers; the GPUs that were held in its course."""
    words = [
        "pretrain", "name=g", "corpus.sources=corpus.txt", *ENCODER, "pretrain.steps=20", "scaling.workers=3",
        "scaling.gpus_per_worker=2",
    ]  # fmt: skip
    return gpus_held(words, home, ray_4_cpus)


def test_workers_hold_the_gpus_they_asked_for(pretrained):
    assert max(pretrained) == 6


@pytest.mark.soak
def test_trials_share_gpus_in_fractions(pretrained, home, ray_4_cpus):
    words = [
        "sweep", "name=g", "task.train=task.csv", "task.validation=task.csv", "finetune.length=16",
        "sweep.space={finetune.mode: [full], finetune.learning_rate: [1e-3, 3e-3]}", "sweep.seeds=2",
        "finetune.epochs=8", "sweep.cpus_per_trial=0.5", "sweep.gpus_per_trial=0.25",
    ]  # fmt: skip
    held = gpus_held(words, home, ray_4_cpus)
    assert all((4 * gpus).is_integer() for gpus in held), held
    assert 2 * 0.25 <= max(held) <= 8 * 0.25, "at least two at once, and no more than the CPUs hold"
