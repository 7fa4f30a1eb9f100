"""What the data room may be told: corpus, tokenizer, rows and masking sections of the config tree.

In: plain mappings from a recipe or the command line. Out: frozen, validated sections.
Knows pydantic only, so that reading a config starts nothing.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator


class UserError(ValueError):
    """A mistake of the user: its message is all that is shown (one line per fault), and the exit code is 2.

    The one exception class of our own, because the command line must tell a mistake from a fault of ours.
    """


class Section(BaseModel):
    """A frozen section of the config tree that refuses keys it does not own."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )


Share = Annotated[float, Field(ge=0, le=1)]
Length = Annotated[int, Field(ge=8)]
FORMS = ("number", "list")  # tags of a value that is a number, or a list of them: one for each phase of a run


def form_of(value: object) -> str:
    """Which of FORMS a value has, so that a fault in it is told once and not for each form."""
    return FORMS[isinstance(value, list | tuple)]


class Source(Section):
    """One source of documents: where it lies and how its files are read."""

    path: Annotated[str, Field(min_length=1)]
    """File, folder, glob, the same in a bucket (s3://, gs://), or "docstrings" (the embedded corpus)."""
    weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """How often an epoch visits each of its rows: 2 twice, 0.5 every other row (the others in the next epoch)."""
    format: Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow"] | None = None
    """None: told by the suffix of each file (.txt .jsonl .json .csv .tsv .parquet .arrow), with or without .gz .bz2
    .xz .zst. A .json file may also be one array of records."""
    text_field: str = "text"
    """Column or key that holds the text (JSONL, CSV, TSV, Parquet, Arrow); a.b is the field b inside a."""
    document: Literal["line", "block", "file"] = "block"
    """What one document of a text file is: a line, a block between blank lines, or the whole file."""
    encoding: str = "utf-8"
    """Encoding of text files. Bytes that do not decode are quarantined, never guessed."""


class Corpus(Section):
    """Which text is read, and which part of it is held out."""

    sources: Annotated[tuple[Source, ...], Field(min_length=1)] = (Source(path="docstrings"),)
    """Paths, globs, "docstrings", or mappings {path, weight, format, text_field, document, encoding}."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Share of documents kept for evaluation, chosen by a hash of the text: stable when the corpus grows
    (but of a few dozen documents, of which at least one is held out, which one may change)."""
    held_out_sources: tuple[Source, ...] = ()
    """Documents to evaluate on, given like sources; held_out then does not count. What also stands in sources is
    left out there."""
    max_bad_fraction: Share = 0.01
    """Share of records that may be unreadable before the run stops; 0 is strict."""
    deduplicate: bool = True
    """Drop documents whose text (white space aside) was seen before."""

    @model_validator(mode="before")
    @classmethod
    def _paths_are_sources(cls, values: object) -> object:
        """Let a plain path stand for {path: ...}, and one source for a list of one."""
        if not isinstance(values, dict):
            return values
        for key in {"sources", "held_out_sources"} & values.keys():
            sources = values[key]
            if isinstance(sources, str | dict | Source):
                sources = [sources]
            if isinstance(sources, list | tuple):
                sources = [{"path": s} if isinstance(s, str) else s for s in sources]
            values = {**values, key: sources}
        return values

    @property
    def weights(self) -> tuple[float, ...]:
        """Of the sources, in their order."""
        return tuple(source.weight for source in self.sources)

    @model_validator(mode="after")
    def _weights_add_up(self) -> "Corpus":
        if not any(self.weights):
            raise ValueError("every source has weight 0; give at least one of them a weight above 0")
        return self


