"""A head on an encoder's folder, ready to train.

In: a Hugging Face folder of any pretraining class, the head section, labels, what is to train, a seed. Out: the module
of the kind, in fp32 on the CPU. A head that transformers has a class for is that class. Knows neither Ray nor where
tasks come from.
"""

import copy
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from model.config import Head
from model.encoder import check_folder, class_of, draw_weights, load_weights
from model.families import family_of, setting
from model.freezing import count_parameters, freeze, last_layers
from model.heads.contract import HeadModule
from model.heads.crf import ConditionalRandomField
from model.heads.embedding import Embedding
from model.heads.labelled import Classification, MultiLabel, MultipleChoice, Regression
from model.heads.losses import weigh_classes
from model.heads.native import ON_TOKENS, SUFFIXES, StandIn
from model.heads.own import OwnModel, dense_layers, encoder_path
from model.heads.tokens import Answering, Tagging
from model.lora import add_lora
from model.opening import INDEX
from model.quiet import quiet_transformers

MODULES: dict[str, type[HeadModule]] = {
    "classification": Classification,
    "multi_label": MultiLabel,
    "regression": Regression,
    "tagging": Tagging,
    "answering": Answering,
    "multiple_choice": MultipleChoice,
    "embedding": Embedding,
}
PROBLEMS = {
    "classification": "single_label_classification",  # two labels too: cross-entropy over both
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
"""Kind -> problem_type in transformers' configs."""
NUM_OUTPUTS = {"regression": 1, "answering": 2, "multiple_choice": 1}
"""Of kinds whose labels have no names."""


def build_head(
    folder: Path | str,
    head: Head,
    labels: Sequence[str],
    *,
    mode: str = "full",
    top_k: int = 2,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    seed: int = 0,
    label_counts: Mapping[str, int] | None = None,
    num_choices: int | None = None,
    target_mean: float | None = None,
    pickled: bool = False,
    cached: bool = False,
) -> HeadModule:
    """The encoder of `folder` under a new head.

    New weights of the head are drawn from `seed`, so pretrained and random encoders, and all modes, start from equal
    heads; only a pooler that the folder's encoder has is kept. `label_counts`: training targets of each label, for
    balanced class weights; `target_mean`: of the training numbers, where regression begins. `cached`: of mode frozen,
    without the encoder, for batches of its outputs; weights, names and counts of the head are the same. Raises
    ValueError where the folder is no encoder of a known family or lacks weights, labels do not fit the kind, the mode
    leaves nothing to train, or `top_k` is more than the encoder has.
    """
    check_labels(head, labels)
    if head.kind == "multiple_choice" and not num_choices:
        raise ValueError("multiple_choice: num_choices, the number of choices of a unit, is not given")
    if cached and mode != "frozen":
        raise ValueError(f"cached outputs are those of a frozen encoder, not of mode {mode}")
    left_out = 0
    if cached:
        model, new, left_out = bare_model(folder, head, labels)
    else:
        model, new = make_model(folder, check_folder(folder, pickled), head, labels, seed, pickled)
    inside = f"{encoder_path(model)}."
    for number, name in enumerate(head_names(model)):
        if not name.startswith(inside) or any(key.startswith(f"{name}.") for key in new):
            # A seed for each part: a pooler that is kept does not shift what comes after it. 256: no two trials share.
            draw_weights(model.get_submodule(name), model.config, 256 * seed + number)
    if target_mean is not None:
        _begin_at(model, target_mean)
    module = wrap(model, head, labels, num_choices)
    module.class_weights = weigh_classes(head.class_weights, labels, label_counts)
    if mode == "lora":
        add_lora(module.encoder, lora_rank, lora_alpha, seed)
    train = head_names(model)
    if mode == "top_k":
        train += [inside + name for name in last_layers(module.encoder, top_k)]
    counts = freeze(model, train, mode)
    module.parameter_counts = {**counts, "total": counts["total"] + left_out}
    module.train(model.training)
    return module


def check_labels(head: Head, labels: Sequence[str]) -> None:
    """Raise ValueError where labels do not fit the kind of head."""
    named = head.kind not in NUM_OUTPUTS and (head.kind != "embedding" or head.loss == "softmax")
    least = {"classification": 2, "embedding": 2}.get(head.kind, 1) if named else 0
    if len(labels) < least:
        raise ValueError(f"{head.kind} needs {least} labels or more, not {len(labels)}")
    if doubles := sorted(label for label, times in Counter(labels).items() if times > 1):
        raise ValueError(f"labels stand twice: {', '.join(map(repr, doubles[:3]))}")


def is_native(head: Head, config: Any) -> bool:
    """Whether transformers has a class for this head on this family."""
    family = family_of(config)
    if head.kind in ON_TOKENS:
        return not head.crf and (head.layers is None or (head.layers == "linear" and not family.dense_heads))
    poolings = ("cls", "mean") if family.pooling_setting else ("cls",)
    return head.kind in SUFFIXES and head.layers is None and head.pooling in poolings


def make_model(
    folder: Path | str, config: Any, head: Head, labels: Sequence[str], seed: int, pickled: bool
) -> tuple[Any, tuple[str, ...]]:
    """The model of the head with the folder's weights, and the names of those that the folder does not hold.

    Changes `config`. Raises ValueError where weights of the encoder itself are missing or misshapen.
    """
    family = family_of(config)
    outputs = NUM_OUTPUTS.get(head.kind, len(labels))
    config.num_labels = outputs if head.kind != "multiple_choice" else 2  # unread there; 2 is transformers' default
    # Names that the folder had for the outputs of another head are not this one's.
    names = labels if head.kind not in NUM_OUTPUTS and labels else [f"LABEL_{i}" for i in range(config.num_labels)]
    config.id2label = dict(enumerate(names))
    config.label2id = {name: i for i, name in enumerate(names)}
    config.problem_type = PROBLEMS.get(head.kind)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if is_native(head, config):
            if family.pooling_setting and head.kind not in ON_TOKENS:
                setattr(config, family.pooling_setting, head.pooling)
            model, report = load_weights(class_of(family, SUFFIXES[head.kind]), folder, config, pickled)
            if head.dropout is not None:
                _set_dropout(model, head.dropout)
            return model, report.new
        encoder, report = load_weights(class_of(family, "Model"), folder, config, pickled)
        return _own(encoder, head, outputs), tuple(f"encoder.{name}" for name in report.new)


def bare_model(folder: Path | str, head: Head, labels: Sequence[str]) -> tuple[Any, tuple[str, ...], int]:
    """What make_model gives, with a stand-in in the encoder's place; and the number of parameters left out with it.

    A process reads a folder once for all heads of a shape: what comes of it is kept, and copied. Raises ValueError as
    make_model does.
    """
    files = sorted([*Path(folder).glob("*.safetensors"), *(Path(folder) / name for name in ("config.json", INDEX))])
    stamps = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists())
    model, new, left_out = _bare_model(str(folder), stamps, head.model_dump_json(), tuple(labels))
    return copy.deepcopy(model), new, left_out


