"""What the verbs of rows do: make them from a corpus, and show what the model will see of them.

In: a verb's parsed options. Out: its exit code, and what it prints. What is counted of rows is data/inspection.py's.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from data.config import UserError
from data.store import Store
from orchestration.cluster import joined
from orchestration.config import Config
from orchestration.plan import number_of_phase, phases_of
from orchestration.progress import Progress
from orchestration.recipe import load_config
from orchestration.run import cache_of, folder_of
from orchestration.terminal import printable, printable_json
from orchestration.verbs import as_typed, await_nodes, log_of

PARTS = ("train", "held_out")
BAR_CELLS = 40
STYLES = {
    "text": "", "special": "dim", "masked": "black on yellow", "random": "bold red", "kept": "underline green",
    "boundary": "bold magenta",
}  # fmt: skip
LEGEND = (
    ("masked", "[MASK:word]"), ("text", " hidden  "), ("random", "{shown|word}"), ("text", " another word shown  "),
    ("kept", "{word}"), ("text", " to be guessed though shown  "),
    ("boundary", "‖"), ("text", " next document or segment"),
)  # fmt: skip


def prepare(options: argparse.Namespace) -> int:
    """Prepare rows, without a run."""
    config = load_config(options.recipe, options.overrides)
    from data.phases import longest
    from data.tally import tell
    from orchestration.checks import check

    check(config, folder_of(config))
    if options.dry_run:
        print("the files of the corpus were found; they are read by `cloze prepare` itself")
        return 0
    with _prepared(config) as (stores, terminal):
        print(tell(longest(stores).manifest), file=terminal.out)
        for store in stores:
            of = f" of {store.train.length} tokens" if len(stores) > 1 else ""
            print(f"{store.train.num_rows:,} rows{of}, {store.held_out.num_rows:,} held out", file=terminal.out)
        for store in stores:
            print(f"rows {as_typed(store.path)}   log {as_typed(terminal.log)}", file=terminal.out)
    return 0


@contextmanager
def _prepared(config: Config) -> Iterator[tuple[list[Store], Any]]:
    """The store of each phase of a config, prepared if that was not done, and the terminal."""
    from data.phases import find_phases, prepare_phases

    cache = cache_of(config)
    wanted = config.corpus, config.tokenizer, config.rows, cache
    with log_of(cache) as terminal:
        if (stores := find_phases(*wanted)) is not None:
            yield stores, terminal
            return
        progress = Progress(terminal.err)
        with joined(config.cluster):
            await_nodes(config, progress)
            with progress.stage("corpus") as update:
                stores = prepare_phases(*wanted, update, run=config.name, autoscales=config.cluster.autoscales)
        yield stores, terminal


def inspect(options: argparse.Namespace) -> int:
    """Show counts and a few rows of the corpus as the model sees them at a step."""
    wanted = None
    if options.row_ids is not None:
        wanted = [_whole_number("--row-ids", word) for word in options.row_ids.split(",")]
    num_rows, step = _whole_number("--rows", options.rows), _whole_number("--step", options.step)
    if num_rows < 1:
        raise UserError(f"--rows {num_rows}: no row to show; give 1 or more")
    if options.part not in PARTS:
        raise UserError(f"--part {options.part}: no such part; give one of: {', '.join(PARTS)}")
    config = load_config(options.recipe, options.overrides)
    total = config.pretrain.total_steps
    if total is not None and step >= total:
        raise UserError(f"--step {step}: the run has steps 0 to {total - 1}; give one of them")
    from orchestration.checks import check

    check(config, folder_of(config))
    with _prepared(config) as (stores, terminal):
        store = stores[number_of_phase(phases_of(config), step)]
        facts = look(config, store, options.part, step, num_rows, wanted)
        if options.json:
            print(printable_json(facts), file=terminal.out)
        else:
            show_facts(facts, terminal.out)
    return 0


def _whole_number(name: str, text: str) -> int:
    """The number of an option. Raises UserError."""
    if not text.strip().isdecimal():
        raise UserError(f"{name} {text}: not a whole number; give 0 or more")
    return int(text)


def look(
    config: Config, store: Store, part: str, step: int, num_rows: int, wanted: list[int] | None
) -> dict[str, Any]:
    """All that `inspect` shows, as one mapping; `store` is that of the phase which `step` is of. Raises UserError for
    rows that are not there.

    Rows: those `wanted`; else the first of the training batch of `step`, or of the held-out part. Training rows are
    masked as at `step`; a wanted one as at the visit that the epoch of that step finds its source at; held-out rows as
    in every evaluation.
    """
    from data.inspection import mark_rows, summarise
    from data.masking import mlm_probability
    from orchestration.segments import EVALUATION_VISIT, order_of

    there = getattr(store, part).num_rows
    if not there:
        raise UserError(f"--part {part}: no document is held out, so it has no rows; give --part train")
    if wanted is not None and max(wanted) >= there:
        raise UserError(f"--row-ids {max(wanted)}: {part} has the rows 0 to {there - 1}; give some of these")
    if part == "held_out":
        step = 0  # evaluation keeps to the first share
        row_ids = np.array(wanted) if wanted is not None else np.arange(min(num_rows, there))
        visits = np.full(len(row_ids), EVALUATION_VISIT)
    else:
        weights = config.corpus.weights
        order = order_of(store, weights, config.seed, config.pretrain.global_batch)
        phases = phases_of(config)
        in_phase = step - phases[number_of_phase(phases, step)].first_step
        if wanted is not None:
            row_ids = np.array(wanted)
            visits = _visits_before(in_phase // order.steps_per_epoch, row_ids, store, weights)
        else:
            window = order.window(order.window_of(in_phase))
            row_ids = window.rows[in_phase - window.first_step][:num_rows]
            visits = window.visits[in_phase - window.first_step][:num_rows]
    # Of a run that a budget ends the share does not change: another one is refused.
    share = float(mlm_probability(config.masking, step, config.pretrain.total_steps or 1))
    facts = summarise(store, part, config.masking, share, config.seed)
    for source in facts["sources"]:
        named = 0 <= source["source"] < len(config.corpus.sources)
        source["path"] = config.corpus.sources[source["source"]].path if named else "corpus.held_out_sources"
        source["weight"] = config.corpus.sources[source["source"]].weight if named else None
    return {
        "store": str(store.path), "step": step, "strategy": config.masking.strategy, "mlm_probability": share, **facts,
        "rows_shown": mark_rows(store, part, row_ids, visits, share, config.seed, config.masking),
    }  # fmt: skip


def _visits_before(epoch: int, row_ids: np.ndarray, store: Store, weights: tuple[float, ...]) -> np.ndarray:
    """How often the source of each row was gone through whole before an epoch: with weight 1, `epoch` times."""
    shards = store.train
    sources = shards.shard_sources[np.searchsorted(np.cumsum(shards.shard_rows), row_ids, side="right")]
    visits = np.empty(len(row_ids), np.int64)
    for source in np.unique(sources):
        rows = int(shards.shard_rows[shards.shard_sources == source].sum())
        visits[sources == source] = epoch * max(1, round(weights[source] * rows)) // rows
    return visits


def show_facts(facts: dict[str, Any], out: Any) -> None:
    """Print what `look` found; in colour where `out` is a terminal that has any."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False, soft_wrap=True)
    for name, line in _lines(facts):
        console.print(Text.assemble((f"{name:<12}", "bold"), _shown(line)))
    lengths = facts["sample"]["lengths"]
    most = max(bar["rows"] for bar in lengths)
    for bar in lengths:
        span = f"{bar['from']}-{bar['to']}" if bar["from"] < bar["to"] else str(bar["to"])
        cells = "█" * -(-BAR_CELLS * bar["rows"] // most)
        console.print(Text.assemble(f"{span:>10}  ", (cells, "cyan"), f" {bar['rows']:,}"))
    for row in facts["rows_shown"]:
        label = "" if row["pair_label"] is None else f", pair label {row['pair_label']}"
        visit = f"visit {row['visit']}" if facts["part"] == "train" else "as in every evaluation"
        head = f"\nrow {row['row_id']}, {visit}: {row['tokens']} tokens, {row['targets']} targets{label}"
        console.print(Text(head, "bold"))
        console.print(Text.assemble(*((_shown(text), STYLES[kind]) for kind, text in row["parts"])))
    console.print(Text.assemble("\n", *((text, STYLES[kind]) for kind, text in LEGEND)))


def _shown(text: str) -> str:
    """A text of the corpus, which may hold what a terminal obeys; its lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and text of each fact but the lengths."""
    documents, rows, sample = facts["documents"], facts["rows"], facts["sample"]
    outcomes = " + ".join(f"{documents[name]:,} {name}" for name in ("kept", "empty", "duplicate", "quarantined"))
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in facts["quarantined_by_reason"].items())
    scripts = ", ".join(f"{name} {_percent(share)}" for name, share in list(sample["scripts"].items())[:6])
    lines = [
        ("documents", f"{documents['read']:,} read = {outcomes}" + (f" ({reasons})" if reasons else "")),
        ("files", f"{facts['files']:,}"),
        *(
            ("source", f"{one['path']}: {one['rows']:,} rows{_visited(one)}, {one['held_out_rows']:,} held out")
            for one in facts["sources"]
        ),
        ("rows", f"{rows['train']:,}, {rows['held_out']:,} held out, of {rows['length']} tokens ({rows['packing']})"),
        ("tokens", f"{facts['tokens']:,}"),
        ("sample", f"{sample['rows']:,} rows of {facts['part']}, {sample['tokens']:,} tokens"),
        ("unknown", f"{_percent(sample['unknown_share'])} of the tokens"),
        ("padding", _percent(sample["padding_share"])),
        ("scripts", scripts or "no letters"),
    ]
    if labels := sample["pair_labels"]:
        lines.append(("pair labels", f"{labels['1']:,} of 1, {labels['0']:,} of 0"))
    elif several := sample["rows_of_several_segments"]:
        lines.append(("segments", f"{several:,} rows hold several documents"))
    for strategy, target in sample["targets"].items():
        mark = "  <- masking.strategy" if strategy == facts["strategy"] else ""
        seen = ", ".join(f"{_percent(target[name])} {name}" for name in ("masked", "random", "kept"))
        lines.append((strategy, f"{_percent(target['share'])} targets, of these {seen}{mark}"))
    shortest, longest = sample["shortest"], sample["longest"]
    ends = f"{shortest['tokens']} (row {shortest['row_id']}) to {longest['tokens']} tokens (row {longest['row_id']})"
    return [*lines, ("lengths", ends)]


def _visited(source: dict[str, Any]) -> str:
    return f" x {source['weight']:g} an epoch" if source["weight"] not in (None, 1) else ""


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"
