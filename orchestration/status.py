"""How far runs are, from their files alone: no Ray, no Prometheus, on any machine that sees the storage.

In: the folder of all runs, or one run. Out: its status as a dict, and as plain lines. What the driver last wrote
(orchestration/pulse.py) says where the run is; its lease says whether that is still so. Writes nothing.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.config import UserError
from data.storage import children, fetch, is_remote, place
from orchestration.lease import is_held
from orchestration.progress import duration
from orchestration.pulse import STATUS

Status = dict[str, Any]
# Said of each state where the status has no cause of its own; unknown: made before runs wrote a status, or damaged.
STATES = {
    "running": "",
    "finished": "",
    "stopped": "the same command goes on",
    "failed": "",
    "lost": "its driver is gone without a word (killed, or its machine is); the same command goes on",
    "unknown": "",
}
NUMBER = (int, float)
FORM: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("run", "stage", "text", "host"), (str,)),
    **dict.fromkeys(("began", "beat"), NUMBER),
    **dict.fromkeys(("fraction", "eta_seconds", "step", "steps", "loss", "eval_loss"), (*NUMBER, type(None))),
    **dict.fromkeys(("tokens_per_second", "workers", "restarts"), (*NUMBER, type(None))),
    **dict.fromkeys(("cause", "budget", "warning"), (str, type(None))),
    "trials": (dict, type(None)),
    "leaderboard": (list, type(None)),
}
LINE = ("step", "loss", "tokens_per_second")  # what is told of a line of metrics.jsonl
TAIL_BYTES = 4096  # of metrics.jsonl: several lines
SILENT_SECONDS = 30.0  # after which the age of the last word is told


def find_run(name: str, storage: str) -> Path:
    """The folder of a run, by name or path. Raises UserError with the names there are."""
    if is_run(Path(name)) and len(Path(name).parts) > 1:
        return Path(name)
    folder = _open_storage(storage)
    if is_run(folder / name):
        return folder / name
    names = [run.name for run in find_runs(storage)]
    there = f"there are: {', '.join(names)}" if names else f"{storage} holds none"
    raise UserError(f"{name}: no such run in {storage}; {there} (another folder: --storage DIR)")


def find_runs(storage: str) -> list[Path]:
    """All runs of a storage, the one begun last at the end. Raises UserError where it is no folder."""
    folder = _open_storage(storage)
    runs = [folder / name for name in children(folder) if not name.startswith(".") and is_run(folder / name)]
    return sorted(runs, key=lambda run: (_read(run).get("began", 0.0), run.name))


def _open_storage(storage: str) -> Path:
    """Its local path. Raises UserError where there is no such folder, or the bucket does not answer."""
    folder = place(storage)
    if not is_remote(folder) and not folder.is_dir():
        raise UserError(f"--storage {storage}: no such folder; give the one that runs were started with (storage=...)")
    try:
        children(folder)
    except OSError as error:
        cause = " ".join(str(error).split())[:200]
        raise UserError(f"--storage {storage}: cannot be read ({cause}); give another, or credentials for it") from None
    return folder


def is_run(folder: Path) -> bool:
    """Whether a folder of the storage holds a run or a sweep."""
    for name in ("config.yaml", STATUS):
        fetch(folder / name, delete=False)
    return (folder / "config.yaml").is_file() or (folder / STATUS).is_file()


def read_status(run: Path) -> Status:
    """What is known of a run: at least run, state and note ("" where there is nothing to say of the reading)."""
    status = {"run": run.name, "note": "", **_read(run)}
    held = is_held(run)
    if status["state"] == "running" and not held:
        # Between the two reads the driver may have ended as it should.
        status |= _read(run)
        status["state"] = "lost" if status["state"] == "running" else status["state"]
    elif status["state"] == "unknown" and held:
        status["state"] = "running"
    return status


def _read(run: Path) -> Status:
    """status.json; where it is absent or damaged, what other files tell."""
    fetch(run / STATUS, delete=False)
    try:
        status = json.loads((run / STATUS).read_text(encoding="utf-8"))
        if _is_whole(status):
            return status
        note = f"{STATUS} is damaged"
    except FileNotFoundError:
        note = f"it has no {STATUS}"
    except (OSError, ValueError):
        note = f"{STATUS} cannot be read"
    for name in ("summary.json", "leaderboard.json"):
        fetch(run / name, delete=False)
    ended = (run / "summary.json").is_file() or (run / "leaderboard.json").is_file()
    status = {"state": "finished" if ended else "unknown", "note": f"{note}: told from its other files"}
    line = _last_line(run / "metrics.jsonl")
    if line:
        status |= {"step": line["step"] + 1, "loss": line["loss"], "tokens_per_second": line["tokens_per_second"]}
    return status


def _is_whole(status: Any) -> bool:
    """Whether a status has the form that the driver writes."""
    if not isinstance(status, dict) or not isinstance(state := status.get("state"), str) or state not in STATES:
        return False
    typed = all(isinstance(status[key], kinds) for key, kinds in FORM.items() if key in status)
    return typed and ("began" not in status or {"host", "beat"} <= status.keys())


def _last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a training step; {} where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").split("\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:  # the first one of the tail is cut
            continue
        if isinstance(record, dict) and all(isinstance(record.get(key), NUMBER) for key in LINE):
            return record
    return {}


def is_over(status: Status) -> bool:
    """Whether nothing more will come of it by itself."""
    return status["state"] != "running"


def overview(statuses: Sequence[Status]) -> list[str]:
    """One line per run."""
    rows = [("run", "state", "stage", "done", "left", "")] if len(statuses) > 1 else []
    for one in statuses:
        text = _reason(one) if one["state"] in ("failed", "lost") else one.get("text") or _steps(one)
        rows.append((one["run"], one["state"], one.get("stage", ""), _share(one), _left(one), text))
    return _columns(rows)


def page(status: Status) -> list[str]:
    """All that is known of one run, a fact a line."""
    state = " ".join(filter(None, (status["state"], f"({reason})" if (reason := _reason(status)) else "")))
    where = "  ".join(filter(None, (status.get("stage"), _share(status), _left(status, " left"))))
    facts = {"state": state, "stage": where, "step": _steps(status)}
    if status.get("budget"):
        facts["budget"] = f"{_share(status)} of {status['budget']}".removeprefix(" of ")
    for key, name, form in (
        ("loss", "loss", "{:.3f}"),
        ("eval_loss", "held-out", "{:.3f}"),
        ("tokens_per_second", "speed", "{:,.0f} tokens/s"),
        ("workers", "workers", "{}"),
        ("restarts", "restarts", "{}"),
    ):
        if status.get(key) is not None:
            facts[name] = form.format(status[key])
    if status.get("warning"):
        facts["warning"] = status["warning"]
    if trials := status.get("trials"):
        facts["trials"] = ", ".join(f"{count} {state}" for state, count in trials.items() if count)
    if not facts["step"] and not trials:
        facts["doing"] = status.get("text", "")
    if "began" in status:
        facts["began"] = f"{duration(max(0.0, time.time() - status['began']))} ago on {status['host']}"
        silent = time.time() - status["beat"]
        if status["state"] in ("running", "lost") and silent > SILENT_SECONDS:
            facts["last word"] = f"{duration(silent)} ago"
    lines = [status["run"], *(f"  {name:<10}{value}" for name, value in facts.items() if value)]
    if status.get("leaderboard"):
        rows = [("best so far", "mode", "learning rate", "score", "seeds", "examples")]
        rows += [
            (e["encoder"], e["mode"], f"{e['learning_rate']:g}", _score(e), str(e["seeds"]), _examples(e))
            for e in status["leaderboard"]
        ]
        lines += ["", *(f"  {line}" for line in _columns(rows))]
    return lines


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _reason(status: Status) -> str:
    """Why it is in that state, and what is odd about the reading."""
    return "; ".join(filter(None, (status.get("cause") or STATES[status["state"]], status["note"])))


def _share(status: Status) -> str:
    return "" if status.get("fraction") is None else f"{status['fraction']:.0%}"


def _left(status: Status, word: str = "") -> str:
    eta = status.get("eta_seconds")
    return "" if eta is None or is_over(status) else duration(eta) + word


def _steps(status: Status) -> str:
    if status.get("step") is None:
        return ""
    return f"{status['step']:,}" + (f" of {status['steps']:,}" if status.get("steps") is not None else "")


def _score(entry: dict[str, Any]) -> str:
    """Mean over seeds with the half-width of its 95 % interval."""
    if entry["score_mean"] is None:
        return entry["status"]
    stopped = " (stopped)" if entry["status"] == "stopped" else ""
    interval = "" if entry.get("score_ci95") is None else f" ± {entry['score_ci95']:.3f}"
    return f"{entry['score_mean']:.3f}{interval}{stopped}"


def _examples(entry: dict[str, Any]) -> str:
    return "all" if entry.get("train_size") is None else f"{entry['train_size']:,}"
