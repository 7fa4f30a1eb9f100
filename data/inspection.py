"""What a model will see of a prepared corpus: counts, laws, and rows as text with marks.

In: an open store, the masking section, what decides the masks of rows. Out: plain mappings, ready for JSON. Counts of
documents are the manifest's; all else is counted on a sample of rows, so that a large store takes no longer than a
small one. Knows neither the command line nor colours.
"""

import os
import re
import unicodedata
from collections import Counter
from functools import cache
from typing import Any, get_args

import numpy as np

from data.batches import PAIRS
from data.config import Masking
from data.masking import IGNORED, Vocabulary, mask_rows
from data.storage import fetch_once
from data.store import Shards, Store, TokenRows

SAMPLE_PLACES, PLACE_ROWS = 32, 64  # rows of a sample: at 32 places spread evenly, so at most 64 row groups are read
SCRIPT_ROWS = 200  # of the sample, whose letters are looked at
BARS = 10  # of the histogram of lengths
CONTEXT = 4  # tokens before one that decide how it reads: a character of byte-level tokenizers is at most 4 of them
INCOMPLETE = "\ufffd"  # what byte-level tokenizers decode a part of a character to
STRATEGIES = get_args(Masking.model_fields["strategy"].annotation)
# "LATIN SMALL LETTER A" -> LATIN, "CJK UNIFIED IDEOGRAPH-4E00" -> CJK, "HALFWIDTH KATAKANA LETTER A" -> KATAKANA
_SCRIPT = re.compile(
    r"(?:FULLWIDTH |HALFWIDTH )?([A-Z ]+?)(?: (?:SMALL|CAPITAL|UNIFIED|COMPATIBILITY))*"
    r" (?:LETTER|LIGATURE|CHARACTER|IDEOGRAPH|SYLLABLE)"
)
_SCRIPT_NAMES = {"CJK": "Han", "MODIFIER": "other"}


def summarise(store: Store, part: str, masking: Masking, share: float, seed: int) -> dict[str, Any]:
    """Facts of a store, and of a sample of the rows of `part` ("train" or "held_out"), `share` of them targets.

    A share of nothing (of the letters of a sample without letters, say) is None.
    """
    manifest = store.manifest
    shards: Shards = getattr(store, part)
    row_ids = sample(shards.num_rows)
    rows = shards.read(row_ids)
    there = np.arange(rows.input_ids.shape[1]) < rows.lengths[:, None]
    tokenizer = manifest["tokenizer"]
    unknown = there & (rows.input_ids == tokenizer["unk_id"])
    ordinary = there & ~np.isin(rows.input_ids, tokenizer["special_ids"])
    outcomes = ("read", "kept", "empty", "duplicate", "quarantined")
    return {
        "documents": {name: manifest[f"documents_{name}"] for name in outcomes},
        "quarantined_by_reason": manifest["quarantined_by_reason"],
        "files": manifest["files"],
        "sources": _sources(manifest["shards"]),
        "rows": {"train": store.train.num_rows, "held_out": store.held_out.num_rows, **manifest["rows"]},
        "tokens": manifest["tokens"],
        "part": part,
        "sample": {
            "rows": len(row_ids),
            "tokens": int(there.sum()),
            "unknown_share": _share(unknown.sum(), (ordinary | unknown).sum()),
            "padding_share": _share((~there).sum(), there.size),
            "lengths": _histogram(rows.lengths, shards.length),
            "shortest": _extreme(row_ids, rows.lengths, np.argmin),
            "longest": _extreme(row_ids, rows.lengths, np.argmax),
            "rows_of_several_segments": int((rows.segments.max(axis=1, initial=0) > 0).sum()),
            "pair_labels": _pair_labels(rows) if manifest["rows"]["packing"] in PAIRS else None,
            "scripts": _scripts(store, rows),
            "targets": {
                strategy: _targets(store, rows, row_ids, masking.model_copy(update={"strategy": strategy}), share, seed)
                for strategy in STRATEGIES
            },
        },
    }


