"""The families of encoders: one row each for all that differs between them.

In: a family's name, or a folder's config. Out: its row: names of its settings, ids, positions, where its parts are.
No other file asks which family it has before it. Knows torch's modules by name only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from model import parts

BERT_NAMES = {
    "hidden_size": ("hidden_size",),
    "num_hidden_layers": ("num_hidden_layers",),
    "num_attention_heads": ("num_attention_heads",),
    "intermediate_size": ("intermediate_size",),
    "max_position_embeddings": ("max_position_embeddings",),
    "dropout": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
}
BEGIN_AND_END = {"bos_token_id": "cls_id", "eos_token_id": "sep_id"}


@dataclass(frozen=True)
class Family:
    """What differs between families in transformers."""

    model_type: str
    prefix: str
    """Of its classes: BertForMaskedLM is "Bert"."""
    source: str
    """Where it was published."""
    masked_lm_head: Callable[[Any, Tensor], Tensor]
    """(masked-LM model, hidden states (N, D)) -> logits (N, V)."""
    layers: str
    """Path of the list of layers inside the encoder, bottom first."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: BERT_NAMES)
    """Encoder field -> names in the family's config class."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make the family what it is, where its config class has others as defaults."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Config name -> id of the tokenizer it takes, beside vocab_size and pad_token_id."""
    segments: bool = False
    """Whether it tells two segments of a row apart (token_type_ids)."""
    packs: bool = True
    """Whether its attention takes a mask (B, 1, T, T) and positions can be given: several documents in a row, each
    with its own, and causal attention."""
    positions_behind_padding: bool = False
    """Position ids begin behind the padding id, so that many rows of the position table are never used.
    Source: transformers, create_position_ids_from_input_ids in modeling_roberta.py."""
    window: str | None = None
    """Config name of how far its local layers attend to either side; None: all layers attend to the whole row."""
    pair_objectives: tuple[str, ...] = ()
    """Objectives on sentence pairs that <prefix>ForPreTraining is the model of."""
    pair_head: Callable[[Any, Tensor], Tensor] | None = None
    """(<prefix>ForPreTraining, pooled first tokens (B, D)) -> logits (B, 2): in order, not in order."""
    discriminator: str | None = None
    """Suffix of the class that replaced-token detection trains; None: the family has no such training."""
    discriminator_head: Callable[[Any, Tensor], Tensor] | None = None
    """(discriminator, hidden states (B, T, D)) -> logits (B, T); None: its class has none, see replaced.py."""
    generator_scales: tuple[str, ...] = ()
    """Encoder fields that are smaller in the generator of replaced-token detection."""
    embedding_sharing: str = "shared"
    """How discriminator and generator share embeddings: shared, or disentangled."""
    pooler: str | None = None
    """The encoder's own pooler of the first token (part of a head, never of the encoder)."""
    names_in: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """model_type of another family -> {module here: module there} with equal weights; "{}" is a layer's number."""
    feed_forward_matrices: int = 2
    """Matrices of width x intermediate_size in a layer."""
    other_multiplies: Callable[[Any], int] = lambda config: 0
    """(config) -> multiply-adds of one forward pass per token, beside those of all families' layers."""
    pool: Callable[[Any, Tensor], Tensor] | None = None
    """(encoder, hidden states (B, T, D)) -> (B, D): what that pooler makes of them."""
    pooling_setting: str | None = None
    """Config name of how its own heads on texts pool (cls or mean), where they can do either; None: cls."""
    dense_heads: bool = False
    """Whether its own heads on tokens have a dense layer before the last matrix."""
    final_norm: str | None = None
    """The norm behind the last layer, where it is not part of that layer."""

    @property
    def discriminates(self) -> bool:
        """Whether it has a discriminator (replaced-token detection)."""
        return self.discriminator is not None

    def unused_positions(self, pad_id: int) -> int:
        """Rows of the position table before the first that is used."""
        return pad_id + 1 if self.positions_behind_padding else 0


# DistilBERT's layers are BERT's under other names. Source: transformers' research project "distillation",
# extract_distilbert.py.
DISTILBERT_IN_BERT = {
    "distilbert.embeddings": "bert.embeddings",
    "distilbert.transformer.layer.{}.attention.q_lin": "bert.encoder.layer.{}.attention.self.query",
    "distilbert.transformer.layer.{}.attention.k_lin": "bert.encoder.layer.{}.attention.self.key",
    "distilbert.transformer.layer.{}.attention.v_lin": "bert.encoder.layer.{}.attention.self.value",
    "distilbert.transformer.layer.{}.attention.out_lin": "bert.encoder.layer.{}.attention.output.dense",
    "distilbert.transformer.layer.{}.sa_layer_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "distilbert.transformer.layer.{}.ffn.lin1": "bert.encoder.layer.{}.intermediate.dense",
    "distilbert.transformer.layer.{}.ffn.lin2": "bert.encoder.layer.{}.output.dense",
    "distilbert.transformer.layer.{}.output_layer_norm": "bert.encoder.layer.{}.output.LayerNorm",
    "vocab_transform": "cls.predictions.transform.dense",
    "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
    "vocab_projector": "cls.predictions.decoder",
}

