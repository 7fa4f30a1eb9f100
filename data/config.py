"""What the data room may be told: corpus, tokenizer, rows and masking sections of the config tree.

In: plain mappings from a recipe or the command line. Out: frozen, validated sections.
Knows pydantic only, so that reading a config starts nothing.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


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


class Source(Section):
    """One source of documents: where it lies and how its files are read."""

    path: str
    """File, folder, glob, or "docstrings" (the embedded corpus)."""
    format: Literal["text", "jsonl", "csv", "tsv", "parquet"] | None = None
    """None: told by the suffix of each file (.txt .jsonl .json .csv .tsv .parquet)."""
    text_field: str = "text"
    """Column or key that holds the text (JSONL, CSV, TSV, Parquet)."""
    document: Literal["line", "block", "file"] = "block"
    """What one document of a text file is: a line, a block between blank lines, or the whole file."""
    encoding: str = "utf-8"
    """Encoding of text files. Bytes that do not decode are quarantined, never guessed."""


class Corpus(Section):
    """Which text is read, and which part of it is held out."""

    sources: Annotated[tuple[Source, ...], Field(min_length=1)] = (Source(path="docstrings"),)
    """Paths, globs, "docstrings", or mappings {path, format, text_field, document, encoding}."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Share of documents kept for evaluation, chosen by a hash of the text: stable when the corpus grows."""
    max_bad_fraction: Share = 0.01
    """Share of records that may be unreadable before the run stops; 0 is strict."""
    deduplicate: bool = True
    """Drop documents whose text (surrounding white space aside) was seen before."""

    @model_validator(mode="before")
    @classmethod
    def _paths_are_sources(cls, values: object) -> object:
        """Let a plain path stand for {path: ...}, and one source for a list of one."""
        if isinstance(values, dict) and "sources" in values:
            sources = values["sources"]
            if isinstance(sources, str | dict | Source):
                sources = [sources]
            if isinstance(sources, list | tuple):
                sources = [{"path": s} if isinstance(s, str) else s for s in sources]
            values = {**values, "sources": sources}
        return values


class Tokenizer(Section):
    """The tokenizer: trained on the corpus, or taken from a folder."""

    kind: Literal["wordpiece"] = "wordpiece"
    """Algorithm of a trained tokenizer. Source: BERT, arXiv:1810.04805 section 3."""
    vocab_size: Annotated[int, Field(ge=8)] = 8192
    """Number of tokens, special tokens included."""
    lowercase: bool = True
    """Fold case and strip accents."""
    path: str | None = None
    """Folder of an existing Hugging Face tokenizer; the fields above then do not count."""


class Rows(Section):
    """How documents become token rows of bounded length."""

    length: Annotated[int, Field(ge=8)] = 128
    """Most tokens of a row, special tokens included."""
    packing: Literal["full_sentences", "document"] = "full_sentences"
    """full_sentences: whole sentences until the row is full, crossing documents with a [SEP] between
    (RoBERTa, arXiv:1907.11692 section 4.2); document: a row never crosses a document."""


class Masking(Section):
    """Which positions the model has to guess, and what it sees there."""

    strategy: Literal["token"] = "token"
    """token: single tokens, chosen uniformly among those that are not special."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the maskable positions of a row that become targets."""
    mask_share: Share = 0.8
    """Share of the targets that the model sees as [MASK]."""
    random_share: Share = 0.1
    """Share of the targets that the model sees as a random token; the rest it sees unchanged."""
    dynamic: bool = True
    """New masks every epoch; False: the masks of epoch 0 in every epoch."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "Masking":
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                f"mask_share {self.mask_share} + random_share {self.random_share} is more than 1; lower one of them"
            )
        return self
