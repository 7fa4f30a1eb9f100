"""Text -> token rows on disk: `cloze prepare` against `datasets.map(batched=True, num_proc=cores)`.

    make bench BENCH=prepare ARGS="[MEGABYTES]"

The peer does what Hugging Face's run_mlm.py does: tokenise, then concatenate and cut into rows (group_texts), each in
one process per core, and writes Arrow files. Ours reads the files twice, drops duplicates, splits sentences, packs rows
that keep their boundaries, and writes Parquet. Same cores, same tokenizer (a WordPiece of 8,192 tokens trained before
the clock starts), same corpus: docstrings of installed packages, numbered so that none is a duplicate, in eight JSONL
files of 60 MB in all. The clock of ours begins with Ray started and ends with the manifest; the peer's is told with and
without `load_dataset`, which turns JSONL into Arrow.
"""

import json
import os
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
CORES, LENGTH, FILES = len(os.sched_getaffinity(0)), 128, 8


def write_corpus(folder: Path, megabytes: int) -> int:
    """Numbered docstrings in FILES JSONL files; returns their bytes of text. Ray must have been started."""
    import pyarrow.parquet as pq

    from data import docstrings

    built = docstrings.build(folder / "cache", lambda *_: None)
    tables = [pq.read_table(path) for path in sorted(built.glob("corpus-*.parquet"))]
    texts = [text for table in tables for text in table["text"].to_pylist()]
    files = [(folder / f"{number}.jsonl").open("w", encoding="utf-8") for number in range(FILES)]
    num_bytes = number = 0
    while num_bytes < megabytes * 1_000_000:
        text = f"{number}. {texts[number % len(texts)]}"
        files[number % FILES].write(json.dumps({"text": text}) + "\n")
        num_bytes, number = num_bytes + len(text.encode()), number + 1
    for file in files:
        file.close()
    return num_bytes


def ours(corpus: Path, tokenizer: Path, cache: Path) -> tuple[float, int, int]:
    """Seconds, tokens, rows."""
    from data.config import Corpus, Rows, Tokenizer
    from data.prepare import prepare

    begun = time.monotonic()
    sources = {"sources": str(corpus / "*.jsonl")}
    options = Tokenizer(path=str(tokenizer)), Rows(length=LENGTH)
    store = prepare(Corpus.model_validate(sources), *options, cache, lambda *_: None)
    return time.monotonic() - begun, store.manifest["tokens"], store.train.num_rows


def peer(corpus: Path, folder: Path, cache: Path) -> tuple[float, float, int, int]:
    """Seconds of load_dataset, seconds of the two maps, tokens, rows. Source: transformers' run_mlm.py."""
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=10**9)

    def tokenize(examples: dict[str, list[str]]) -> Any:
        return tokenizer(examples["text"], return_special_tokens_mask=True)

    def group_texts(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: list(chain(*values)) for name, values in examples.items()}
        total = len(joined["input_ids"]) // LENGTH * LENGTH
        return {name: [v[i : i + LENGTH] for i in range(0, total, LENGTH)] for name, v in joined.items()}

    begun = time.monotonic()
    files = [str(path) for path in sorted(corpus.glob("*.jsonl"))]
    dataset = load_dataset("json", data_files=files, split="train", cache_dir=str(cache))
    loaded = time.monotonic()
    dataset = dataset.map(tokenize, batched=True, num_proc=CORES, remove_columns=["text"])
    dataset = dataset.map(group_texts, batched=True, num_proc=CORES)
    return loaded - begun, time.monotonic() - loaded, dataset.num_rows * LENGTH, dataset.num_rows


def main(megabytes: int) -> None:
    """Print both."""
    import datasets
    import ray

    from data.config import Corpus, Rows, Tokenizer
    from data.prepare import prepare

    datasets.disable_progress_bars()
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_bytes = write_corpus(folder, megabytes)
        sample = Corpus.model_validate({"sources": str(folder / "0.jsonl")})
        trained = prepare(sample, Tokenizer(), Rows(length=LENGTH), folder / "sample", lambda *_: None)
        print(f"{num_bytes / 1e6:.0f} MB of text, {CORES} cores")
        seconds, tokens, rows = ours(folder, trained.tokenizer_folder, folder / "ours")
        print(f"cloze prepare     {seconds:7.1f} s   {tokens:>12,} tokens {rows:>9,} rows")
        ray.shutdown()
        loading, mapping, peer_tokens, peer_rows = peer(folder, trained.tokenizer_folder, folder / "peer")
        print(f"datasets.map      {mapping:7.1f} s   {peer_tokens:>12,} tokens {peer_rows:>9,} rows")
        print(f"  + load_dataset  {loading:7.1f} s")
        print(f"ratio {mapping / seconds:.2f} (map alone), {(loading + mapping) / seconds:.2f} (with load_dataset)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 60)
