"""A text -> its words, and words -> their places in the text. Pure.

In: text as it was written. Out: places in characters. Words are BERT's (Source: arXiv:1810.04805, its BasicTokenizer):
what stands between spaces, each punctuation mark apart, each Chinese character a word.
"""

import re
from collections.abc import Sequence

# The blocks that BERT's tokenizer takes for Chinese: unified ideographs with extensions A to E, compatibility.
CHINESE = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f"
)
_PARTS = re.compile(f"[{CHINESE}]|[^{CHINESE}]+")
_CHINESE = re.compile(f"[{CHINESE}]")


def split_words(text: str) -> list[tuple[int, int]]:
    """(first, behind the last) character of each word of a text."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    places: list[tuple[int, int]] = []
    for piece, (start, _) in BertPreTokenizer().pre_tokenize_str(text):
        places += [(start + part.start(), start + part.end()) for part in _PARTS.finditer(piece)]
    return places


def words_of(text: str) -> list[str]:
    """Words of a cell that is tagged: between its spaces; of Chinese without a space those of `split_words`."""
    words = text.split()
    if len(words) == 1 and _CHINESE.search(text):
        return [text[start:end] for start, end in split_words(text)]
    return words


def find_words(words: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Place of each word in a text that holds them in this order. Raises ValueError where it does not."""
    places: list[tuple[int, int]] = []
    behind = 0
    for word in words:
        start = text.index(word, behind)
        behind = start + len(word)
        places.append((start, behind))
    return places
