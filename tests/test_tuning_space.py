"""The grid exactly, draws from ranges, and every way to write a space wrong."""

import math

import pytest

from data.config import UserError
from orchestration.recipe import build_config, load_config
from tuning.space import Range, choose_point, count_points, points


def grid(space: dict, **changes) -> list[dict]:
    config = build_config({"name": "x"}, {"sweep.space": space, **changes})
    return [point.values for point in points(config)]


def test_the_default_grid_is_exactly_these_four_points() -> None:
    found = points(load_config(None, ["name=x"]))
    assert [point.values for point in found] == [
        {"finetune.mode": "frozen", "finetune.learning_rate": 3e-3, "finetune.epochs": 30},
        {"finetune.mode": "frozen", "finetune.learning_rate": 1e-2, "finetune.epochs": 30},
        {"finetune.mode": "full", "finetune.learning_rate": 1e-4, "finetune.epochs": 3},
        {"finetune.mode": "full", "finetune.learning_rate": 3e-4, "finetune.epochs": 3},
    ]
    assert [point.config.finetune.epochs for point in found] == [30, 30, 3, 3]
    assert found[0].config.finetune.mode == "frozen" and found[3].config.finetune.learning_rate == 3e-4


def test_a_key_that_the_space_sets_too_is_refused() -> None:
    with pytest.raises(UserError, match="finetune.epochs=7: sweep.space sets it too; give sweep.space.finetune.ep"):
        points(load_config(None, ["name=x", "finetune.epochs=7"]))
    found = points(load_config(None, ["name=x", "sweep.space.finetune.epochs=7"]))
    assert {point.values["finetune.epochs"] for point in found} == {7} and len(found) == 4


def test_scalars_lists_and_values_per_mode() -> None:
    assert grid({}) == [{}]
    assert grid({"finetune.learning_rate": 1e-3}) == [{"finetune.learning_rate": 1e-3}]
    assert grid({"finetune.gradient_clipping": [None, 1.0]}) == [
        {"finetune.gradient_clipping": None}, {"finetune.gradient_clipping": 1.0},
    ]  # fmt: skip
    assert grid({"finetune.epochs": {"full": 2}}, **{"finetune.mode": "full"}) == [{"finetune.epochs": 2}]
    product = grid({"finetune.epochs": [1, 2], "finetune.global_batch": [8, 16]})
    assert [tuple(values.values()) for values in product] == [(1, 8), (1, 16), (2, 8), (2, 16)]