@functools.lru_cache(maxsize=64)  # without its encoder a head has a MB or so
def _bare_model(folder: str, stamps: Any, head: str, labels: tuple[str, ...]) -> tuple[Any, tuple[str, ...], int]:
    model, new = make_model(folder, check_folder(folder), Head.model_validate_json(head), labels, 0, False)
    whole = count_parameters(model)["total"]
    inside = encoder_path(model)
    setattr(model, inside, StandIn(model.get_submodule(inside)))
    return model, new, whole - count_parameters(model)["total"]


def _own(encoder: Any, head: Head, outputs: int) -> OwnModel:
    config, family = encoder.config, family_of(encoder.config)
    if family.pooler:
        setattr(encoder, family.pooler, None)  # belongs to the family's own head
    width, dropout = setting(config, "hidden_size"), head.dropout
    dropout = setting(config, "dropout") if dropout is None else dropout
    if head.kind != "embedding":
        parts = {"crf": ConditionalRandomField(outputs)} if head.crf else {}
        pooling = None if head.kind in ON_TOKENS else head.pooling
        return OwnModel(encoder, pooling, dense_layers(width, outputs, head.layers, dropout), **parts)
    # Its head is a projection, if any.
    layers = dense_layers(width, width, head.layers, dropout) if head.layers else nn.Identity()
    pairs = {"pair_classifier": nn.Linear(3 * width, outputs)} if head.loss == "softmax" else {}
    return OwnModel(encoder, head.pooling, layers, **pairs)


def wrap(model: Any, head: Head, labels: Sequence[str], num_choices: int | None) -> HeadModule:
    """The module of the head's kind around its model."""
    module = MODULES[head.kind](model, head, labels)
    if head.kind == "multiple_choice":
        module.group = num_choices or 0
    return module


def head_names(model: Any) -> list[str]:
    """Submodules that are the head, by path: all but the encoder, and the encoder's own pooler."""
    inside = encoder_path(model)
    encoder = model.get_submodule(inside)
    pooler = family_of(encoder.config).pooler
    names = [f"{inside}.{pooler}"] if pooler and getattr(encoder, pooler, None) is not None else []
    return names + [n for n, child in model.named_children() if n != inside and list(child.parameters())]


def _begin_at(model: Any, value: float) -> None:
    """Let a head of one output say `value` at first: from 0 its bias would take the way to the mean at the learning
    rate's pace, which a short finetuning spends its steps on."""
    head = [layer for name in head_names(model) for layer in model.get_submodule(name).modules()]
    last = [layer for layer in head if isinstance(layer, nn.Linear) and layer.out_features == 1][-1]
    nn.init.constant_(last.bias, value)


def _set_dropout(model: Any, share: float) -> None:
    """In all of a native head: where its class has none before the last matrix, there stays none."""
    for name, child in model.named_children():
        if name != model.base_model_prefix:
            for module in child.modules():
                if isinstance(module, nn.Dropout):
                    module.p = share
