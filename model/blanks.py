"""A masked language model's folder and a sentence with [MASK] in it -> the likeliest tokens there.

In: a folder that AutoModelForMaskedLM opens whole, and one text. Out: for each mask its top tokens with probabilities,
and the text with each put in. Knows neither Ray nor runs.

Letters of shapes: B rows, T tokens, V vocabulary.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from model.encoder import check_folder, class_of, load_weights
from model.families import family_of, longest_row
from model.heads.native import SUFFIXES
from model.opening import check_files, check_tokenizer, one_line, open_tokenizer
from model.quiet import quiet_transformers

WRITTEN = ("[MASK]", "<mask>")  # as people write a mask, whatever the tokenizer calls it
CONTINUES = "##"  # begins the tokens of a WordPiece vocabulary that go on a word
MARKS = ("Ġ", "▁")  # begin the tokens that begin a word: byte-level BPE's, SentencePiece's


class Guess(NamedTuple):
    """A token that may stand at a mask."""

    token: str
    """As people read it, whatever the tokenizer: "##ing" goes on a word, "cat" begins one."""
    probability: float
    """Of it among all V tokens; the other masks are not known when it is told."""
    text: str
    """The whole text with it in the place of this mask."""


@dataclass(frozen=True)
class Filler:
    """A masked language model in memory."""

    model: Any
    tokenizer: Any
    length: int
    """Most tokens that it reads, special tokens included."""


def check_filler(folder: Path, pickled: bool = False) -> str:
    """What files alone tell; returns what the folder holds. Raises ValueError, one line: another kind of model."""
    config = check_files(folder, pickled)
    check_tokenizer(folder)
    kind = kind_of(config)
    if any(name in kind for name in SUFFIXES.values()):
        raise ValueError(f"it holds {kind}, which labels texts: `cloze predict` does; fill needs the encoder's export/")
    if config.get("is_decoder"):
        raise ValueError(f"it holds {kind} that reads from left to right; give a masked language model")
    return kind


def load_filler(folder: Path, pickled: bool = False) -> Filler:
    """Load a masked language model. Raises ValueError, one line: no such folder, another kind of model."""
    kind = check_filler(folder, pickled)
    with quiet_transformers():
        config = check_folder(folder, pickled)
        tokenizer = open_tokenizer(folder, config.vocab_size)
        try:
            model, report = load_weights(class_of(family_of(config), "ForMaskedLM"), folder, config, pickled)
        except ValueError:
            raise
        except Exception as error:  # weights can be broken in more ways than transformers has exceptions for
            raise ValueError(f"cannot be loaded: {one_line(error)}") from error
    if report.new:
        raise ValueError(
            f"it holds {kind}, without what guesses tokens ({', '.join(report.new[:2])}); give a masked language "
            f"model, such as a run's export/ (of replaced-token detection export/generator)"
        )
    if tokenizer.mask_token_id is None:
        raise ValueError("its tokenizer has no mask token; give a masked language model")
    return Filler(model.eval(), tokenizer, min(longest_row(config), tokenizer.model_max_length))


def kind_of(config: Mapping[str, Any]) -> str:
    """What config.json says a folder holds: names of classes, for people."""
    names = config.get("architectures")
    return " ".join(", ".join(map(str, names)).split())[:100] if isinstance(names, list) and names else "no named class"


def fill_masks(filler: Filler, text: str, top: int) -> list[list[Guess]]:
    """The `top` likeliest tokens at each mask of a text, likeliest first; special tokens are none.

    A text longer than the model reads is read around each mask. Raises ValueError where the text has no mask.
    """
    import torch

    tokenizer = filler.tokenizer
    written = "|".join(re.escape(mask) for mask in dict.fromkeys((*WRITTEN, tokenizer.mask_token)))
    parts = re.split(f"({written})", text)  # text, mask, text, ..., mask, text
    if len(parts) == 1:
        raise ValueError(f"no mask in {text[:60]!r}; write [MASK] where a token is to be guessed")
    ids, before, behind = _tokens(tokenizer, tokenizer.mask_token.join(parts[::2]))
    room = filler.length - len(before) - len(behind)
    windows: dict[int, Any] = {}
    guesses: list[list[Guess]] = []
    masks = [place for place, id in enumerate(ids) if id == tokenizer.mask_token_id]
    for number, place in enumerate(masks):
        begin = min(max(0, place - room // 2), max(0, len(ids) - room))
        if begin not in windows:
            row = torch.tensor([[*before, *ids[begin : begin + room], *behind]])
            with torch.inference_mode():
                windows[begin] = filler.model(input_ids=row, attention_mask=torch.ones_like(row)).logits[0]  # (T, V)
        probabilities = windows[begin][len(before) + place - begin, : len(tokenizer)].float().softmax(-1)
        guesses.append(_best(tokenizer, probabilities, parts, 2 * number + 1, top))
    return guesses


def _tokens(tokenizer: Any, text: str) -> tuple[list[int], list[int], list[int]]:
    """Ids of a text, and of the special tokens that go before and behind it."""
    ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    whole = list(tokenizer(text, verbose=False)["input_ids"])
    first = next(i for i in range(len(whole)) if whole[i : i + len(ids)] == ids)
    return ids, whole[:first], whole[first + len(ids) :]


def _best(tokenizer: Any, probabilities: Any, parts: list[str], mask: int, top: int) -> list[Guess]:
    """The likeliest tokens; `mask`: the one of `parts` whose place they take."""
    found: list[Guess] = []
    special = set(tokenizer.all_special_ids)
    marked = any(token[:1] in MARKS for token in tokenizer.tokenize("a a"))
    for id in probabilities.argsort(descending=True).tolist():
        if len(found) == top:
            break
        token = tokenizer.convert_ids_to_tokens(id)
        if id in special or token is None:  # ids have holes in some vocabularies
            continue
        goes_on = token.startswith(CONTINUES) or (marked and token[:1] not in MARKS)
        word = tokenizer.decode([id]).strip().removeprefix(CONTINUES)
        before, behind = "".join(parts[:mask]), "".join(parts[mask + 1 :])
        text = (before.rstrip() if goes_on else before) + word + behind
        told = CONTINUES * goes_on + word if word else token  # as in WordPiece: marks of bytes are not for people
        found.append(Guess(told, float(probabilities[id]), text))
    return found
