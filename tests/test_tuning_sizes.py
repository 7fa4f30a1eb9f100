"""Numbers of training examples, and how many trials run at once: a learning curve on one logical GPU."""

import json

import numpy as np
import pytest
from test_tuning_sweep import configure
from tiny_encoder import make_task, write_encoder

from data.config import UserError
from tuning.reading import subsets, train_sizes
from tuning.sweep import sweep


def sizes(tmp_path, *asked, total: int = 120) -> list[int | None]:
    return train_sizes(configure(tmp_path, {}, **{"sweep.train_sizes": list(asked)}), total)


def test_all_and_the_number_of_all_examples_are_one_size(tmp_path) -> None:
    assert sizes(tmp_path) == [None] == sizes(tmp_path, "all") == sizes(tmp_path, 120, "all")
    assert sizes(tmp_path, 30, 100, "all", 30) == [None, 100, 30]
    assert sizes(tmp_path, 30, 60) == [60, 30]


def test_more_examples_than_there_are_is_one_line(tmp_path) -> None:
    with pytest.raises(UserError) as error:
        sizes(tmp_path, 30, 500, "all")
    about = "sweep.train_sizes=[30, 500, 'all']: the task has 120 training examples, not 500"
    assert str(error.value) == f"{about}; give numbers up to 120, or all"


def test_smaller_sizes_are_among_larger_ones_and_another_seed_draws_others() -> None:
    found = subsets([None, 60, 10, 30], 120, 7)
    assert list(found) == [60, 10, 30] and all(len(found[size]) == size for size in found)
    for few, many in ((10, 30), (30, 60)):
        assert set(found[few]) < set(found[many]) and (np.diff(found[few]) > 0).all()
    assert not np.array_equal(found[10], subsets([10], 120, 8)[10])


@pytest.mark.soak
def test_a_learning_curve_with_four_trials_at_once_on_one_logical_gpu(ray_4_cpus, tmp_path) -> None:
    import ray

    write_encoder(tmp_path / "tiny" / "export")
    others = ray.util.placement_group([{"GPU": 7}])  # leaves one of the 8
    ray.get(others.ready())
    running = list[int]()

    def watch(text: str, fraction: float | None = None, **facts) -> None:
        running.append(facts.get("trials", {}).get("running", 0))

    space = {"finetune.learning_rate": [1e-3, 3e-3], "finetune.epochs": 20}
    asked = {"sweep.cpus_per_trial": 0.25, "sweep.gpus_per_trial": 0.25, "sweep.encoders": ["pretrained"]}
    config = configure(tmp_path, space, **asked, **{"sweep.train_sizes": [30, "all", 60], "sweep.seeds": 1})
    try:
        entries = sweep(config, tmp_path / "tiny-sweep", watch, make_task())
    finally:
        ray.util.remove_placement_group(others)
    assert max(running) == 4
    assert [entry["train_size"] for entry in entries] == [120, 120, 60, 60, 30, 30]
    assert [entry["rank"] for entry in entries] == [1, 2] * 3
    for file in (tmp_path / "tiny-sweep").glob("trials/*/result.json"):
        result = json.loads(file.read_text())
        size = result["train_size"]
        assert file.parent.name.endswith("-s3") and (f"-n{size}-" in file.parent.name) == (size < 120)
        assert result["encoder_rows"] == 20 * (size + 60)
    winner = json.loads((tmp_path / "tiny-sweep" / "winner.json").read_text())
    assert winner["trial"] in entries[0]["trials"] + entries[1]["trials"]
