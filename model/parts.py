"""Where each family keeps its parts: the last matrices of pretraining heads, poolers, what its layers multiply.

In: a model of transformers and hidden states, or a config. Out: logits, pooled states, numbers. For the table in
model/families.py, which says what each is.
"""

from typing import Any

from torch import Tensor


def pool_bert(encoder: Any, hidden: Tensor) -> Tensor:
    return encoder.pooler(hidden)


def pool_albert(encoder: Any, hidden: Tensor) -> Tensor:
    return encoder.pooler_activation(encoder.pooler(hidden[:, 0]))


def mask_bert(model: Any, hidden: Tensor) -> Tensor:
    return model.cls.predictions(hidden)


def mask_deberta(model: Any, hidden: Tensor) -> Tensor:
    """Folders whose config says "legacy": false have no matrix of their own behind the last layer."""
    if model.legacy:
        return model.cls.predictions(hidden)
    return model.lm_predictions(hidden, model.deberta.embeddings.word_embeddings)


def mask_roberta(model: Any, hidden: Tensor) -> Tensor:
    return model.lm_head(hidden)


def mask_albert(model: Any, hidden: Tensor) -> Tensor:
    return model.predictions(hidden)


def mask_electra(model: Any, hidden: Tensor) -> Tensor:
    return model.generator_lm_head(model.generator_predictions(hidden))


def mask_distilbert(model: Any, hidden: Tensor) -> Tensor:
    return model.vocab_projector(model.vocab_layer_norm(model.activation(model.vocab_transform(hidden))))


def mask_modernbert(model: Any, hidden: Tensor) -> Tensor:
    return model.decoder(model.head(hidden))


def pairs_bert(model: Any, pooled: Tensor) -> Tensor:
    return model.cls.seq_relationship(pooled)


def pairs_albert(model: Any, pooled: Tensor) -> Tensor:
    return model.sop_classifier(pooled)


def discriminate_electra(model: Any, hidden: Tensor) -> Tensor:
    return model.discriminator_predictions(hidden)


def multiplies_factored(config: Any) -> int:
    """Embeddings that are narrower than the encoder are projected; ALBERT has the matrix in any case."""
    equal = config.embedding_size == config.hidden_size and config.model_type != "albert"
    return 0 if equal else config.embedding_size * config.hidden_size


def multiplies_disentangled(config: Any) -> int:
    """Each query and key meets 2k relative positions; version 2's convolution. What is projected once for a whole
    batch, the relative positions themselves, is left out. Source: arXiv:2006.03654 section 3.1."""
    positions = 2 * config.num_hidden_layers * 2 * config.position_buckets * config.hidden_size
    return positions + getattr(config, "conv_kernel_size", 0) * config.hidden_size**2