class Tokenizer(Section):
    """The tokenizer: trained on the corpus, or taken from a folder."""

    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """Algorithm of a trained tokenizer. wordpiece: BERT's (arXiv:1810.04805 section 3), Chinese characters apart; bpe:
    RoBERTa's, of bytes (arXiv:1907.11692 section 4.4); unigram: ALBERT's and DeBERTa-v3's (arXiv:1804.10959)."""
    vocab_size: Annotated[int, Field(ge=8)] = 8192
    """Number of tokens, special tokens included."""
    lowercase: bool | None = None
    """Fold case and strip accents; None: what the kind is known for (bpe keeps case, the others fold it)."""
    path: str | None = None
    """Folder of an existing Hugging Face tokenizer; the fields above then do not count."""

    @model_validator(mode="after")
    def _bytes_fit(self) -> "Tokenizer":
        if self.kind == "bpe" and self.path is None and self.vocab_size < 261:
            raise ValueError(
                f"vocab_size {self.vocab_size} is too small for bpe, which has a token for each of 256 bytes and 5 "
                f"special tokens; give 261 or more"
            )
        return self

    @property
    def folds_case(self) -> bool:
        """`lowercase`, None resolved."""
        return self.kind != "bpe" if self.lowercase is None else self.lowercase


class Rows(Section):
    """How documents become token rows of bounded length."""

    length: Annotated[
        Annotated[Length, Tag("number")] | Annotated[tuple[Length, ...], Field(min_length=1), Tag("list")],
        Discriminator(form_of),
    ] = 128
    """Most tokens of a row, special tokens included; a list: of the rows of each phase, as in pretrain.steps."""
    packing: Literal["full_sentences", "document", "packed", "line", "next_sentence", "sentence_order"] = (
        "full_sentences"
    )
    """full_sentences: whole sentences until the row is full, crossing documents with a [SEP] between
    (RoBERTa, arXiv:1907.11692 section 4.2); document: a row never crosses a document; packed: several documents in a
    row, each [CLS] ... [SEP] with attention and positions of its own; line: a row for each line of text;
    next_sentence: two segments, half of the time from different documents (BERT, arXiv:1810.04805 appendix A.2);
    sentence_order: two segments in a row, half of the time swapped (ALBERT, arXiv:1909.11942 section 3.1)."""
    word_segmenter: Literal["rjieba"] | None = None
    """Whole words of Chinese text, for masking: rjieba's (pip install rjieba); None: the tokenizer's."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of each phase."""
        return self.length if isinstance(self.length, tuple) else (self.length,)

    @property
    def longest(self) -> int:
        """Of all phases; the rows of a store have one length."""
        return max(self.lengths)

    def of_length(self, length: int) -> "Rows":
        """The rows of one store."""
        return self.model_copy(update={"length": length})


class Masking(Section):
    """Which positions the model has to guess, and what it sees there."""

    strategy: Literal["token", "whole_word", "span", "ngram"] = "token"
    """token: single tokens, chosen uniformly among those that are not special; whole_word: all tokens of a word
    (BERT's later release); span: runs of words of geometric length (SpanBERT, arXiv:1907.10529 section 3.1); ngram:
    runs of 1 to max_ngram words, n with probability proportional to 1/n (ALBERT, arXiv:1909.11942 section 4.1)."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the maskable positions of a row that become targets."""
    final_mlm_probability: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share at the last step, reached in a straight line over the run (arXiv:2305.15096); None: it stays."""
    mask_share: Share = 0.8
    """Share of the targets that the model sees as [MASK]."""
    random_share: Share = 0.1
    """Share of the targets that the model sees as a random token; the rest it sees unchanged."""
    dynamic: bool = True
    """New masks at every visit of a row (RoBERTa, arXiv:1907.11692 section 4.1); False: `copies` in turn."""
    copies: Annotated[int, Field(ge=1)] = 10
    """Masked copies of a row where masks are static: 10 as in the first BERT; 1: the same masks in every epoch."""
    span_probability: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """p of the geometric distribution of span lengths in words."""
    max_span: Annotated[int, Field(ge=1)] = 10
    """Longest span in words."""
    max_ngram: Annotated[int, Field(ge=1)] = 3
    """Longest n-gram in words."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "Masking":
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                f"mask_share {self.mask_share} + random_share {self.random_share} is more than 1; lower one of them"
            )
        return self


