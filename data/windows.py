"""How many tokens of a text a row has room for, and how a longer text is cut or read in windows.

In: numbers of tokens. Out: the same, or slices; a length or stride with which nothing could be read is a UserError.
"""

from collections.abc import Iterator

from data.config import UserError
from data.reader import Template


def room_of(length: int, template: Template, texts: int = 1) -> int:
    """Tokens of a row beside the special ones. Raises UserError where each text cannot have one."""
    if length < template.size + texts:
        of = "" if texts == 1 else " of two texts"
        raise UserError(
            f"finetune.length={length}: this tokenizer puts {template.size} special tokens into a row{of}; give "
            f"{template.size + texts} or more"
        )
    return length - template.size


def windows_of(size: int, room: int, stride: int | None) -> Iterator[slice]:
    """Slices of at most `room` of `size` tokens that share `stride`; the first only where that is None."""
    start = 0
    while True:
        yield slice(start, min(start + room, size))
        if stride is None or start + room >= size:
            return
        start += room - stride


def check_stride(stride: int | None, room: int, length: int) -> None:
    if stride is not None and stride >= room:
        raise UserError(
            f"finetune.stride={stride}: a window of finetune.length={length} reads {room} tokens, so none would be "
            f"new; give a stride below {room}, or a greater length"
        )


def share_room(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens kept of two texts that shall fit into `room`: the longer one is cut until they are alike, then both.

    Of an odd room the longer text keeps one more. Source: longest_first of the tokenizers library.
    """
    if first + second <= room:
        return first, second
    least, most = sorted((first, second))
    least = min(least, room // 2)
    most = room - least
    return (least, most) if first <= second else (most, least)
