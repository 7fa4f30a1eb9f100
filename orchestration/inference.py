"""A head in memory and examples -> what the head puts out, batched so that little is padded.

In: a head's module and description, a tokenizer's reader, examples as a model reads them (data/alignment.py). Out:
numpy arrays for data/decoding.py. Goes through Ray's object store as it is; knows nothing of Ray.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from data.alignment import encode_examples
from data.budget import budgeted
from data.examples import Encoded, Examples
from data.reader import Reader, open_reader
from data.schemes import detect_scheme
from model.families import reads_segments
from model.heads.contract import HeadModule
from model.heads.description import FILE, Description
from model.objectives.contract import Batch

MICRO_BATCH_TOKENS = 8192  # rows x longest row: 64 rows of 128 tokens, and 20 MB of a BERT-base's activations a layer


@dataclass(frozen=True)
class Loaded:
    """A head with all that is needed to ask it."""

    module: HeadModule
    about: Description
    reader: Reader
    prefix: str = ""
    """embedding of single texts: put before each."""

    def to(self, device: str) -> "Loaded":
        """Move the module, in place."""
        self.module.to(device)
        return self

    def read(self, examples: Examples) -> Encoded:
        """Examples as the module reads them: cut, or in windows, as its folder tells."""
        head, pairs = self.about.head, examples.pairs is not None
        return encode_examples(
            examples, self.about.labels, self.reader, self.about.length, self.about.stride,
            reads_segments(self.module.encoder.config),
            head.query_prefix if pairs else self.prefix, head.passage_prefix,
        )  # fmt: skip


def load(module: HeadModule, about: Description, folder: Path, prefix: str = "") -> Loaded:
    """Add the folder's tokenizer to its head. Raises UserError where it cannot read texts."""
    if about.kind == "tagging" and not (folder / FILE).is_file():
        # A plain folder of transformers does not say how its tags mark entities: their letters do.
        ordered = sorted(about.labels, key=lambda label: (label.partition("-")[2], "OSBIE".find(label[:1])))
        about = replace(about, scheme=detect_scheme([ordered]))
    return Loaded(module, about, open_reader(folder), prefix)


def outputs_of(
    module: HeadModule,
    encoded: Encoded,
    device: str,
    seen: Callable[[Batch], None] = lambda batch: None,
    share: tuple[int, int] = (0, 1),
) -> dict[str, np.ndarray]:
    """The module's outputs for all units, float32 or int64: (U, ...), (U, T) of heads on tokens, (U * group, D) of
    vectors. Units of like length go through the module together; which do depends on `encoded` alone.

    `seen` is called with each batch and its logits, as if by the module's own forward but without another pass.
    `share`: number of this rank, and of all: each takes every so-manieth batch, and has 0 for the units of the others.
    """
    found: dict[str, np.ndarray] = {}
    lengths = encoded.lengths.reshape(-1, encoded.group).max(1, initial=1)
    with torch.inference_mode():
        for units in islice(budgeted(lengths, MICRO_BATCH_TOKENS // encoded.group), share[0], None, share[1]):
            batch = {name: torch.from_numpy(array).to(device) for name, array in encoded.batch(units).items()}
            batch["logits"] = module.logits(batch)
            for name, tensor in module.outputs(batch).items():
                values = tensor.float() if tensor.is_floating_point() else tensor
                _place(found, name, values.cpu().numpy(), units, encoded)
            seen(batch)
    return found


def _place(found: dict[str, np.ndarray], name: str, values: np.ndarray, units: np.ndarray, encoded: Encoded) -> None:
    """Put a batch's values, (b, ...), (b, t) or (b * group, D), where they belong among those of all units."""
    each = len(values) // len(units)
    on_tokens = name in ON_TOKENS
    if name not in found:
        shape = encoded.input_ids.shape[1:] if on_tokens else values.shape[1:]
        found[name] = np.zeros((len(encoded) * each, *shape), values.dtype)
    rows = (units[:, None] * each + np.arange(each)).reshape(-1)
    if on_tokens:
        found[name][rows, : values.shape[1]] = values
    else:
        found[name][rows] = values


ON_TOKENS = ("tags", "scores", "starts", "ends")
"""Outputs of which there is one for each token."""