def test_ids_are_stable_distinct_and_blind_to_how_the_space_is_written() -> None:
    config = load_config("demo")
    ids = [point.id for point in points(config)]
    assert ids == [point.id for point in points(config)] and len(set(ids)) == 4
    assert all(len(one) == 8 for one in ids)
    one = build_config({"name": "x"}, {"sweep.space": {"finetune.learning_rate": [1e-3]}, "finetune.epochs": 7})
    same = build_config({"name": "y"}, {"sweep.space": {"finetune.epochs": 7, "finetune.learning_rate": 0.001}})
    assert points(one)[0].id == points(same)[0].id
    twice = build_config({"name": "x"}, {"sweep.space": {"finetune.learning_rate": [1e-3, 0.001, 2e-3]}})
    assert [point.values["finetune.learning_rate"] for point in points(twice)] == [1e-3, 2e-3]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"pretrain.steps": [1]}, ["pretrain.steps", "finetune"]),
        ({"finetune": [1]}, ["finetune", "only finetune.* and head.*"]),
        ({"finetune.learning_rat": [1e-3]}, ["learning_rat", "did you mean learning_rate"]),
        ({"finetune.learning_rate": []}, ["learning_rate", "no values"]),
        ({"finetune.learning_rate": ["fast"]}, ["learning_rate", "'fast'", "number"]),
        ({"finetune.learning_rate": [-1.0]}, ["learning_rate", "greater than 0"]),
        ({"finetune.epochs": [2.5]}, ["finetune.epochs", "2.5"]),
        ({"finetune.mode": ["half"]}, ["finetune.mode", "'half'"]),
        ({"finetune.mode": {"full": ["full"]}}, ["finetune.mode", "give a list"]),
        ({"finetune.mode": ["frozen", "full"], "finetune.epochs": {"full": [3]}}, ["no values for mode frozen", "add"]),
        ({"finetune.epochs": {"half": [3]}}, ["half", "frozen, top_k, lora, full"]),
        ({"finetune.epochs": {"full": []}}, ["no values"]),
        ({"finetune.epochs": [[1, 2]]}, ["nested"]),
    ],
)
def test_wrong_spaces_are_one_line_each(space: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        grid(space)
    message = str(error.value)
    assert "\n" not in message and message.startswith("sweep.space")
    for word in words:
        assert word in message


RATE = {"finetune.learning_rate": {"log_uniform": [1e-5, 1e-2]}}


@pytest.mark.parametrize(
    ("search", "space", "words"),
    [
        ("grid", RATE, ["log_uniform", "a grid takes lists", "sweep.search=random or optuna"]),
        ("grid", {"finetune.learning_rate": {"full": {"uniform": [1e-5, 1e-2]}}}, ["a grid takes lists"]),
        ("random", {"finetune.learning_rate": {"log_uniform": [1e-2, 1e-5]}}, ["not below"]),
        ("random", {"finetune.learning_rate": {"log_uniform": [0, 1e-5]}}, ["begins above 0"]),
        ("random", {"finetune.learning_rate": {"log_uniform": 1e-5}}, ["two ends"]),
        ("random", {"finetune.learning_rate": {"log_uniform": [1e-5, "x"]}}, ["two ends, both numbers"]),
        ("random", {"finetune.learning_rate": {"uniform": [1e-5, 1e-2], "full": [1e-3]}}, ["nested too deep"]),
        ("random", {"finetune.learning_rate": {"normal": [1e-5, 1e-2]}}, ["no such mode: normal", "a range: log_un"]),
        ("random", {"finetune.learning_rate": {"uniform": [-1.0, 1e-2]}}, ["greater than 0"]),
        ("optuna", {"finetune.warmup_ratio": {"uniform": [0.0, 1.0]}}, ["warmup_ratio", "less than 1"]),
        ("optuna", {"finetune.epochs": {"uniform": [1.5, 3]}}, ["finetune.epochs is a whole number"]),
        ("optuna", {"finetune.length": {"uniform": [16, 64]}}, ["texts are read once", "give a list"]),
        ("optuna", {"finetune.mode": {"uniform": [0, 1]}}, ["finetune.mode", "give a list"]),
        ("optuna", {"finetune.epochs": [2, 0], "finetune.learning_rate": [1e-3]}, ["finetune.epochs=0"]),
        ("random", {"finetune.epochs": [2] * 30 + [0], "finetune.warmup_ratio": [0.1] * 30}, ["finetune.epochs=0"]),
    ],
)
def test_wrong_ranges_are_one_line_each_before_anything_is_drawn(search: str, space: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        grid(space, **{"sweep.search": search, "sweep.points": 1, "finetune.mode": "full"})
    message = str(error.value)
    assert "\n" not in message and message.startswith("sweep.space")
    for word in words:
        assert word in message


def test_random_points_are_drawn_from_ranges_and_lists_of_their_mode_by_turns() -> None:
    space = {
        "finetune.mode": ["frozen", "full"], "finetune.epochs": {"frozen": {"uniform": [10, 40]}, "full": [2, 3]},
        "finetune.learning_rate": {"frozen": {"log_uniform": [1e-4, 1e-1]}, "full": {"log_uniform": [1e-6, 1e-4]}},
        "finetune.weight_decay": {"uniform": [0.0, 0.1]},
    }  # fmt: skip
    drawn = grid(space, **{"sweep.search": "random", "sweep.points": 40})
    assert [point["finetune.mode"] for point in drawn] == ["frozen", "full"] * 20
    for point in drawn:
        rate, epochs = point["finetune.learning_rate"], point["finetune.epochs"]
        if point["finetune.mode"] == "frozen":
            assert 1e-4 <= rate <= 1e-1 and isinstance(epochs, int) and 10 <= epochs <= 40
        else:
            assert 1e-6 <= rate <= 1e-4 and epochs in (2, 3)
        assert 0 <= point["finetune.weight_decay"] <= 0.1 and float(f"{rate:.4g}") == rate
    frozen = [math.log10(point["finetune.learning_rate"]) for point in drawn[::2]]
    for low, high in ((-4, -3), (-3, -2), (-2, -1)):  # even by logarithm
        assert sum(low <= rate < high for rate in frozen) >= 2


def test_draws_do_not_depend_on_how_the_space_is_written_nor_on_other_keys() -> None:
    more = {"finetune.epochs": [1, 2, 3], **RATE}
    setting = {"sweep.search": "random", "sweep.points": 6}
    rates = [point["finetune.learning_rate"] for point in grid(RATE, **setting)]
    assert rates == [point["finetune.learning_rate"] for point in grid(more, **setting)]
    turned = grid(dict(reversed(more.items())), **setting)
    assert [tuple(sorted(point.items())) for point in turned] == [
        tuple(sorted(point.items())) for point in grid(more, **setting)
    ]
    assert rates != [point["finetune.learning_rate"] for point in grid(RATE, **setting, seed=1)]


def test_known_points_of_optuna_hold_every_value_and_every_way_to_read() -> None:
    space = {
        "finetune.length": [16, 32], "head.pooling": ["cls", "mean", "max"], "finetune.epochs": [1, 2, 3, 4, 5],
        "finetune.learning_rate": {"log_uniform": [1e-5, 1e-2]}, "finetune.global_batch": [8, 16, 32],
        "finetune.weight_decay": [0.0, 0.01],
    }  # fmt: skip
    found = grid(space, **{"sweep.search": "optuna"})  # 360 combinations
    assert len(found) < 20
    assert len({(point["finetune.length"], point["head.pooling"]) for point in found}) == 6
    for key, values in space.items():
        ends = values["log_uniform"] if isinstance(values, dict) else values
        assert {point[key] for point in found} == set(ends)


def test_points_are_counted() -> None:
    def count(search: str, space: dict) -> int:
        return count_points(build_config({"name": "x"}, {"sweep.space": space, "sweep.search": search}))

    assert count("grid", {"finetune.epochs": [1, 2, 3]}) == 3 == count("random", {"finetune.epochs": [1, 2, 3]})
    assert count("random", RATE) == 16 == count("optuna", RATE)


def test_a_chosen_point_asks_for_the_mode_first_and_for_nothing_that_is_settled() -> None:
    space = {
        "finetune.learning_rate": {"frozen": [1e-2, 1e-3], "full": {"log_uniform": [1e-5, 1e-3]}},
        "finetune.mode": ["frozen", "full"], "finetune.epochs": {"frozen": 30, "full": 3},
    }  # fmt: skip
    config, asked = build_config({"name": "x"}, {"sweep.space": space, "sweep.search": "optuna"}), []

    def last(name: str, axis) -> object:
        asked.append(name)
        return axis.high if isinstance(axis, Range) else axis[-1]

    point = choose_point(config, last)
    assert asked == ["finetune.mode", "finetune.learning_rate in full"]
    assert point.values == {"finetune.learning_rate": 1e-3, "finetune.mode": "full", "finetune.epochs": 3}
    assert list(point.values) == list(space) and point.config.finetune.epochs == 3


def test_a_list_may_hold_weights_of_labels() -> None:
    found = grid({"head.class_weights": [None, "balanced", {"a": 2.0}]}, **{"head.kind": "classification"})
    assert [point["head.class_weights"] for point in found] == [None, "balanced", {"a": 2.0}]


def test_every_fault_has_its_line() -> None:
    with pytest.raises(UserError) as error:
        grid({"corpus.held_out": [0.1], "finetune.epochs": []})
    assert len(str(error.value).splitlines()) == 2
    with pytest.raises(UserError) as error:
        grid({"finetune.epochs": [0, 1], "finetune.learning_rate": [1e-3, "x"]})
    assert len(str(error.value).splitlines()) == 2  # each bad value once, not once per combination
