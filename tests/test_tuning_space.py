"""The grid exactly, and every way to write a space wrong."""

import pytest

from data.config import UserError
from orchestration.recipe import build_config, load_config
from tuning.space import points


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


def test_every_fault_has_its_line() -> None:
    with pytest.raises(UserError) as error:
        grid({"corpus.held_out": [0.1], "finetune.epochs": []})
    assert len(str(error.value).splitlines()) == 2
    with pytest.raises(UserError) as error:
        grid({"finetune.epochs": [0, 1], "finetune.learning_rate": [1e-3, "x"]})
    assert len(str(error.value).splitlines()) == 2  # each bad value once, not once per combination
