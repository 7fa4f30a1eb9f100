"""Texts -> counts of their words -> a tokenizer of exactly `tokenizer.vocab_size` tokens, the same in every run.

In: texts (or counts of their words), the tokenizer section. Out: a `tokenizers.Tokenizer`. Knows no folders and no Ray.
The trainers of the tokenizers library break ties by ids and hand out some ids in the order of a hash map, which differs
between processes. WordPiece: all single-character pieces get their ids first, as special tokens. BPE: its alphabet is
the 256 bytes, sorted. Unigram: no order helps there, so SentencePiece trains it, on one thread and from sorted words;
only its pieces and their scores are kept, in a model of the tokenizers library.
"""

import hashlib
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from data.config import Tokenizer, UserError
from data.families import PREFIX, SPACE, SPECIALS, WORD_CHARACTERS, assemble, normalizer_of, pre_tokenizer_of

if TYPE_CHECKING:
    import tokenizers

# Of all characters of the text, covered by pieces of their own; a rarer one is unknown. SentencePiece's default is
# 0.9995 (its character_coverage); a little more costs 8,192 pieces of English nothing.
CHARACTERS_COVERED = 0.9998
TRAINED_WORDS = 10_000_000  # counts are scaled down to about this many: the trainer reads each occurrence
# Of distinct words that train, the commonest first. 100 MB of English and Python hold 2 million, so this bounds only
# text without spaces, whose "words" are clauses that hardly repeat: SentencePiece takes 80 s and 0.4 GB for so many.
TRAINED_CHARACTERS = 4_000_000
CLAUSE_CHARACTERS = 16  # SentencePiece's longest piece: only longer words are cut before they train it
RESERVED = ("\x00", "\u2585")  # characters for which SentencePiece leaves a word out
CHUNK = {  # a text's longest parts that no token crosses, told without the pre-tokenizer (ten times as fast)
    "wordpiece": re.compile(r"\S+"),
    "bpe": re.compile(r" ?\S+|\s+(?!\S)|\s+"),
    "unigram": re.compile(r"\S+"),
}


