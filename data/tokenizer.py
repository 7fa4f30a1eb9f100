"""Word counts -> a WordPiece tokenizer -> a Hugging Face folder, the same in every run.

In: texts (or counts of their words), the tokenizer section. Out: a folder that `AutoTokenizer` loads, as BertTokenizer.
Training straight from text differs between processes (hash maps decide the ids, the ids break ties). So words are
counted here, all single-character pieces get their ids first, and the trainer has no tie left that order could break.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.config import Tokenizer, UserError

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerBase

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
PREFIX = "##"
OLDER_FILES = ("vocab.txt", "vocab.json", "merges.txt")
NEEDED = ("mask", "pad", "cls", "sep", "unk")
# Of all characters of the text, covered by pieces of their own; words with a rarer one are [UNK]. SentencePiece's
# default is 0.9995 (its character_coverage); a little more costs 8,192 pieces of English nothing.
CHARACTERS_COVERED = 0.9998
TRAINED_WORDS = 10_000_000  # counts are scaled down to about this many: the trainer reads each occurrence
WORD_CHARACTERS = 100  # a longer word is [UNK] in WordPiece


def _backend(vocabulary: dict[str, int], lowercase: bool) -> "tokenizers.Tokenizer":
    """BERT's normaliser, pre-tokeniser and template around a vocabulary. Source: arXiv:1810.04805 section 3."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    model = models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=WORD_CHARACTERS)
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=PREFIX)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    backend.add_special_tokens(list(SPECIALS))
    return backend


def count_words(texts: Iterable[str], lowercase: bool) -> Counter[str]:
    """How often each word (as WordPiece sees words: normalised, punctuation apart) stands in texts."""
    backend = _backend({token: i for i, token in enumerate(SPECIALS)}, lowercase)
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(backend.normalizer.normalize_str(text).split())
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():  # distinct ones only: about a tenth of all
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(chunk):
            if len(word) <= WORD_CHARACTERS:
                words[word] += count
    return words


def train_wordpiece(words: Counter[str], tokenizer: Tokenizer) -> "tokenizers.Tokenizer":
    """Train a WordPiece tokenizer of exactly `tokenizer.vocab_size` tokens from word counts.

    Equal counts give an equal tokenizer, in every process. Raises UserError where the words cannot fill the vocabulary.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, trainers

    characters = _characters(words, tokenizer.vocab_size - len(SPECIALS))
    trainer = trainers.WordPieceTrainer(
        vocab_size=tokenizer.vocab_size, min_frequency=2, show_progress=False,
        continuing_subword_prefix=PREFIX, special_tokens=[*SPECIALS, *characters],
    )  # fmt: skip
    learner = Backend(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_repeat(words, set(characters)), trainer)
    vocabulary = learner.get_vocab()
    if len(vocabulary) < tokenizer.vocab_size:
        try:
            remedy = f"give more text, or tokenizer.vocab_size={Tokenizer(vocab_size=len(vocabulary)).vocab_size}"
        except ValueError:  # fewer than a recipe may ask for
            remedy = "give more text"
        raise UserError(
            f"tokenizer.vocab_size={tokenizer.vocab_size}: this corpus fills only {len(vocabulary)} tokens; {remedy}"
        )
    return _backend(dict(sorted(vocabulary.items(), key=lambda item: item[1])), tokenizer.folds_case)


def _characters(words: Counter[str], most: int) -> list[str]:
    """The commonest single-character pieces, sorted: "a" if a begins some word, "##a" if it continues one."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts[word[0]] += count
        for character in word[1:]:
            counts[PREFIX + character] += count
    commonest = sorted(counts, key=lambda piece: (-counts[piece], piece))[:most]
    before = itertools.accumulate((counts[piece] for piece in commonest), initial=0)
    covered = CHARACTERS_COVERED * counts.total()
    commonest = [piece for piece, earlier in zip(commonest, before, strict=False) if earlier < covered]
    return sorted(commonest, key=lambda piece: (piece.startswith(PREFIX) and len(piece) > 1, piece))


def _repeat(words: Counter[str], characters: set[str]) -> Iterator[str]:
    """Each word as often as it stands in the corpus (scaled down for a large one), if its characters are all known."""
    scale = max(1.0, words.total() / TRAINED_WORDS)
    for word in sorted(words):
        if word[0] in characters and all(PREFIX + character in characters for character in word[1:]):
            yield " ".join([word] * max(1, round(words[word] / scale)))


def save_tokenizer(backend: "tokenizers.Tokenizer", folder: Path, lowercase: bool, length: int) -> None:
    """Write a Hugging Face folder; `length` is the most tokens of a row (`model_max_length`)."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": token for name, token in zip(("pad", "unk", "cls", "sep", "mask"), SPECIALS, strict=True)}
    config = {
        "tokenizer_class": "BertTokenizer", "model_max_length": length, "do_lower_case": lowercase,
        "strip_accents": None, "tokenize_chinese_chars": True, **names,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")


def load_tokenizer(folder: str | Path, key: str = "tokenizer.path") -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a Hugging Face folder; no network.

    Raises UserError (naming `key`) where there is none, or where it lacks a special token that pretraining needs.
    """
    if not Path(folder).is_dir():
        raise UserError(f"{key}={folder}: no such folder; give a Hugging Face tokenizer's folder")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{key}={folder}: holds no tokenizer that transformers loads ({reason})") from None
    missing = [f"{name}_token" for name in NEEDED if getattr(tokenizer, f"{name}_token", None) is None]
    if missing:
        raise UserError(f"{key}={folder}: lacks {', '.join(missing)}; add them to the tokenizer or choose another")
    return tokenizer


def describe_tokenizer(folder: Path) -> dict[str, Any]:
    """What the rest of the road needs to know of a tokenizer: sizes and ids, and a fingerprint of its files."""
    tokenizer = load_tokenizer(folder)
    return {
        "vocab_size": len(tokenizer),
        **{f"{name}_id": getattr(tokenizer, f"{name}_token_id") for name in NEEDED},
        "special_ids": sorted(tokenizer.all_special_ids),
        "fingerprint": fingerprint_of(folder),
    }


def fingerprint_of(folder: Path) -> str:
    """Hash of what decides a tokenizer's ids: tokenizer.json, or the files that stand for it in older folders."""
    whole = Path(folder) / "tokenizer.json"
    older = [path for path in sorted(Path(folder).iterdir()) if path.name in OLDER_FILES or path.suffix == ".model"]
    digest = hashlib.sha256()
    for path in [whole] if whole.is_file() else older:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
