"""A pretrained encoder and a sentence with [MASK] in it -> what the encoder would write there; no Ray is needed.

    fill("runs/demo/export", "The [MASK] sat on the mat", top=3)

In: a folder of a masked language model, or of a run's export. Out: for each mask its likeliest tokens with their
probabilities (model/blanks.py).
"""

from pathlib import Path

import yaml

from data.config import UserError
from model.blanks import Guess, check_filler, fill_masks, kind_of, load_filler
from model.opening import read_json
from orchestration.places import blaming

GENERATOR = "generator"  # stands inside the export of replaced-token detection, whose encoder itself guesses no tokens


CAUSAL = "clm"


def check(model: Path, text: str, pickled: bool = False) -> Path:
    """What files alone tell, in a moment; returns the folder of the model that answers.

    Raises UserError: the text has no mask, the folder is no model's.
    """
    if not text.strip():
        raise UserError("fill: the text is blank; give a sentence with [MASK] in it")
    with blaming(model):
        inner = model / GENERATOR
        config = read_json(model, "config.json") or {}
        if (inner / "config.json").is_file() and "ForMaskedLM" not in kind_of(config):
            model = inner
        check_filler(model, pickled)
        if _objective_of(model) == CAUSAL:
            raise ValueError("trained from left to right (objective clm), it fills no gaps; give a run with masks")
    return model


def _objective_of(export: Path) -> str | None:
    """The objective of the run whose export this is; None where no run's config stands beside it."""
    config = export.parent / "config.yaml"
    try:
        told = yaml.safe_load(config.read_text(encoding="utf-8")) if export.name == "export" else None
    except (OSError, ValueError, yaml.YAMLError):  # somebody else's file
        return None
    objective = told.get("objective") if isinstance(told, dict) else None
    return objective.get("name") if isinstance(objective, dict) else None


def fill(model: Path | str, text: str, top: int = 5, pickled: bool = False) -> list[list[Guess]]:
    """The `top` likeliest tokens at each mask of `text`, likeliest first.

    A mask is written [MASK] or <mask>, or as the tokenizer calls it. `model`: the folder; where another, with a
    generator, lies in it and the folder is no masked language model, the generator answers. `pickled`: open pickled
    weights, which can run code. Raises UserError: no mask in the text, a folder that is no masked language model.
    """
    folder = check(Path(model), text, pickled)
    with blaming(folder):
        filler = load_filler(folder, pickled)
    try:
        return fill_masks(filler, text, top)
    except ValueError as error:
        raise UserError(f"fill: {error}") from None
