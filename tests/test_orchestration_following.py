"""What the driver shows of a run that trains: the newest of all that the pacer was told, to the end."""

from typing import Any

import pytest
import ray

from orchestration.following import following
from orchestration.pacer import Pacer
from orchestration.recipe import build_config

STEP = {"loss": 2.5, "tokens_per_second": 100.0}


@pytest.fixture
def pacer(ray_4_cpus):
    actor = Pacer.remote()
    ray.get(actor.open.remote(0, 2))
    yield actor
    ray.kill(actor)


def test_the_last_word_is_shown_and_an_evaluation_is_not_missed_between_two_looks(pacer):
    """Steps follow an evaluation within milliseconds, and a run that is stopped ends before the next look."""
    shown: dict[str, Any] = {}

    def update(text: str, fraction: float | None = None, **facts: Any) -> None:
        shown.update(facts, text=text, fraction=fraction)

    with following(pacer, build_config({"name": "x", "pretrain": {"steps": 200}}, {}), update):
        for record in (
            {"step": 50, "eval_loss": 4.5}, {"step": 50, **STEP},
            {"step": 100, "eval_loss": 3.5}, {"step": 100, **STEP}, {"step": 101, **STEP},
        ):  # fmt: skip
            ray.get(pacer.begin.remote(record["step"], record))
        ray.get(pacer.warn.remote("a save failed, training goes on: the disk is full"))
    assert (shown["eval_loss"], shown["step"], shown["loss"], shown["workers"]) == (3.5, 102, 2.5, 2)
    assert shown["warning"].startswith("a save failed") and shown["fraction"] == pytest.approx(101 / 200)
    assert shown["text"].startswith("step 102/200  loss 2.500")
