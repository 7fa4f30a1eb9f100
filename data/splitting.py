"""Where a text may be cut so that a tokenizer gives the pieces the tokens that it gives the whole.

In: a tokenizer.json. Out: a function from a text to its pieces, or None where that is not known. Pure.
"""

import re
from collections.abc import Callable
from typing import Any

# What these do to a character depends on no other across a space (Strip and Precompiled may look on) ...
_KEEPING = frozenset(("Lowercase", "NFC", "NFD", "NFKC", "NFKD"))
# ... and these may leave nothing of a word, so that two spaces meet: no matter where white space is no token.
_DELETING = frozenset(("BertNormalizer", "StripAccents", "Nmt"))
_BLANKS = (" ", "\n", "\t", "")
_WORDS = re.compile(r"[ \n\t]*[^ \n\t]+|[ \n\t]+")


def split_dropping(text: str) -> list[str]:
    """The words of a text, where white space makes no token and so is the same whatever it is."""
    return [word for word in text.replace("\n", " ").replace("\t", " ").split(" ") if word]


def split_before_spaces(text: str) -> list[str]:
    """The words of a text with the single space before each; a text with other white space stays whole."""
    body = text.lstrip()
    if not body.isprintable() or "  " in body or body[-1:] == " ":  # printable: no white space but spaces
        return [" " + text]
    words = body.split(" ")
    white = text[: len(text) - len(body)]
    if white != " ":
        words[0] = f" {white}{words[0]}"
    return words


def split_before_blanks(text: str) -> list[str]:
    """The words of a text with the white space before each."""
    words = split_before_spaces(text)
    if len(words) == 1 and text.replace("\n", " ").replace("\t", " ").isprintable():
        found = _WORDS.findall(text)
        return [word[1:] if word[0] == " " and word[1:2] not in _BLANKS else " " + word for word in found]
    return words


def word_splitter(tokenizer: dict[str, Any]) -> Callable[[str], list[str]] | None:
    """How a text is split so that its encoding is that of the pieces in a row; None where that is not known.

    tokenizer: the tokenizer.json. Known are pre-tokenisers that begin anew at white space, behind normalisers that look
    at no character beyond it. WordPiece, BPE and Unigram see one pre-token at a time.
    """
    if any(not token["special"] for token in tokenizer["added_tokens"]) or tokenizer["model"].get("dropout"):
        return None
    normalizers, splitters = (steps_of(tokenizer[key]) for key in ("normalizer", "pre_tokenizer"))
    kinds = [step["type"] for step in splitters]
    dropping = kinds[:1] in (["BertPreTokenizer"], ["WhitespaceSplit"], ["Whitespace"])
    if {step["type"] for step in normalizers} - _KEEPING - (_DELETING if dropping else set()):
        return None
    if kinds == ["ByteLevel"]:
        if not splitters[0].get("use_regex", True):
            return None
        return split_before_spaces if splitters[0]["add_prefix_space"] else split_before_blanks  # to "\nword" too
    if kinds[-1:] == ["Metaspace"] and not (
        splitters[-1].get("split", True) and splitters[-1].get("prepend_scheme") == "always"
    ):
        return None
    if kinds == ["Metaspace"]:
        return split_before_spaces
    return split_dropping if dropping and kinds[1:] in ([], ["Metaspace"]) else None


def cuts_at_chinese(tokenizer: dict[str, Any]) -> bool:
    """Is each Chinese character a word of its own to the tokenizer, as in BERT?"""
    steps = steps_of(tokenizer["normalizer"])
    apart = bool(steps) and steps[0]["type"] == "BertNormalizer" and steps[0]["handle_chinese_chars"]
    return apart and word_splitter(tokenizer) is split_dropping and len(steps_of(tokenizer["pre_tokenizer"])) == 1


def steps_of(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokeniser, sequences laid flat."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for inner in part.get("normalizers", part.get("pretokenizers", [])) for step in steps_of(inner)]
