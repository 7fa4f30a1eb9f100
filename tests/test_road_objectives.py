"""Replaced tokens through the command line: two ZeRO-3 workers, both exports, filling in."""

import json
import random
from functools import partial
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

SMALL = [
    "corpus.sources=corpus.txt", "corpus.held_out=0.1", "rows.length=32", "encoder.hidden_size=32",
    "encoder.num_attention_heads=2", "encoder.intermediate_size=64", "encoder.family=electra", "objective.name=rtd",
    "objective.generator_size=0.5", "masking.mask_share=1", "masking.random_share=0", "pretrain.micro_batch=4",
    "pretrain.steps=12", "pretrain.learning_rate=3e-3", "pretrain.eval_every_steps=null", "checkpoints.every_steps=12",
    "zero.stage=3", "zero.persistence_threshold=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder, draw = tmp_path_factory.mktemp("rtd"), random.Random(2)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog", "by", "its", "old", "red", "door"]
    texts = (" ".join(draw.choices(words, k=12)) for _ in range(240))
    (folder / "corpus.txt").write_text("\n\n".join(texts))
    return folder


@pytest.fixture(scope="module")
def run_cloze(cloze, home):
    return partial(cloze, cwd=home)


@pytest.mark.soak
def test_a_generator_and_a_discriminator_are_trained_exported(run_cloze, home):
    done = run_cloze("pretrain", "name=first", "tokenizer.vocab_size=55", *SMALL)
    assert done.returncode == 0, done.stderr
    run = home / "runs" / "first"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval_loss_after"] < summary["eval_loss_before"]
    assert {"eval_loss_mlm_after", "eval_loss_rtd_after", "eval_masked_accuracy_after"} <= summary.keys()
    discriminator = AutoModelForPreTraining.from_pretrained(run / "export")
    generator = AutoModelForMaskedLM.from_pretrained(run / "export" / "generator")
    assert (type(discriminator).__name__, type(generator).__name__) == ("ElectraForPreTraining", "ElectraForMaskedLM")
    ours, theirs = (model.get_input_embeddings().weight for model in (discriminator, generator))
    assert (ours == theirs).all() and generator.config.hidden_size == 16

    done = run_cloze("fill", "first", "the [MASK] sat on a mat", "--json")
    assert done.returncode == 0, done.stderr
    assert [len(guesses) for guesses in json.loads(done.stdout)] == [5]
