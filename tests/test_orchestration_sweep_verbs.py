"""What `cloze sweep` prints: leaderboard with intervals and cost, learning curve, tables of several tasks, a plan."""

import io
from collections.abc import Callable
from pathlib import Path

from made_results import results

from orchestration.recipe import build_config
from orchestration.sweep_verbs import planned, print_suite, print_sweep
from tuning.leaderboard import make_entries
from tuning.table import make_rows, write_suite


def printed(show: Callable, *given) -> list[str]:
    out = io.StringIO()
    show(*given, out)
    return out.getvalue().splitlines()


def test_the_leaderboard_has_intervals_differences_cost_and_what_is_recommended() -> None:
    trials = results("full", [0.90, 0.92, 0.94]) + results("frozen", [0.91, 0.90, 0.94], rate=1e-2)
    trials += results("frozen", ["nan"] * 3, rate=1.0) + results("lora", [0.5, 0.6, "failed"])
    trials += results("full", [0.4], rate=1e-5, status="stopped") + results("full", [0.5], rate=1e-6, status="stopped")
    entries = make_entries(trials)
    entries[1]["test_score"] = 0.913
    lines = [" ".join(line.split()) for line in printed(print_sweep, entries)]
    assert lines[0] == "encoder mode learning rate accuracy against best test cost trained"
    assert lines[1] == "pretrained full 1e-3 0.920 ± 0.050 12 s 80,000"
    assert lines[2] == "pretrained frozen 1e-2 0.917 ± 0.052 -0.003 ± 0.038 0.913 6.0 s 1,000 recommended"
    assert lines[3] == "pretrained lora 1e-3 0.550 ± 0.635 6.0 s 5,000 failed"
    assert lines[4] == "pretrained frozen 1 nan 6.0 s"
    text = "\n".join(printed(print_sweep, entries))
    assert "2 points were stopped by the race, the best of them full at 1e-6, 0.500 by then" in text
    assert "1 of 6 points lack trials that failed, first: failed it was;" in text


def test_other_sizes_are_a_learning_curve_behind_the_leaderboard() -> None:
    trials = results("full", [0.8, 0.81, 0.8]) + results("frozen", [0.7, 0.7, 0.7])
    trials += results("full", [0.3, 0.31, 0.3], size=100, asked=True)
    trials += results("frozen", [0.5, 0.5, 0.5], size=100, asked=True)
    lines = printed(print_sweep, make_entries(trials))
    assert lines[0] == "on 900 examples" and len([line for line in lines if line.startswith("pretrained")]) == 2
    table = lines.index("") + 1
    assert [line.split()[0] for line in lines[table : table + 3]] == ["examples", "100", "900"]
    assert lines[-1] == (
        "With 100 examples frozen is better than full by 0.197; with 900 examples full is better than frozen by 0.103."
    )


def test_a_suite_is_a_table_of_tasks_by_encoders_and_a_sentence_for_each(tmp_path: Path) -> None:
    boards = {"sst2": make_entries(results("full", [0.8, 0.9]) + results("full", [0.5, 0.5], encoder="random"))}
    write_suite(make_rows(boards, {"trec": "task.train=t.csv: no such file\x1b[2J"}), tmp_path)
    lines = printed(print_suite, tmp_path, boards)
    assert lines[0].split() == ["task", "metric", "pretrained", "random", "test"]
    assert " ".join(lines[1].split()) == "sst2 accuracy 0.850 ± 0.635 (full 1e-3) 0.500 ± 0.000 (full 1e-3)"
    assert "sst2: full at 1e-3: accuracy 0.850 ± 0.635." in lines
    assert "trec: failed: task.train=t.csv: no such file\\u001b[2J" in lines


def test_a_plan_counts_points_encoders_seeds_and_sizes_and_says_what_a_trial_asks_for() -> None:
    space = {"finetune.mode": ["frozen", "full"], "finetune.learning_rate": [1e-3, 1e-2]}
    changes = {"sweep.space": space, "sweep.seeds": 3, "sweep.encoders": ["a", "b"]}
    plain = build_config({"name": "x"}, changes)
    lines = planned({"": plain})
    assert lines[0] == "4 points x 2 encoders x 3 seeds = 24 trials"
    assert lines[1:] == [
        "a trial of mode frozen asks for 1 CPU, 0 GPU", "a trial of mode full asks for 1 CPU, 0 GPU"
    ]  # fmt: skip
    asked = {
        "sweep.train_sizes": [100, "all"], "sweep.workers_per_trial": {"full": 2}, "sweep.gpus_per_trial": {"full": 1},
        "sweep.scheduler": "asha", "sweep.budget.trials": 20, "sweep.budget.hours": 1.5,
    }  # fmt: skip
    more = build_config({"name": "x"}, {**changes, **asked})
    lines = planned({"sst2": more, "trec": plain})
    assert lines[:3] == [
        "sst2: 4 points x 2 encoders x 3 seeds x 2 training sizes = at most 48 trials",
        "trec: 4 points x 2 encoders x 3 seeds = 24 trials", "together 72 trials",
    ]  # fmt: skip
    assert "a trial of mode full asks for 2 workers, each 1 CPU, 1 GPU" in lines
    assert "each task ends after 1.5 hours or 20 trials" in lines
