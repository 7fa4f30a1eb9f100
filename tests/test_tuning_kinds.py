"""A sweep on files of every kind of head: the task is read, a trial learns it, best/ answers as the trial did."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_encoder import write_encoder

from model.heads.loading import load_head
from orchestration.predict import NO_FIELDS, columns_of
from orchestration.recipe import build_config
from tuning.sweep import sweep

DRAW = random.Random(3)


def some(words: range, least: int, most: int) -> list[str]:
    return [f"w{DRAW.choice(words)}" for _ in range(DRAW.randint(least, most))]


def pair() -> dict[str, Any]:
    """The second text tells: is it of w0 ... w9 or of w10 ... w19? The first one is of others."""
    start = DRAW.choice((0, 10))
    first, second = (" ".join(some(words, 2, 5)) for words in (range(20, 50), range(start, start + 10)))
    return {"text": first, "text_pair": second, "label": "low" if start == 0 else "high"}


def several() -> dict[str, Any]:
    """One label for each tenth of the vocabulary that occurs."""
    words = some(range(30), 1, 3)
    return {"text": " ".join(words), "label": sorted({f"t{int(word[1:]) // 10}" for word in words})}


def number() -> dict[str, Any]:
    """How many words are below w10."""
    words = some(range(20), 2, 8)
    return {"text": " ".join(words), "label": sum(int(word[1:]) < 10 for word in words)}


def tagged() -> dict[str, Any]:
    """w0 ... w9 are names: B at the first of a run of them, I behind it. Longer than a row: read in windows."""
    words = some(range(30), 4, 30)
    inside = [int(word[1:]) < 10 for word in words]
    tags = ["O" if not here else "I-N" if k and inside[k - 1] else "B-N" for k, here in enumerate(inside)]
    return {"text": words, "label": tags}


def choice() -> dict[str, Any]:
    """What goes on from a text has the same word."""
    right, places = DRAW.randrange(3), DRAW.sample(range(30), 3)
    options = {name: f"w{place} w40" for name, place in zip("abc", places, strict=True)}
    return {"text": f"w{places[right]}", **options, "label": right}


def found() -> dict[str, Any]:
    """A query and its passage share their words."""
    words = DRAW.sample(range(50), 3)
    return {"text": " ".join(f"w{w}" for w in words), "passage": " ".join(f"w{w}" for w in reversed(words))}


def alike() -> dict[str, Any]:
    """Do two texts share their words?"""
    one, other = found(), found()
    same = DRAW.random() < 0.5
    return {"text": one["text"], "passage": (one if same else other)["passage"], "label": "same" if same else "other"}


def near() -> dict[str, Any]:
    """The same as a number."""
    pair = alike()
    return {"text": pair["text"], "passage": pair["passage"], "cosine": 1.0 if pair["label"] == "same" else 0.0}


def question() -> dict[str, Any]:
    """Which of w0 ... w9 stands in the text?"""
    answer = f"w{DRAW.randrange(10)}"
    words = some(range(20, 50), 10, 30)
    words.insert(DRAW.randrange(len(words)), answer)
    context = " ".join(words)
    asked = {"question": "w55", "id": context, "answers": [{"text": answer, "answer_start": context.index(answer)}]}
    return {"context": context, "qas": [asked]}


# kind -> examples, what the config says beside, the least score
KINDS: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], float]] = {
    "classification": (pair, {"head.pooling": "mean", "head.layers": "mlp"}, 0.8),
    "multi_label": (several, {"finetune.mode": "top_k", "finetune.top_k": 1}, 0.7),
    "regression": (number, {"head.pooling": "mean", "finetune.layerwise_lr_decay": 0.9}, 0.5),
    "tagging": (tagged, {"head.crf": True, "finetune.stride": 4}, 0.5),
    "multiple_choice": (choice, {"task.choices": ["a", "b", "c"]}, 0.34),
    "embedding": (found, {"head.pooling": "mean", "finetune.mode": "lora"}, 0.3),
    "embedding, softmax": (alike, {"head.pooling": "mean", "head.loss": "softmax", "task.text_pair": "passage"}, 0.7),
    "embedding, cosine": (
        near, {"head.pooling": "mean", "head.loss": "cosine", "task.text_pair": "passage", "task.label": "cosine"}, 0.4,
    ),
    "answering": (question, {"finetune.stride": 4}, 0.5),
}
TOLD = ("regression", "embedding")  # whole numbers up to 8 could be classes, pairs without labels anything; else found


def write(folder: Path, kind: str, part: str, examples: list[dict[str, Any]]) -> str:
    """As JSON lines, or SQuAD's JSON."""
    path = folder / f"{part}.{'json' if kind == 'answering' else 'jsonl'}"
    if kind == "answering":
        path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": examples}]}))
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in examples))
    return str(path)


FAST = ("classification", "answering")  # labels, and windows with answers; the others are of the soak


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.soak) for kind in KINDS]
)
def test_a_sweep_learns_the_kind_and_hands_over_its_head(kind: str, ray_4_cpus, tmp_path) -> None:
    make, more, least = KINDS[kind]
    kind = kind.partition(",")[0]
    DRAW.seed(5)
    encoder = write_encoder(tmp_path / "encoder", width=32)
    files = {f"task.{part}": write(tmp_path, kind, part, [make() for _ in range(size)])
             for part, size in (("train", 160), ("validation", 40), ("test", 40))}  # fmt: skip
    settings = {
        "finetune.learning_rate": 3e-3, "finetune.epochs": 6, "finetune.global_batch": 16, "finetune.length": 16,
    }  # fmt: skip
    config = build_config({"name": "kind", "storage": str(tmp_path)}, {
        **files, **settings, "head.kind": kind if kind in TOLD else None, "sweep.encoders": [str(encoder)],
        "sweep.space": {"finetune.epochs": 6}, "sweep.seeds": 1, "finetune.epochs": 3, **more,
    })  # fmt: skip
    said: list[str] = []
    entries = sweep(config, tmp_path / "kind-sweep", lambda text, *_, **__: None, tell=said.append)
    assert entries[0]["status"] == "done", entries[0]["error"]
    assert any(note.startswith(f"kind {kind}, found from ") for note in said) is (kind not in TOLD)
    assert entries[0]["score_mean"] > least and entries[0]["test_score"] > 0.8 * least, (entries[0], said)
    module, about = load_head(tmp_path / "kind-sweep" / "best")
    assert (about.kind, about.length, about.stride) == (kind, 16, config.finetune.stride)
    more = {"classification": ("text_pair",), "embedding": ("passage",), "multiple_choice": ("a", "b", "c")}
    assert about.columns == (() if kind == "answering" else ("text", *more.get(kind, ())))
    assert columns_of(about, NO_FIELDS) == (about.columns or ("question", "context"))
    assert not module.training and about.head.pooling == config.head.pooling
    card = (tmp_path / "kind-sweep" / "best" / "README.md").read_text()
    assert "## Recipe" in card and "data fingerprint" in card
