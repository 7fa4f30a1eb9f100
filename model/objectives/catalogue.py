"""From the config's name of an objective to its module, with the models it trains.

In: objective and encoder sections, what the tokenizer is, a seed. Out: the module, and a report where a folder brought
weights. Knows torch and transformers only.
"""

from model.config import Encoder, Objective
from model.encoder import Report, Tokenizer, build_encoder
from model.objectives.contract import PretrainingObjective
from model.objectives.masked import MaskedLM


def build_objective(
    objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int
) -> tuple[PretrainingObjective, Report | None]:
    """The module that config names, in fp32 on the CPU. Raises ValueError as model.encoder.build_encoder does."""
    model, report = build_encoder(encoder, tokenizer, seed)
    return {"mlm": MaskedLM}[objective.name](model), report


def check_objective(objective: Objective, encoder: Encoder) -> None:
    """Raise ValueError, one line, where the family cannot do what the objective asks."""