DEBERTA_V2 = Family(
    model_type="deberta-v2",
    prefix="DebertaV2",
    source="DeBERTa, arXiv:2006.03654; version 2 as in microsoft/deberta-v2-xlarge",
    masked_lm_head=parts.mask_deberta,
    layers="encoder.layer",
    # Positions are told by attention alone, relative and in buckets; type_vocab_size 0 as in the published models.
    fixed={
        "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
        "layer_norm_eps": 1e-7, "conv_kernel_size": 3, "conv_act": "gelu",
    },
    packs=False,
    other_multiplies=parts.multiplies_disentangled,
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "bert": Family(
        model_type="bert",
        prefix="Bert",
        source="BERT, arXiv:1810.04805",
        masked_lm_head=parts.mask_bert,
        layers="encoder.layer",
        segments=True,
        pair_objectives=("mlm_nsp", "mlm_sop"),
        pair_head=parts.pairs_bert,
        pooler="pooler",
        pool=parts.pool_bert,
    ),
    "roberta": Family(
        model_type="roberta",
        prefix="Roberta",
        source="RoBERTa, arXiv:1907.11692",
        masked_lm_head=parts.mask_roberta,
        layers="encoder.layer",
        fixed={"type_vocab_size": 1, "layer_norm_eps": 1e-5},
        ids=BEGIN_AND_END,
        positions_behind_padding=True,
        pooler="pooler",
        pool=parts.pool_bert,
    ),
    "albert": Family(
        model_type="albert",
        prefix="Albert",
        source="ALBERT, arXiv:1909.11942",
        masked_lm_head=parts.mask_albert,
        layers="encoder.albert_layer_groups",  # one group by default: its layers share their weights
        names={
            **BERT_NAMES, "embedding_size": ("embedding_size",),
            "dropout": ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"),
        },
        ids=BEGIN_AND_END,
        segments=True,
        pair_objectives=("mlm_sop", "mlm_nsp"),
        pair_head=parts.pairs_albert,
        pooler="pooler",
        other_multiplies=parts.multiplies_factored,
        pool=parts.pool_albert,
    ),
    "electra": Family(
        model_type="electra",
        prefix="Electra",
        source="ELECTRA, arXiv:2003.10555",
        masked_lm_head=parts.mask_electra,
        layers="encoder.layer",
        names={**BERT_NAMES, "embedding_size": ("embedding_size",)},
        segments=True,
        discriminator="ForPreTraining",
        discriminator_head=parts.discriminate_electra,
        generator_scales=("hidden_size", "num_attention_heads", "intermediate_size"),
        other_multiplies=parts.multiplies_factored,
    ),
    "deberta-v2": DEBERTA_V2,
    # Version 3 is version 2 without the convolution, trained by replaced-token detection. Source: arXiv:2111.09543.
    "deberta-v3": replace(
        DEBERTA_V2,
        source="DeBERTa-v3, arXiv:2111.09543",
        fixed={name: value for name, value in DEBERTA_V2.fixed.items() if not name.startswith("conv_")},
        discriminator="Model",
        generator_scales=("num_hidden_layers",),
        embedding_sharing="disentangled",
    ),
    "distilbert": Family(
        model_type="distilbert",
        prefix="DistilBert",
        source="DistilBERT, arXiv:1910.01108",
        masked_lm_head=parts.mask_distilbert,
        layers="transformer.layer",
        names={
            "hidden_size": ("dim",), "num_hidden_layers": ("n_layers",), "num_attention_heads": ("n_heads",),
            "intermediate_size": ("hidden_dim",), "max_position_embeddings": ("max_position_embeddings",),
            "dropout": ("dropout", "attention_dropout"),
        },
        names_in={"bert": DISTILBERT_IN_BERT},
    ),
    "modernbert": Family(
        model_type="modernbert",
        prefix="ModernBert",
        source="ModernBERT, arXiv:2412.13663",
        masked_lm_head=parts.mask_modernbert,
        layers="layers",
        pooling_setting="classifier_pooling",
        dense_heads=True,
        final_norm="final_norm",
        names={**BERT_NAMES, "dropout": ("embedding_dropout", "mlp_dropout", "attention_dropout")},
        ids={**BEGIN_AND_END, "cls_token_id": "cls_id", "sep_token_id": "sep_id"},
        window="sliding_window",
        feed_forward_matrices=3,  # its feed-forward layer is gated
    ),
}  # fmt: skip


def family_of(config: Any) -> Family:
    """The row of a transformers config. Raises ValueError for a family that is not in the table."""
    return family_of_type(config.model_type)


def family_of_type(model_type: str) -> Family:
    """The row of what a config.json calls model_type. Raises ValueError for a family that is not in the table."""
    for family in FAMILIES.values():
        if family.model_type == model_type:
            return family
    known = ", ".join(dict.fromkeys(family.model_type for family in FAMILIES.values()))
    raise ValueError(f"a {model_type} model; known families are {known}")


def reads_segments(config: Any) -> bool:
    """Whether the second text of a pair is marked as such: some BERTs were trained with one segment."""
    return family_of(config).segments and config.type_vocab_size > 1


def setting(config: Any, name: str) -> Any:
    """The value in a transformers config of what the encoder section calls `name`."""
    return getattr(config, family_of(config).names[name][0])


def longest_row(config: Any) -> int:
    """Most tokens that an encoder with this config reads at once."""
    return config.max_position_embeddings - family_of(config).unused_positions(config.pad_token_id or 0)


def embedding_width(config: Any) -> int:
    """Width of the embeddings, which the output projection shares."""
    return setting(config, "embedding_size" if "embedding_size" in family_of(config).names else "hidden_size")