def count_words(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """How often each word stands in texts, normalised and cut as the tokenizer will see it.

    A word of wordpiece stands between spaces and punctuation. One of bpe is written in RoBERTa's byte characters, with
    the space before it. One of unigram is what stands between spaces, with the space before it. Of text without
    spaces that is a sentence: words above 16 characters are cut at punctuation, which only pieces of digits cross.
    No word is longer than 100 characters.
    """
    normalizer, pre_tokenizer = normalizer_of(tokenizer), pre_tokenizer_of(tokenizer)
    find = CHUNK[tokenizer.kind].findall
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(find(text))
    parts: Counter[str] = Counter()
    for chunk, count in chunks.items():  # distinct ones only: about a tenth of all
        normal = chunk if normalizer is None else normalizer.normalize_str(chunk)
        for part in [normal] if tokenizer.kind == "bpe" else normal.split():  # now between characters of Chinese
            parts[part] += count
    words: Counter[str] = Counter()
    for part, count in parts.items():
        for word, _ in pre_tokenizer.pre_tokenize_str(part):
            for piece in _cut(word, tokenizer.kind):
                words[piece] += count
    return words


def _cut(word: str, kind: str) -> Iterable[str]:
    """The parts of a word that train: bounded, because text without spaces has words of any length."""
    if kind == "wordpiece":
        return [word] if len(word) <= WORD_CHARACTERS else []
    parts = [word]
    if kind == "unigram" and len(word) > CLAUSE_CHARACTERS:
        parts = re.findall(rf"{SPACE}?\w+|{SPACE}?[^\w{SPACE}]+|{SPACE}", word)
    return (part[i : i + WORD_CHARACTERS] for part in parts for i in range(0, len(part), WORD_CHARACTERS))


def train_tokenizer(words: Counter[str], tokenizer: Tokenizer) -> "tokenizers.Tokenizer":
    """Train a tokenizer of exactly `tokenizer.vocab_size` tokens from the counts of `count_words`.

    Equal counts give an equal tokenizer, in every process. Raises UserError where the words cannot fill the vocabulary.
    """
    specials = list(SPECIALS[tokenizer.kind].values())
    model, size = TRAINERS[tokenizer.kind](_commonest(words), tokenizer.vocab_size, specials)
    if size < tokenizer.vocab_size:
        try:
            remedy = f"give more text, or tokenizer.vocab_size={Tokenizer(vocab_size=size).vocab_size}"
        except ValueError:  # fewer than a recipe may ask for
            remedy = "give more text"
        raise UserError(f"tokenizer.vocab_size={tokenizer.vocab_size}: this corpus fills only {size} tokens; {remedy}")
    assert size == tokenizer.vocab_size, f"{size} tokens instead of {tokenizer.vocab_size}"
    return assemble(model, tokenizer)


def _commonest(words: Counter[str]) -> Counter[str]:
    """The commonest words, as many as hold TRAINED_CHARACTERS; a hash decides among equally common ones."""
    if sum(map(len, words)) <= TRAINED_CHARACTERS:
        return words
    ranked = sorted(words, key=lambda word: (-words[word], hashlib.blake2b(word.encode(), digest_size=8).digest()))
    ends = itertools.accumulate(map(len, ranked))
    kept = itertools.takewhile(lambda pair: pair[1] <= TRAINED_CHARACTERS, zip(ranked, ends, strict=True))
    return Counter({word: words[word] for word, _ in kept})


def _train_wordpiece(words: Counter[str], size: int, specials: list[str]) -> tuple["tokenizers.models.WordPiece", int]:
    """Source: arXiv:1810.04805 section 3; the trainer merges pairs as BPE does."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, trainers

    counts: Counter[str] = Counter()  # of single-character pieces: "a" if a begins some word, "##a" if it continues one
    for word, count in words.items():
        counts[word[0]] += count
        for character in word[1:]:
            counts[PREFIX + character] += count
    characters: set[str] = set()
    for piece in _covering(counts, size - len(specials)):
        both = characters | {piece, piece.removeprefix(PREFIX)}  # the trainer makes "##a" of an "a" that it knows
        if len(both) <= size - len(specials):
            characters = both
    known = Counter({
        word: count
        for word, count in words.items()
        if word[0] in characters and all(PREFIX + character in characters for character in word[1:])
    })  # fmt: skip
    alphabet = sorted(characters, key=lambda piece: (piece.startswith(PREFIX) and len(piece) > 1, piece))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, show_progress=False,
        continuing_subword_prefix=PREFIX, special_tokens=[*specials, *alphabet],
    )  # fmt: skip
    learnt = _learn(Backend(models.WordPiece(unk_token="[UNK]")), known, trainer)  # type: ignore[call-arg]
    vocabulary: dict[str, int] = learnt["vocab"]
    in_order = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    model = models.WordPiece(in_order, unk_token="[UNK]", max_input_chars_per_word=WORD_CHARACTERS)
    return model, len(in_order)


def _train_bpe(words: Counter[str], size: int, specials: list[str]) -> tuple["tokenizers.models.BPE", int]:
    """Source: arXiv:1907.11692 section 4.4. No text is unknown to it; <unk> is there for who asks for its id."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    *first, mask = specials
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, min_frequency=2, show_progress=False, special_tokens=first,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    learnt = _learn(Backend(models.BPE()), words, trainer)
    vocabulary = {**learnt["vocab"], mask: len(learnt["vocab"])}
    return models.BPE(vocabulary, [tuple(merge) for merge in learnt["merges"]]), len(vocabulary)


def _train_unigram(words: Counter[str], size: int, specials: list[str]) -> tuple["tokenizers.models.Unigram", int]:
    """Source: arXiv:1804.10959; pieces keep to one script and to letters or digits, as SentencePiece's default is."""
    import sentencepiece
    from tokenizers import models

    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    for character in RESERVED:
        del counts[character]
    characters = set(_covering(counts, size - len(specials)))
    known: Counter[str] = Counter()
    for word, count in words.items():
        for character in set(word) - characters:
            word = word.replace(character, "\n")
        for part in word.split("\n"):
            known[part] += count
    del known[""]
    if not known:
        return models.Unigram(), len(specials)
    trained = io.BytesIO()
    # Names that no text holds: SentencePiece would leave "[MASK]" out of the text.
    pad, unk, cls, sep, mask = (f"\uffff{use}" for use in SPECIALS["unigram"])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{known[word]}" for word in sorted(known)), input_format="tsv",
        model_writer=trained, model_type="unigram", vocab_size=size, hard_vocab_limit=False, num_threads=1,
        character_coverage=1.0, normalization_rule_name="identity", add_dummy_prefix=False,
        remove_extra_whitespaces=False, pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece=pad, unk_piece=unk,
        bos_piece=cls, eos_piece=sep, control_symbols=[mask], minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    ids = range(len(specials), processor.get_piece_size())
    pieces = [(token, 0.0) for token in specials] + [(processor.id_to_piece(i), processor.get_score(i)) for i in ids]
    return models.Unigram(pieces, unk_id=1, byte_fallback=False), len(pieces)


TRAINERS: dict[str, Callable[[Counter[str], int, list[str]], tuple["tokenizers.models.Model", int]]] = {
    "wordpiece": _train_wordpiece,
    "bpe": _train_bpe,
    "unigram": _train_unigram,
}


def _covering(counts: Counter[str], most: int) -> list[str]:
    """The commonest single-character pieces that cover the text, at most so many, the commonest first."""
    commonest = sorted(counts, key=lambda piece: (-counts[piece], piece))[:most]
    before = itertools.accumulate((counts[piece] for piece in commonest), initial=0)
    covered = CHARACTERS_COVERED * counts.total()
    return [piece for piece, earlier in zip(commonest, before, strict=False) if earlier < covered]


def _learn(
    learner: "tokenizers.Tokenizer", words: Counter[str], trainer: "tokenizers.trainers.Trainer"
) -> dict[str, Any]:
    """Train on each word as often as it stands in the corpus (scaled down for a large one); returns the model."""
    from tokenizers import pre_tokenizers

    def repeat() -> Iterator[str]:
        scale = max(1.0, words.total() / TRAINED_WORDS)
        for word in sorted(words):
            yield " ".join([word] * max(1, round(words[word] / scale)))

    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(repeat(), trainer)
    return json.loads(learner.to_str())["model"]
