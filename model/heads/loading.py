"""A folder with a head -> the head, ready to predict. Nothing in the folder is run (model/opening.py).

In: a folder that we wrote, a plain folder of transformers' four classes, or an embedder of sentence-transformers. Out:
the module in evaluation mode and what is to be known of it. Knows neither Ray nor texts.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from model.encoder import check_folder
from model.families import longest_row
from model.heads.building import NUM_OUTPUTS, check_labels, is_native, make_model, wrap
from model.heads.contract import HeadModule
from model.heads.description import FILE, Description, describe_folder, labels_of, read_description
from model.heads.own import OwnModel
from model.opening import check_files, one_line, open_tokenizer
from model.quiet import quiet_transformers

WEIGHTS = "head.safetensors"


def load_head(folder: Path | str, pickled: bool = False) -> tuple[HeadModule, Description]:
    """The head of a folder, in fp32 on the CPU and in evaluation mode, and its description.

    `pickled`: open pickled weights too. Raises ValueError in one line where the folder is no model, is of a family or
    head that is not known here, its tokenizer is missing or has more tokens than the model, its labels are missing or
    stand twice, or what it says of itself differs from its weights.
    """
    folder = Path(folder)
    try:
        with quiet_transformers():
            return _load(folder, pickled)
    except ValueError as error:
        text = one_line(error)
        raise ValueError(text if text.startswith(f"{folder}: ") else f"{folder}: {text}") from error


def _load(folder: Path, pickled: bool) -> tuple[HeadModule, Description]:
    fields = check_files(folder, pickled)
    config = check_folder(folder, pickled)
    tokenizer = open_tokenizer(folder, config.vocab_size)
    description = read_description(folder)
    if description is None:
        description = describe_folder(folder, fields, config, tokenizer.model_max_length)
    head, labels = description.head, description.labels
    check_labels(head, labels)
    if description.length > longest_row(config):
        raise ValueError(f"{FILE}: rows of {description.length} tokens, but the model reads {longest_row(config)}")
    named = labels and head.kind not in NUM_OUTPUTS and is_native(head, config)
    if "id2label" in fields and named and labels_of(fields, config) != labels:
        raise ValueError(f"{FILE} and config.json name different labels; write the same in both")
    try:
        found = load_file(str(folder / WEIGHTS)) if (folder / WEIGHTS).is_file() else {}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{WEIGHTS} cannot be loaded: {one_line(error)}") from error
    model, missing = make_model(folder, config, head, labels, 0, pickled)
    if isinstance(model, OwnModel):
        _load_parts(model, found)
    elif missing:
        raise ValueError(f"weights are missing or misshapen: {', '.join(missing[:3])}; the folder is not whole")
    module = wrap(model, head, labels, description.num_choices).eval()
    return module.requires_grad_(False), description


def _load_parts(model: OwnModel, found: dict[str, Tensor]) -> None:
    """Our head's weights, which lie beside the encoder's. Raises ValueError where they are others than it needs."""
    wanted = own_parts(model)
    if wanted and not found:
        raise ValueError(f"{FILE} speaks of a head whose weights ({WEIGHTS}) are not there")
    wrong = sorted(wanted.keys() ^ found.keys())
    wrong += [name for name in wanted if name in found and found[name].shape != wanted[name].shape]
    if wrong:
        raise ValueError(f"{WEIGHTS} is not the head that {FILE} speaks of: {', '.join(wrong[:3])}")
    for name, parameter in wanted.items():
        parameter.data.copy_(found[name])


def own_parts(model: OwnModel) -> dict[str, nn.Parameter]:
    """Parameters of a head of ours, by name: those of the model that are not the encoder's."""
    return {name: one for name, one in model.named_parameters() if not name.startswith("encoder.")}