def sample(num_rows: int) -> np.ndarray:
    """Row ids (n,) int64, ascending: all where there are few, else PLACE_ROWS at each of SAMPLE_PLACES."""
    if num_rows <= SAMPLE_PLACES * PLACE_ROWS:
        return np.arange(num_rows)
    places = np.linspace(0, num_rows - PLACE_ROWS, SAMPLE_PLACES).astype(np.int64)
    return (places[:, None] + np.arange(PLACE_ROWS)).ravel()


def mark_rows(
    store: Store, part: str, row_ids: np.ndarray, visits: np.ndarray, share: float, seed: int, masking: Masking
) -> list[dict[str, Any]]:
    """Rows (n,) as the model sees them at these visits (n,): of each its facts, its text, and the text's parts.

    Parts are [kind, text] and make up the text: "text"; "special"; "masked" [MASK:word]; "random" {shown|word}; "kept"
    {word}, a target that the model sees; "boundary" ‖, where another document or segment begins.
    """
    from tokenizers import Tokenizer as Backend

    rows: TokenRows = getattr(store, part).read(row_ids)
    inputs, labels = _mask(store, rows, row_ids, visits, masking, share, seed)
    backend = Backend.from_file(str(fetch_once(store.tokenizer_folder / "tokenizer.json")))
    special = set(store.manifest["tokenizer"]["special_ids"])
    marked = []
    for i, row_id in enumerate(row_ids.tolist()):
        length = int(rows.lengths[i])
        ids = rows.input_ids[i, :length].tolist()
        parts = _parts(backend, ids, inputs[i].tolist(), labels[i].tolist(), rows.segments[i].tolist(), special)
        marked.append({
            "row_id": row_id,
            "visit": int(visits[i]),
            "tokens": length,
            "targets": int((labels[i] != IGNORED).sum()),
            "segments": int(rows.segments[i].max(initial=0)) + 1,
            "pair_label": int(rows.labels[i]) if store.manifest["rows"]["packing"] in PAIRS else None,
            "text": "".join(text for _, text in parts),
            "parts": parts,
        })  # fmt: skip
    return marked


def _parts(
    backend: Any, ids: list[int], inputs: list[int], labels: list[int], segments: list[int], special: set[int]
) -> list[list[str]]:
    """The parts of one row; neighbours of a kind are one part."""
    parts: list[list[str]] = []

    def add(kind: str, text: str) -> None:
        if parts and parts[-1][0] == kind and kind in ("text", "special"):
            parts[-1][1] += text
        elif text:
            parts.append([kind, text])

    for place, token in enumerate(ids):
        if place and segments[place] != segments[place - 1]:
            add("boundary", " ‖")
        context = ids[max(0, place - CONTEXT) : place]
        text = _reading(backend, context, token)
        if labels[place] == IGNORED:  # a character of several tokens is shown with its last one
            add("special" if token in special else "text", text.rstrip(INCOMPLETE))
            continue
        word = text.lstrip(" ") or text or INCOMPLETE
        add("text", " " * (len(text) - len(word)))
        shown = _reading(backend, context, inputs[place]).lstrip(" ") or INCOMPLETE
        if inputs[place] == token:
            add("kept", f"{{{word}}}")
        elif inputs[place] in special:
            add("masked", f"[MASK:{word}]")
        else:
            add("random", f"{{{shown}|{word}}}")
    return parts


def _reading(backend: Any, context: list[int], token: int) -> str:
    """What a token adds to the text behind `context`, the space before it included; a newline as \\n."""
    before = backend.decode(context, skip_special_tokens=False)
    after = backend.decode([*context, token], skip_special_tokens=False)
    return after[len(os.path.commonprefix([before, after])) :].replace("\n", "\\n")


