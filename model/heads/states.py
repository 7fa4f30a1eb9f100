"""What a frozen encoder makes of rows, for heads that are trained on it later.

In: a Hugging Face folder, rows. Out: the encoder alone, and hidden states, pooled or of all tokens. Knows torch and
transformers only.

Letters of shapes: R rows, T tokens, D width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from model.encoder import check_folder, class_of, load_weights
from model.families import family_of
from model.heads.native import pool
from model.objectives.contract import Batch
from model.objectives.masked import encoder_inputs
from model.quiet import quiet_transformers


def open_encoder(folder: Path | str) -> Any:
    """The encoder of a folder, in fp32 on the CPU and in evaluation mode, without a pooler, which belongs to heads.

    Raises ValueError where it is not whole.
    """
    config = check_folder(folder)
    family = family_of(config)
    with quiet_transformers():
        encoder, _ = load_weights(class_of(family, "Model"), folder, config)
    if family.pooler:
        setattr(encoder, family.pooler, None)
    return encoder.eval()


def pooled_states(encoder: Any, batch: Batch, poolings: Sequence[str]) -> dict[str, Tensor]:
    """Rows (R, T) -> by pooling their hidden states (R, D), or of "tokens" those of all attended tokens, one row after
    the other, (sum of lengths, D)."""
    hidden = encoder(**encoder_inputs(encoder, batch)).last_hidden_state
    mask = batch["attention_mask"]
    return {one: hidden[mask.bool()] if one == "tokens" else pool(hidden, mask, one) for one in poolings}
