"""Masking: tokens a second of ours and of transformers' DataCollatorForLanguageModeling, on the same rows.

    make bench BENCH=masking        about half a minute, one process; needs Cloze installed

Text: Python's own documentation (pydoc_data.topics), a WordPiece tokenizer of 4,096 tokens trained on it, full rows.
The collator gets batches of 32 rows, as a DataLoader would hand it, by the quicker of its documented ways: encodings
with the special tokens mask made before (and the offsets that whole words need), and its default, torch tensors. Its
whole-word mode puts [MASK] everywhere, so it draws fewer numbers than ours. Ours gets what the stream gives it,
windows of 512 rows, and, to compare call by call, batches of 32.
The collator knows neither spans nor n-grams: there its single tokens stand beside ours, to show what runs cost.
Each figure is the best of several passes over the same 2,048 rows: the machine has other work.
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from pydoc_data.topics import topics

import numpy as np

from data.config import Masking
from data.masking import Vocabulary, mask_rows

NUM_ROWS, PASSES = 2048, 5
PEERS = {"token": False, "whole_word": True, "span": False, "ngram": False}  # strategy -> whole_word_mask


def main() -> None:
    """Print a line for each strategy and length."""
    warnings.simplefilter("ignore")
    from tokenizers import BertWordPieceTokenizer
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    texts = [text for _, text in sorted(topics.items())]
    backend = BertWordPieceTokenizer()
    backend.train_from_iterator(texts, vocab_size=4096, show_progress=False)
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, **names)
    vocabulary = Vocabulary(len(tokenizer), tokenizer.mask_token_id, tuple(tokenizer.all_special_ids))
    names = ("collator", "ours, 512", "ratio", "ours, 32", "ratio")
    print(f"{'':12}{'length':>8}" + "".join(f"{name:>12}" for name in names) + "   million tokens/s")
    for length in (128, 512):
        encodings, word_starts = rows_of(tokenizer, texts, length)
        input_ids = np.array([encoding["input_ids"] for encoding in encodings], np.int32)
        for strategy, whole_word_mask in PEERS.items():
            needed = ["input_ids", "special_tokens_mask", *(["offset_mapping"] if whole_word_mask else [])]
            batches = [
                [{key: encoding[key] for key in needed} for encoding in encodings[start : start + 32]]
                for start in range(0, NUM_ROWS, 32)
            ]
            collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole_word_mask)
            theirs = speed(partial(collate_all, collator, batches), length)
            ours = [speed(window_pass(input_ids, word_starts, n, strategy, vocabulary), length) for n in (512, 32)]
            figures = (theirs / 1e6, ours[0] / 1e6, ours[0] / theirs, ours[1] / 1e6, ours[1] / theirs)
            print(f"{strategy:12}{length:8}" + "".join(f"{figure:12.1f}" for figure in figures))


def rows_of(tokenizer: "object", texts: list[str], length: int) -> tuple[list[dict[str, list]], np.ndarray]:
    """NUM_ROWS encodings of `length` tokens, and their word starts (NUM_ROWS, length) bool."""
    encoded = tokenizer(  # type: ignore[operator]
        texts, truncation=True, max_length=length, return_overflowing_tokens=True, return_special_tokens_mask=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    full = [i for i, ids in enumerate(encoded["input_ids"]) if len(ids) == length]
    full = [full[i % len(full)] for i in range(NUM_ROWS)]
    words = [[-1 if word is None else word for word in encoded.word_ids(i)] for i in full]
    starts = np.diff(np.array(words), axis=1, prepend=-2) != 0
    keys = ("input_ids", "special_tokens_mask", "offset_mapping")
    return [{key: encoded[key][i] for key in keys} for i in full], starts


def collate_all(collator: Callable[[list], object], batches: list[list]) -> None:
    """One pass of the collator over all rows."""
    for batch in batches:
        collator(list(batch))


def window_pass(
    input_ids: np.ndarray, word_starts: np.ndarray, rows: int, strategy: str, vocabulary: Vocabulary
) -> Callable[[], None]:
    """One pass of ours over all rows, `rows` at a time."""
    masking = Masking(strategy=strategy)  # type: ignore[arg-type]

    def masked() -> None:
        for start in range(0, NUM_ROWS, rows):
            ids = np.arange(start, start + rows)
            visits, share = np.zeros(rows, np.int64), np.full(rows, 0.15)
            mask_rows(input_ids[ids], word_starts[ids], ids, visits, share, 0, masking, vocabulary)

    return masked


def speed(work: Callable[[], object], length: int) -> float:
    """Tokens a second of the best of PASSES passes over all rows, after one to warm up."""
    seconds = []
    for _ in range(PASSES + 1):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return NUM_ROWS * length / min(seconds[1:])


if __name__ == "__main__":
    main()
