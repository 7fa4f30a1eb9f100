"""A Hugging Face folder of any encoder -> what makes vectors of texts whose cosine tells likeness.

In: a folder with an embedding (ours, or of sentence-transformers), or that of a plain encoder, whose tokens are then
averaged. Out: the head's module and how texts are handed to it. Knows neither Ray nor texts.
"""

from pathlib import Path
from typing import Literal, NamedTuple

from model.config import Head
from model.encoder import check_folder
from model.families import longest_row
from model.heads.building import make_model, wrap
from model.heads.contract import HeadModule
from model.heads.description import Description, read_description, read_prompts
from model.heads.loading import load_head
from model.opening import check_files, check_tokenizer, one_line, open_tokenizer
from model.quiet import quiet_transformers

Role = Literal["query", "passage"]
SENTENCES_FILE = "modules.json"  # in each folder of sentence-transformers
AVERAGED = "the folder tells no pooling: the mean over all tokens"


class Embedder(NamedTuple):
    """An encoder in memory."""

    module: HeadModule
    """Its outputs are vectors of length 1, one for each row."""
    about: Description
    prefix: str
    """Put before each text."""
    note: str | None
    """What had to be assumed, for people."""


def check_embedder(folder: Path, role: Role | None = None, pickled: bool = False) -> str:
    """What small files tell; returns the prefix of the texts.

    `role`: the texts are queries, or passages, of which the folder tells a prefix. Raises ValueError, one line: no
    model's folder, no prefix told, vectors made in a way that is not known here.
    """
    check_files(folder, pickled)
    check_tokenizer(folder)
    about = read_description(folder)
    if about is not None and about.kind == "embedding":
        return "" if role is None else getattr(about.head, f"{role}_prefix")
    if not (folder / SENTENCES_FILE).is_file():
        return _no_prefix(role)
    prompts, default = read_prompts(folder)
    names = {"query": ("query",), "passage": ("passage", "document"), None: (default,)}[role]
    found = [prompts[name] for name in names if name in prompts]
    return found[0] if found else _no_prefix(role)


def _no_prefix(role: Role | None) -> str:
    """The prefix of a folder that tells none: "" where none is asked for. Raises ValueError where one is."""
    if role is None:
        return ""
    raise ValueError(f"it tells no prefix for a {role}; leave out --as")


def load_embedder(folder: Path, role: Role | None = None, pickled: bool = False) -> Embedder:
    """The embedder of a folder, in fp32 on the CPU and in evaluation mode.

    A folder of another kind, such as a run's export or a classifier, gives its encoder. Raises ValueError, one line:
    as `check_embedder`, and where weights cannot be loaded.
    """
    prefix = check_embedder(folder, role, pickled)
    about = read_description(folder)
    if (about is not None and about.kind == "embedding") or (folder / SENTENCES_FILE).is_file():
        return Embedder(*load_head(folder, pickled), prefix, None)
    with quiet_transformers():
        config = check_folder(folder, pickled)
        length = min(longest_row(config), open_tokenizer(folder, config.vocab_size).model_max_length)
        head = Head(kind="embedding", pooling="mean")
        try:
            model, _ = make_model(folder, config, head, [], 0, pickled)
        except ValueError:
            raise
        except Exception as error:  # weights can be broken in more ways than transformers has exceptions for
            raise ValueError(f"cannot be loaded: {one_line(error)}") from error
    module = wrap(model, head, [], None).eval().requires_grad_(False)
    return Embedder(module, Description("embedding", (), length, head), prefix, AVERAGED)
