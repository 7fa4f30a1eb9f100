"""What the model room may be told: encoder, objective and head sections of the config tree.

In: plain mappings. Out: frozen, validated sections. Knows pydantic only, so that reading a config starts nothing.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A frozen section of the config tree that refuses keys it does not own."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )


Size = Annotated[int, Field(ge=1)]


class Encoder(Section):
    """The encoder's shape. Names are those of transformers' BertConfig; model/families.py translates them."""

    family: Literal[
        "bert", "roberta", "albert", "electra", "deberta-v2", "deberta-v3", "distilbert", "modernbert"
    ] = "bert"
    """Architecture, where `init` names no folder."""
    hidden_size: Size = 128
    """Width D of a token's vector."""
    embedding_size: Size | None = None
    """Width of the embeddings of albert and electra; None: 128, or hidden_size where that is less."""
    num_hidden_layers: Size = 2
    num_attention_heads: Size = 2
    intermediate_size: Size = 512
    """Width of the feed-forward layer."""
    max_position_embeddings: Size = 512
    """Longest row the encoder can read, in tokens."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout of hidden states and of attention probabilities."""
    init: str | None = None
    """Hugging Face folder to continue from; None: random weights drawn from `seed`."""
    pickled: bool = False
    """Open pickled weights (pytorch_model.bin) in `init` too. A pickle can run code: only of a folder you trust."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "Encoder":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        return self


class Objective(Section):
    """What the encoder is trained to do."""

    name: Literal["mlm", "mlm_nsp", "mlm_sop", "mlm_sbo", "rtd", "distillation", "clm"] = "mlm"
    """mlm: guess the masked tokens (BERT, arXiv:1810.04805 section 3.1); mlm_nsp: and whether the second segment
    follows the first (the same); mlm_sop: and whether two segments stand in order (ALBERT, arXiv:1909.11942 section
    3.1); mlm_sbo: and guess masked spans from the tokens around them (SpanBERT, arXiv:1907.10529 section 3.2); rtd:
    tell tokens that a small generator put in (ELECTRA, arXiv:2003.10555; DeBERTa-v3, arXiv:2111.09543); distillation:
    follow a teacher (DistilBERT, arXiv:1910.01108); clm: guess the next token under a causal mask, the control of
    experiments (GPT's way)."""
    generator_size: Annotated[float, Field(gt=0, le=1)] = 0.25
    """rtd: the generator's width, heads and feed-forward layer as a share of the discriminator's (electra), or its
    depth (deberta-v3)."""
    rtd_weight: Annotated[float, Field(gt=0)] = 50.0
    """rtd: weight of the discriminator's loss."""
    embedding_sharing: Literal["shared", "disentangled"] | None = None
    """rtd: shared: both losses train the embeddings; disentangled: the discriminator adds a difference of its own to
    the generator's (arXiv:2111.09543 section 3.3); None: disentangled for deberta-v3, else shared."""
    teacher: str | None = None
    """distillation: Hugging Face folder of the teacher, a masked language model with the same tokenizer."""
    temperature: Annotated[float, Field(gt=0)] = 2.0
    """distillation: divides both logits before the softmax."""
    soft_weight: Annotated[float, Field(ge=0)] = 5.0
    """distillation: weight of the soft targets' loss. Weights are those of the paper's code."""
    mlm_weight: Annotated[float, Field(ge=0)] = 2.0
    """distillation: weight of the masked tokens' loss."""
    cosine_weight: Annotated[float, Field(ge=0)] = 1.0
    """distillation: weight of the hidden states' cosine loss."""
    soft_targets: Literal["masked", "all"] = "masked"
    """distillation: where soft targets are compared: at masked tokens (a seventh of the work) or at all tokens."""

    @property
    def packing(self) -> str | None:
        """The rows.packing that makes the pairs it needs; None: any."""
        return {"mlm_nsp": "next_sentence", "mlm_sop": "sentence_order"}.get(self.name)

    @property
    def needs_draws(self) -> bool:
        """Whether a uniform number for each token comes with the rows: what the generator puts in is drawn by it."""
        return self.name == "rtd"

    @model_validator(mode="after")
    def _teacher_is_there(self) -> "Objective":
        if (self.name == "distillation") != (self.teacher is not None):
            if self.teacher is None:
                raise ValueError("name=distillation needs a teacher; give objective.teacher=FOLDER")
            raise ValueError(f"teacher is given, but name is {self.name}; leave it out or give name=distillation")
        return self


Kind = Literal["classification", "multi_label", "regression", "tagging", "answering", "multiple_choice", "embedding"]


class Head(Section):
    """What is put on the encoder for a downstream task."""

    kind: Kind = "classification"
    """classification: one label for a text or a pair of texts; multi_label: any number of labels; regression: a number
    for a text or a pair; tagging: a label for each word; answering: the span of a text that answers a question;
    multiple_choice: which of several continuations; embedding: vectors whose cosine tells likeness."""
    pooling: Literal["cls", "mean", "max"] = "cls"
    """The vector of a text: its first token's, or the mean or maximum over its tokens."""
    layers: Literal["linear", "mlp"] | None = None
    """linear: one matrix; mlp: dense, GELU, dropout, matrix; None: the family's own head as transformers has it where
    pooling is cls (BERT's is a dense layer, tanh and a matrix), else linear."""
    crf: bool = False
    """tagging: score whole tag sequences (conditional random field, Lafferty et al. 2001) instead of single tags."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Before the head's last matrix; None: the encoder's own."""
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Weight of each label in the loss: {label: weight} (1 where none is given), or balanced: the inverse of its
    frequency."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each target spread over all labels. Source: arXiv:1512.00567 section 7."""
    loss: Literal["softmax", "cosine", "in_batch"] = "in_batch"
    """embedding: softmax: a label of the pair from (u, v, |u - v|); cosine: the cosine is to be the pair's number (both
    Sentence-BERT, arXiv:1908.10084 section 3); in_batch: a query finds its passage among all of the batch (E5,
    arXiv:2212.03533 section 3)."""
    temperature: Annotated[float, Field(gt=0)] = 0.05
    """embedding, in_batch: divides the cosines."""
    query_prefix: str = ""
    """embedding: put before a query, or the first text ("query: " as in E5)."""
    passage_prefix: str = ""
    """embedding: put before a passage, or the second text."""

    @property
    def has_weights(self) -> bool:
        """Whether there is anything to train where the encoder is frozen."""
        return self.kind != "embedding" or self.layers is not None or self.loss == "softmax"

    @property
    def reads_features(self) -> Literal["cls", "mean", "max", "tokens"] | None:
        """What it wants of a frozen encoder's outputs, which can be kept: a pooling, or the states of all tokens; None
        where it has nothing to train on them."""
        if self.kind in ("tagging", "answering"):
            return "tokens"
        return self.pooling if self.has_weights else None

    @model_validator(mode="after")
    def _fits_kind(self) -> "Head":
        _check_kind(self, self.kind)
        return self


class AskedHead(Head):
    """The head as a config asks for it: what the kind is may be left to the task's files."""

    kind: Kind | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """As Head's; None: found from the files (crf says tagging; a loss, temperature or prefix embedding)."""

    @property
    def implied_kind(self) -> Kind | None:
        """`kind`, or the only kind that the other settings are for."""
        own = {"tagging": ("crf",), "embedding": ("loss", "temperature", "query_prefix", "passage_prefix")}
        for kind, fields in own.items() if self.kind is None else ():
            if any(getattr(self, field) != type(self).model_fields[field].default for field in fields):
                return kind  # pyright: ignore[reportReturnType]
        return self.kind

    @model_validator(mode="after")
    def _fits_kind(self) -> "AskedHead":
        if (kind := self.implied_kind) is not None:
            _check_kind(self, kind)
        return self


def _check_kind(head: Head, kind: Kind) -> None:
    """Raise ValueError for settings that are not for this kind, or not for one another."""
    if head.crf and kind != "tagging":
        raise ValueError(f"crf is for kind tagging, not {kind}; leave it out")
    if (head.label_smoothing or head.class_weights) and head.crf:
        raise ValueError("class_weights, label_smoothing: a crf scores whole sequences; leave out one of the two")
    if (head.label_smoothing or head.class_weights) and kind not in ("classification", "multi_label", "tagging"):
        raise ValueError(f"class_weights and label_smoothing are for labels, not for {kind}; leave them out")