def _mask(
    store: Store, rows: TokenRows, row_ids: np.ndarray, visits: np.ndarray, masking: Masking, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, (n, L) int32 both."""
    tokenizer = store.manifest["tokenizer"]
    vocabulary = Vocabulary(tokenizer["vocab_size"], tokenizer["mask_id"], tuple(tokenizer["special_ids"]))
    shares = np.full(len(row_ids), share)
    return mask_rows(rows.input_ids, rows.word_starts, row_ids, visits, shares, seed, masking, vocabulary)


def _targets(
    store: Store, rows: TokenRows, row_ids: np.ndarray, masking: Masking, share: float, seed: int
) -> dict[str, float | None]:
    """Share of the maskable tokens that are targets, and of these the shares that are seen masked, random, kept."""
    inputs, labels = _mask(store, rows, row_ids, np.zeros(len(row_ids), np.int64), masking, share, seed)
    target = labels != IGNORED
    seen, word, mask_id = inputs[target], labels[target], store.manifest["tokenizer"]["mask_id"]
    maskable = ~np.isin(rows.input_ids, store.manifest["tokenizer"]["special_ids"])
    return {
        "share": _share(target.sum(), maskable.sum()),
        "masked": _share((seen == mask_id).sum(), len(seen)),
        "random": _share(((seen != mask_id) & (seen != word)).sum(), len(seen)),
        "kept": _share((seen == word).sum(), len(seen)),
    }


def _share(some: int | np.integer, of_all: int | np.integer) -> float | None:
    return round(float(some / of_all), 6) if of_all else None


def _sources(shards: dict[str, list[dict[str, Any]]]) -> list[dict[str, int]]:
    """Rows and bytes of each source, by its number."""
    found: dict[int, dict[str, int]] = {}
    for part, name in (("train", "rows"), ("held_out", "held_out_rows")):
        for shard in shards[part]:
            source = {"source": shard["source"], "shards": 0, "rows": 0, "held_out_rows": 0, "bytes": 0}
            source = found.setdefault(shard["source"], source)
            source["shards"] += 1
            source[name] += shard["rows"]
            source["bytes"] += shard["bytes"]
    return [found[number] for number in sorted(found)]


def _histogram(lengths: np.ndarray, longest: int) -> list[dict[str, int]]:
    """Rows of 1 to `longest` tokens in BARS ranges of about equal width, fewer where rows are that short."""
    edges = np.unique(np.linspace(0, longest, BARS + 1).astype(int))
    counts, _ = np.histogram(lengths, bins=edges + 1 - 0.5)
    bounds = zip(edges[:-1] + 1, edges[1:], counts, strict=True)
    return [{"from": int(low), "to": int(high), "rows": int(count)} for low, high, count in bounds]


def _extreme(row_ids: np.ndarray, lengths: np.ndarray, choose: Any) -> dict[str, int] | None:
    """The first row of the least or most tokens."""
    if not len(row_ids):
        return None
    place = int(choose(lengths))
    return {"row_id": int(row_ids[place]), "tokens": int(lengths[place])}


def _pair_labels(rows: TokenRows) -> dict[str, int]:
    return {str(label): int((rows.labels == label).sum()) for label in (0, 1)}


def _scripts(store: Store, rows: TokenRows) -> dict[str, float]:
    """Share of each script in the letters of a part of the sample, the commonest first."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(fetch_once(store.tokenizer_folder / "tokenizer.json")))
    counts: Counter[str] = Counter()
    for i in range(0, len(rows.lengths), max(1, len(rows.lengths) // SCRIPT_ROWS)):
        text = backend.decode(rows.input_ids[i, : rows.lengths[i]].tolist(), skip_special_tokens=True)
        counts.update(script_of(character) for character in text if character.isalpha())
    return {script: round(count / counts.total(), 6) for script, count in counts.most_common()}


@cache
def script_of(letter: str) -> str:
    """Name of a letter's script as Unicode names it (Latin, Han, Cyrillic, ...); "other" where its name has none."""
    found = _SCRIPT.match(unicodedata.name(letter, ""))
    return _SCRIPT_NAMES.get(found[1], found[1].title()) if found else "other"
