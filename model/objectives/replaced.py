"""Replaced-token detection: a small generator fills the masks, the discriminator tells which tokens are not original.

In: a batch with masked rows and a uniform number for each token. Out: the generator's cross-entropy at the masked
positions, and the discriminator's at all tokens. Knows torch and transformers only.

Shapes: B rows, T tokens, N targets of the batch, D width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from model.families import Family, family_of, setting
from model.flops import dense_flops, encoder_flops, masked_head_flops
from model.objectives.contract import IGNORED, Batch, Export, PretrainingObjective, Sums
from model.objectives.masked import encoder_inputs, guess_loss, part_of, ratios, real_tokens

SAMPLED_AT_ONCE = 1 << 24  # probabilities held in double precision: 128 MB
HEAD = "mask_predictions"  # its name in the published weights of DeBERTa-v3


class DetectionHead(nn.Module):
    """What DeBERTa-v3 puts on its discriminator, for which transformers has no class; modules named as published.

    Source: microsoft/DeBERTa, apps/models/replaced_token_detection_model.py (LMMaskPredictionHead).
    """

    def __init__(self, width: int, layer_norm_eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.LayerNorm = nn.LayerNorm(width, eps=layer_norm_eps)
        self.classifer = nn.Linear(width, 1)

    def forward(self, encoded: Tensor) -> Tensor:
        """Hidden states (B, T, D) -> logits (B, T): above 0 where a token was replaced."""
        return self.classifer(functional.gelu(self.dense(self.LayerNorm(encoded[:, :1] + encoded)))).squeeze(-1)


class ReplacedTokens(PretrainingObjective):
    """ELECTRA's training (arXiv:2003.10555 section 3.1), with embeddings shared or disentangled.

    shared: the two models hold the same tables of tokens, positions and segments (the same, section 3.2).
    disentangled: the discriminator's token embeddings are the generator's, whose gradient stops there, and a
    difference of its own (DeBERTa-v3, arXiv:2111.09543 section 3.3). That difference is what its own table holds here;
    it adds up at export.
    """

    def __init__(
        self,
        family: Family,
        discriminator: PreTrainedModel,
        generator: PreTrainedModel,
        head: DetectionHead | None,
        sharing: str,
        weight: float,
    ) -> None:
        """`discriminator`, `generator`: whole models as loaded; they are tied here. `head`: None where the family's
        discriminator brings its own. `weight`: of the discriminator's loss."""
        super().__init__()
        self.family, self.weight, self.disentangled = family, weight, sharing == "disentangled"
        self.discriminator, self.generator, self.head = discriminator, generator, head
        (subtract_embeddings if self.disentangled else share_embeddings)(discriminator, generator)

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Number of masked positions, and of tokens."""
        masked = int((batch["labels"] != IGNORED).sum())
        return {"mlm": masked, "rtd": int(real_tokens(self.discriminator, batch).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Batch with "draws" -> both cross-entropy sums; the generator's "correct" guesses, "told" tokens that the
        discriminator judged right, "replaced" ones, "flagged" ones, "found" ones (both), "tokens" read."""
        labels = batch["labels"]
        target = labels != IGNORED
        encoded = self.generator.base_model(**encoder_inputs(self.generator, batch)).last_hidden_state
        logits = family_of(self.generator.config).masked_lm_head(self.generator, encoded[target])  # (N, V)
        loss, correct = guess_loss(logits, labels[target])

        put_in = sample(logits.detach(), batch["draws"][target])
        read = {**batch, "input_ids": batch["input_ids"].masked_scatter(target, put_in)}
        replaced = target & (read["input_ids"] != labels)  # a token that was drawn right is original
        real = real_tokens(self.discriminator, batch)
        judged = self.judge(read).float()
        doubt = functional.binary_cross_entropy_with_logits(judged[real], replaced[real].float(), reduction="sum")
        flagged = (judged > 0) & real
        metrics = {
            "correct": correct, "told": ((flagged == replaced) & real).sum(), "replaced": replaced.sum(),
            "flagged": flagged.sum(), "found": (flagged & replaced).sum(), "tokens": real.sum(),
        }  # fmt: skip
        return {"mlm": loss, "rtd": self.weight * doubt}, metrics

    def judge(self, batch: Batch) -> Tensor:
        """Batch of the tokens that the discriminator reads -> logits (B, T): above 0 where a token was replaced."""
        inputs = encoder_inputs(self.discriminator, batch)
        if self.disentangled:
            ids = inputs.pop("input_ids")
            with torch.no_grad():
                generators = self.generator.get_input_embeddings()(ids)
            inputs["inputs_embeds"] = generators + self.discriminator.get_input_embeddings()(ids)
        encoded = self.discriminator.base_model(**inputs).last_hidden_state
        if self.head is not None:
            return self.head(encoded)
        assert self.family.discriminator_head is not None
        return self.family.discriminator_head(self.discriminator, encoded)

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """accuracy, precision and recall of "this token was replaced"; masked_accuracy is the generator's. Most tokens
        are original, so that accuracy begins high: judge it by what it gains on 1 - replaced."""
        return ratios({
            "accuracy": (sums["told"], counts["rtd"]),
            "precision": (sums["found"], sums["flagged"]),
            "recall": (sums["found"], sums["replaced"]),
            "replaced": (sums["replaced"], counts["rtd"]),
            "masked_accuracy": (sums["correct"], counts["mlm"]),
        })  # fmt: skip

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Of both encoders over all tokens, and of their heads at their targets."""
        config = self.discriminator.config
        width = setting(config, "hidden_size")
        generator = encoder_flops(self.generator.config, tokens, row_tokens)
        generator += masked_head_flops(self.generator.config, counts["mlm"])
        head = dense_flops(counts["rtd"], (width, width, 1))
        return 3 * (generator + encoder_flops(config, tokens, row_tokens) + head)

    def exports(self, state: Mapping[str, Tensor]) -> list[Export]:
        """The discriminator, with its head in `extra` where its class has none, and the generator in "generator"."""
        discriminator, generator = part_of(state, "discriminator."), part_of(state, "generator.")
        if self.disentangled:
            name = _embedding_name(self.discriminator)
            discriminator[name] = generator[_embedding_name(self.generator)] + discriminator[name]
        head = {f"{HEAD}.{name}": tensor for name, tensor in part_of(state, "head.").items()}
        return [
            Export("", self.discriminator, discriminator, head),
            Export("generator", self.generator, generator),
        ]


def sample(logits: Tensor, draws: Tensor) -> Tensor:
    """Logits (N, V), uniform numbers (N,) in [0, 1) -> tokens (N,): the first whose cumulative probability exceeds
    the number. In double precision, scaled to the sum: rounding can neither leave a number without a token nor give
    one of probability 0."""
    tokens = []
    rows = max(1, SAMPLED_AT_ONCE // logits.shape[1])
    for some, numbers in zip(logits.split(rows), draws.double().split(rows), strict=True):
        reached = some.double().softmax(dim=-1).cumsum(dim=-1)
        tokens.append(torch.searchsorted(reached, numbers[:, None] * reached[:, -1:], right=True).squeeze(1))
    return torch.cat(tokens)


def share_embeddings(discriminator: Any, generator: Any) -> None:
    """Give the generator the discriminator's tables; its output projection follows.

    Parameters and not modules: ZeRO-3 gathers what a module holds, and would do so twice for a module with two places.
    """
    for name, table in discriminator.base_model.embeddings.named_children():
        if isinstance(table, nn.Embedding):
            generator.base_model.embeddings.get_submodule(name).weight = table.weight
    generator.tie_weights()


def subtract_embeddings(discriminator: Any, generator: Any) -> None:
    """Leave the discriminator's token table with the difference to the generator's."""
    with torch.no_grad():
        discriminator.get_input_embeddings().weight -= generator.get_input_embeddings().weight


def _embedding_name(model: PreTrainedModel) -> str:
    table = model.get_input_embeddings()
    return next(f"{name}.weight" for name, module in model.named_modules() if module is table)
