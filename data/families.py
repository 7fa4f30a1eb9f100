"""The three families of tokenizers: special tokens, normaliser, words, decoder and template of each.

In: the tokenizer section, and a model (the pieces and their ids). Out: a whole `tokenizers.Tokenizer`. Knows neither
how a model is trained (data/vocabulary.py) nor how a tokenizer is kept (data/tokenizer.py).
"""

from typing import TYPE_CHECKING

from data.config import Tokenizer

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

# Special tokens by use, in the order of their ids, which are 0 to 4; bpe's mask has the last id instead. Those of
# bert-base, roberta-base and albert-base-v2. (DeBERTa-v3 uses BERT's names for a vocabulary of the same kind; ALBERT
# came first, and folds case as unigram does by default.)
SPECIALS = {
    "wordpiece": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bpe": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "unigram": {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
}
PREFIX = "##"  # of a WordPiece that continues a word
SPACE = "\u2581"  # stands for the space before a word in unigram pieces
WORD_CHARACTERS = 100  # a longer word is [UNK] in WordPiece; the other kinds train on slices of it


def normalizer_of(tokenizer: Tokenizer) -> "normalizers.Normalizer | None":
    """Folding is BERT's in all kinds: accents are the non-spacing marks (StripAccents takes Hindi's vowels too)."""
    from tokenizers import normalizers

    fold = tokenizer.folds_case
    if tokenizer.kind == "wordpiece":
        return normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=fold
        )
    steps = [normalizers.NFKC()] if tokenizer.kind == "unigram" else []
    if fold:  # decomposes, so Hangul is composed again afterwards
        plain = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=True
        )
        steps += [plain, normalizers.NFC()]
    return normalizers.Sequence(steps) if steps else None


def pre_tokenizer_of(tokenizer: Tokenizer) -> "pre_tokenizers.PreTokenizer":
    from tokenizers import pre_tokenizers

    if tokenizer.kind == "wordpiece":
        return pre_tokenizers.BertPreTokenizer()
    if tokenizer.kind == "bpe":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")]
    return pre_tokenizers.Sequence(words)


def assemble(model: "tokenizers.models.Model", tokenizer: Tokenizer) -> "tokenizers.Tokenizer":
    """The family's normaliser, pre-tokeniser, decoder and template around a model."""
    from tokenizers import AddedToken, decoders, processors
    from tokenizers import Tokenizer as Backend

    backend = Backend(model)
    normalizer, specials = normalizer_of(tokenizer), SPECIALS[tokenizer.kind]
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizer_of(tokenizer)
    backend.decoder = {
        "wordpiece": decoders.WordPiece(prefix=PREFIX),
        "bpe": decoders.ByteLevel(),
        "unigram": decoders.Metaspace(replacement=SPACE, prepend_scheme="always"),
    }[tokenizer.kind]
    vocabulary = backend.get_vocab()
    cls, sep = ((specials[name], vocabulary[specials[name]]) for name in ("cls", "sep"))
    if tokenizer.kind == "bpe":
        backend.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)
    else:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls[0]}:0 $A:0 {sep[0]}:0", pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
            special_tokens=[cls, sep],
        )  # fmt: skip
    # A mask of bpe takes the space before it: what it stands for in training is a token with its space.
    lstrip = tokenizer.kind == "bpe"
    backend.add_special_tokens(
        [AddedToken(token, lstrip=lstrip and name == "mask", normalized=False) for name, token in specials.items()]
    )
    return backend
