"""From the config's name of an objective to its module, with the models it trains.

In: objective and encoder sections, what the tokenizer is, a seed. Out: the module, and a report where a folder brought
weights. Knows torch and transformers only.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from model.config import Encoder, Objective
from model.encoder import Report, Tokenizer, build_encoder, check_folder
from model.families import FAMILIES, Family, family_of
from model.objectives.causal import CausalLM
from model.objectives.contract import PretrainingObjective
from model.objectives.generators import build_replaced, check_replaced
from model.objectives.masked import MaskedLM
from model.objectives.pairs import PairedLM
from model.objectives.spans import SpanLM
from model.objectives.students import build_distillation, check_distillation

Built = tuple[PretrainingObjective, Report | None]


class Entry(NamedTuple):
    """How an objective is built, and what is asked before."""

    build: Callable[[Objective, Encoder, Tokenizer, int], Built]
    check: Callable[[Objective, Encoder], None]


def build_objective(objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int) -> Built:
    """The module that config names, in fp32 on the CPU, with weights of encoder.init or drawn from `seed`.

    Raises ValueError, one line, as check_objective and model.encoder.build_encoder do.
    """
    check_objective(objective, encoder)
    with torch.random.fork_rng(devices=[]):  # the caller keeps its random state
        return CATALOGUE[objective.name].build(objective, encoder, tokenizer, seed)


def check_objective(objective: Objective, encoder: Encoder) -> None:
    """Raise ValueError, one line, where the family cannot do what the objective asks, or a folder is none of a model.

    Reads configs, no weights. Folders are paths of this machine.
    """
    if encoder.init is not None:
        try:
            check_folder(encoder.init, encoder.pickled)
        except ValueError as error:
            raise ValueError(f"encoder.init={error}") from None
    CATALOGUE[objective.name].check(objective, encoder)


def _masked(objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int) -> Built:
    model, report = build_encoder(encoder, tokenizer, seed)
    return MaskedLM(model), report


def _causal(objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int) -> Built:
    model, report = build_encoder(encoder, tokenizer, seed)
    return CausalLM(model), report


def _spans(objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int) -> Built:
    model, report = build_encoder(encoder, tokenizer, seed)
    module = SpanLM(model, seed)
    if report is not None:  # no folder holds the boundary decoder: it is left out at export
        boundary = tuple(f"boundary.{name}" for name in module.boundary.state_dict() if name != "output.weight")
        report = report._replace(new=(*report.new, *boundary))
    return module, report


def _pairs(term: str, objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int) -> Built:
    model, report = build_encoder(encoder, tokenizer, seed, "PreTraining")
    return PairedLM(model, term), report


def _check_nothing(objective: Objective, encoder: Encoder) -> None:
    """Every family can."""


def _check_causal(objective: Objective, encoder: Encoder) -> None:
    _check(objective, encoder, lambda family: family.packs, "hide later tokens from its attention")


def _check_pairs(objective: Objective, encoder: Encoder) -> None:
    _check(objective, encoder, lambda family: objective.name in family.pair_objectives, "judge pairs of segments")


def _check(objective: Objective, encoder: Encoder, able: Callable[[Family], bool], what: str) -> None:
    """Raise ValueError where the encoder's family is not `able`."""
    family = FAMILIES[encoder.family]
    if encoder.init is not None:
        family = family_of(check_folder(encoder.init, encoder.pickled))
    if not able(family):
        others = ", ".join(name for name, one in FAMILIES.items() if able(one))
        raise ValueError(
            f"objective.name={objective.name}: {family.prefix} encoders cannot {what}; give objective.name=mlm, or an "
            f"encoder.family that can: {others}"
        )


CATALOGUE = {
    "mlm": Entry(_masked, _check_nothing),
    "mlm_nsp": Entry(partial(_pairs, "nsp"), _check_pairs),
    "mlm_sop": Entry(partial(_pairs, "sop"), _check_pairs),
    "mlm_sbo": Entry(_spans, _check_nothing),
    "rtd": Entry(build_replaced, check_replaced),
    "distillation": Entry(build_distillation, check_distillation),
    "clm": Entry(_causal, _check_causal),
}