Fraction = Annotated[float, Field(gt=0, lt=1)]


class Task(Section):
    """Labelled examples for a head. Which columns are read depends on head.kind."""

    train: str = "docstrings"
    """CSV, TSV, JSONL, Parquet or Arrow file, here or in a bucket (s3://, gs://); CoNLL (.conll .conllu) for tagging,
    SQuAD's .json for answering; "docstrings" is the built-in task: which package is this text from?"""
    validation: str | None = None
    """File of the same shape; None: a part of the training examples is held out."""
    test: str | None = None
    """File of the same shape; scored once, for the winner. None: held out too, as test_fraction says."""
    validation_fraction: Fraction = 0.1
    """Share of the training examples that is held out for validation where no file is given: by label (a label of three
    or more examples stands in it too), drawn by `seed`, copies of a text and questions about one context together."""
    test_fraction: Fraction | None = None
    """The same for test; None: 0.1 where neither a validation nor a test file is given, else none."""
    group: str | None = None
    """Column of what must stay together (a patient, a speaker): no value of it stands in two of the splits made."""
    format: Literal["csv", "tsv", "jsonl", "parquet", "arrow", "conll"] | None = None
    """Of the files; None: told by their suffixes."""
    encoding: str = "utf-8"
    """Of the files, where they are text; cp1252 is that of Western spreadsheets."""
    text: str = "text"
    """Column of the text; of the question (answering), the query (embedding), the words (tagging: a list, or a text
    whose words are separated by spaces)."""
    text_pair: str | None = None
    """Column of a second text; answering: of the text that holds the answer ("context" where None); embedding: of the
    passage or second text ("passage" where None)."""
    label: str = "label"
    """Column of the label; multi_label: a list, or a text with commas; regression: a number; tagging: as many tags as
    words; answering: the answers' texts; multiple_choice: the number of the right one from 0, or its letter."""
    choices: tuple[str, ...] = ()
    """multiple_choice: columns of the choices."""
    passages: str | None = None
    """embedding: file of passages to search (columns id and text); the label column then names the id of each
    query's passage. None: each query's passage stands beside it."""
    scheme: Literal["bio", "iob1", "iobes", "io"] | None = None
    """tagging: how tags mark entities; None: told by the tags, which may also be plain (parts of speech)."""
    metric: (
        Literal[
            "accuracy", "macro_f1", "micro_f1", "matthews", "pearson", "spearman", "entity_f1", "exact_match",
            "answer_f1", "recall_at_1", "recall_at_10", "mrr", "ndcg_at_10",
        ]
        | None
    ) = None
    """Score on the validation examples by which the winner is chosen; None: the usual one of the kind."""
    train_size: Annotated[int, Field(ge=1)] | None = None
    """Use only the first n training examples (of a shuffle by `seed`); None: all."""
    unseen_labels: Literal["refuse", "count_wrong"] = "refuse"
    """Validation or test examples with a label that training has not: a mistake, or errors that the score counts."""

    @model_validator(mode="after")
    def _splits_fit(self) -> "Task":
        if self.test is not None and self.test_fraction is not None:
            raise ValueError(
                f"test={self.test} and test_fraction={self.test_fraction:g}: a test split is read or made; give one "
                f"of them"
            )
        held = (self.validation_fraction if self.validation is None else 0) + (self.made_test_fraction or 0)
        if held >= 1:
            raise ValueError(
                f"validation_fraction={self.validation_fraction:g} and test_fraction={self.made_test_fraction:g} leave "
                f"nothing to train on; give less"
            )
        return self

    @property
    def made_test_fraction(self) -> float | None:
        """`test_fraction`, None resolved: then no test split is made."""
        if self.test_fraction is None and self.validation is None and self.test is None:
            return 0.1
        return self.test_fraction
