"""The two passes of Ray Data over a corpus: what stands in it, and its rows.

In: groups of files, then the plan and a tokenizer. Out: a `Scan` of every chunk; shards on storage and what they hold.
Knows Ray and how work is cut into its tasks; what a task does stands in chunks.py and tokens.py.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data.census import Plan, Scan
from data.chunks import read_group, read_kept, scan_chunk
from data.config import Rows, Tokenizer, UserError
from data.corpus import SourceFile
from data.tokens import write_rows

COUNTED_BYTES = 100_000_000  # of text whose words train the tokenizer: more changes 8,192 pieces little
QUARANTINED = 100_000  # unusable records that are described; all are counted
# Asked of Ray per task: unequal, so that Ray does not join the two stages of a pass, and one big file, which one task
# reads, is hashed and tokenised by many.
READ_CPUS, WORK_CPUS = 0.25, 0.5
Progress = Callable[[str, float | None], None]


class Execution(NamedTuple):
    """How the passes run."""

    progress: Progress
    run: str
    """Stands before the names of Ray Data's executions, by which a dashboard tells runs apart."""
    tasks: int | None
    """Of each stage at once, where the cluster's CPUs are known. As many as CPUs: each process learns the words of the
    corpus anew, so twice as many take a third more CPU time. None: as many as Ray finds room for."""


def _run(
    name: str, groups: Sequence[Any], chunk_bytes: int, execution: Execution, *stages: tuple[Callable[..., Any], float]
) -> Iterator[dict[str, Any]]:
    """Stream groups through stages on Ray Data and yield what comes out, in any order.

    Each task gets its own group and no other: a million files are not sent to a thousand tasks.
    """
    import ray

    # from_items, because ray.data.range runs a task that asks for a whole CPU: a small cluster may have less.
    items = [{"group": pickle.dumps(group)} for group in groups]
    dataset = ray.data.from_items(items, override_num_blocks=min(len(groups), 1000))
    context = dataset.context
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = chunk_bytes // 2  # a block ends after each chunk instead of gathering thirty
    compute = ray.data.TaskPoolStrategy(size=execution.tasks)
    for stage, num_cpus in stages:
        dataset = dataset.map_batches(stage, batch_size=1, batch_format="pyarrow", num_cpus=num_cpus, compute=compute)
    dataset.set_name(f"{execution.run}-{name}")
    yield from dataset.iter_rows()


def scan(
    groups: list[list[SourceFile]], chunk_bytes: int, tokenizer: Tokenizer, execution: Execution
) -> list[Scan]:
    """Pass 1. Returns what was learnt of every chunk, in the order of the corpus; raises UserError."""
    import pyarrow as pa

    sizes = [sum(file.size_bytes for file in group) for group in groups]
    text = sum(file.text_bytes for group in groups for file in group)
    share = 0.0 if tokenizer.path else min(1.0, COUNTED_BYTES / max(1, text))

    def read(batch: pa.Table) -> Iterator[pa.Table]:
        for group in batch["group"].to_pylist():
            number, files = pickle.loads(group)
            for found in read_group(number, files, chunk_bytes):
                yield pa.table({"chunk": pa.array([pickle.dumps(found)], pa.large_binary())})

    def count(batch: pa.Table) -> pa.Table:
        found = pickle.loads(batch["chunk"][0].as_buffer())
        if not isinstance(found, Scan):
            found = scan_chunk(found, share, tokenizer)
        return pa.table({"scan": pa.array([pickle.dumps(found)], pa.large_binary())})

    scans: list[Scan] = []
    done = documents = described = 0
    for row in _run("scan", list(enumerate(groups)), chunk_bytes, execution, (read, READ_CPUS), (count, WORK_CPUS)):
        result: Scan = pickle.loads(row["scan"])
        if result.fault:
            raise UserError(result.fault)
        described += len(result.chunk.bads)
        if described > QUARANTINED:  # of a corpus that is bad throughout they would fill the driver's memory
            del result.chunk.bads[:]
        scans.append(result)
        documents += len(result.hashes)
        done += sizes[result.chunk.group] if result.chunk.is_last else 0
        execution.progress(f"reading: {documents:,} documents", 0.4 * done / max(1, sum(sizes)))
    return sorted(scans, key=lambda scan: (scan.chunk.group, scan.chunk.number))


def write(
    part: Path, plans: list[Plan], chunk_bytes: int, rows: Rows, tokenizer: dict[str, Any], execution: Execution
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
    """Pass 2. Returns the shards of both parts in the order of the corpus, and sums of what `Written` tells."""
    import pyarrow as pa

    texts = pa.list_(pa.large_string())

    def read(batch: pa.Table) -> Iterator[pa.Table]:
        for group in batch["group"].to_pylist():
            plan: Plan = pickle.loads(group)
            for number, train, held_out in read_kept(plan, chunk_bytes):
                columns = {"train": pa.array([train], texts), "held_out": pa.array([held_out], texts)}
                yield pa.table({"group": [plan.group], "chunk": [number], **columns})

    def tokenise(batch: pa.Table) -> pa.Table:
        place = batch["group"][0].as_py(), batch["chunk"][0].as_py()
        name = f"shard-{place[0]:06d}-{place[1]:06d}.parquet"
        line: dict[str, Any] = {"group": place[0], "chunk": place[1], "name": name}
        for side in ("train", "held_out"):
            written = write_rows(
                batch[side][0].as_py(), part / side / name, part / "tokenizer", rows,
                tokenizer["cls_id"], tokenizer["sep_id"],
            )  # fmt: skip
            line[side] = written._asdict()
        return pa.Table.from_pylist([line])

    lines: list[dict[str, Any]] = []
    written, num_chunks = 0, sum(len(plan.num_documents) for plan in plans)
    for line in _run("rows", plans, chunk_bytes, execution, (read, READ_CPUS), (tokenise, WORK_CPUS)):
        lines.append(line)
        written += line["train"]["rows"] + line["held_out"]["rows"]
        execution.progress(f"rows: {written:,} of {rows.longest} tokens", 0.5 + 0.5 * len(lines) / num_chunks)
    lines.sort(key=lambda line: (line["group"], line["chunk"]))
    shards = {
        side: [
            {
                "name": line["name"], "rows": line[side]["rows"], "bytes": line[side]["bytes"],
                "source": plans[line["group"]].files[0].source,
            }
            for line in lines if line[side]["rows"]
        ]
        for side in ("train", "held_out")
    }  # fmt: skip
    names = {
        "tokens": "tokens", "dropped_tokens": "dropped_tokens", "documents_without_tokens": "empty_documents",
        "following_rows": "following_rows",
    }  # fmt: skip
    tokens = {
        name: sum(line[side][field] for line in lines for side in ("train", "held_out"))
        for name, field in names.items()
    }
    return shards, tokens
