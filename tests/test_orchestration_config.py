"""The config tree: one way to change it, one line per fault, recipes that hold."""

import pytest
import yaml

from data.config import UserError
from orchestration.config import Config, to_yaml
from orchestration.identity import FREE, PRETRAIN_SECTIONS, SWEEP_SECTIONS, flatten, identity
from orchestration.recipe import build_config, load_config, parse_yaml, shipped_recipes


@pytest.mark.parametrize(
    "override, line",
    [
        ("pretrian.steps=3", "pretrian: unknown key; did you mean pretrain?"),
        ("pretrain.step=3", "pretrain.step: unknown key; did you mean steps?"),
        ("corpus.sources=[{path: a, pth: b}]", "corpus.sources.0.pth: unknown key; did you mean path?"),
        ("pretrain.steps=many", "pretrain.steps='many': input should be a valid integer"),
        ("pretrain.steps=0", "pretrain.steps=0: input should be greater than or equal to 1"),
        ("pretrain.steps=[5,x]", "pretrain.steps.1='x': input should be a valid integer"),
        ("rows.length=[128,512]", "rows.length=[128, 512] and pretrain.steps=1500: give two numbers, or two lists"),
        ("pretrain.steps=[10,20]", "rows.length=128 and pretrain.steps=[10, 20]: give two numbers, or two lists"),
        ("pretrain.micro_batch=[4,2]", "pretrain.micro_batch=[4, 2] and pretrain.steps=1500: give a number, or one"),
        ("pretrain.steps=null", "pretrain: steps=null and no budget: nothing ends the run; give one of them"),
        ("pretrain.budget.hours=2", "pretrain: steps=1500 and a budget in hours: a run ends by one of them; give"),
        ("pretrain.steps=[]", "pretrain.steps=[]: a list of 0; give at least 1; change it with pretrain.steps=VALUE"),
        ("pretrain.budget.days=2", "pretrain.budget.days: unknown key; allowed here: tokens, hours, money"),
        ("pretrain.budget.token=2", "pretrain.budget.token: unknown key; did you mean tokens?"),
        ("pretrain.budget=5", "pretrain.budget=5: a section, not a value; give one of its keys, pretrain.budget.to"),
        ("corpus.held_out_sources=[{wait: 1}]", "corpus.held_out_sources.0.path: missing; give "),
        ("zero.stage=4", "zero.stage=4: input should be less than or equal to 3"),
        (
            "zero={stage: 0, offload: optimizer}",
            "zero: offload=optimizer: stage=0 keeps the optimizer as it is; give zero.stage=1, 2 or 3",
        ),
        ("masking.mask_share=0.95", "masking: mask_share 0.95 + random_share 0.1 is more than 1; lower one of them"),
        ("rows.length=1000", "rows.length=1000 is more than encoder.max_position_embeddings=512"),
        ("name=a-sweep", "name=a-sweep: that is the folder of a sweep"),
        ("encoder.num_attention_heads=3", "encoder: hidden_size 128 is not a multiple of num_attention_heads 3"),
        ("encoder.init=somewhere", "encoder.init=somewhere brings a vocabulary; give tokenizer.path=somewhere too"),
        ("scaling.gpus_per_worker=1.5", "scaling.gpus_per_worker: 1.5 GPUs: a share of one, or a whole number"),
        ("task={test: a.csv, test_fraction: 0.1}", "task: test=a.csv and test_fraction=0.1: a test split is rea"),
        ("task.validation_fraction=0.9", "task: validation_fraction=0.9 and test_fraction=0.1 leave nothing"),
        ("task.validation_fraction=0", "task.validation_fraction=0: input should be greater than 0"),
        ("head={crf: true, kind: regression}", "head: crf is for kind tagging, not regression; leave it out"),
        ("head={crf: true, label_smoothing: 0.1}", "head: class_weights, label_smoothing: a crf scores who"),
        ("head={loss: cosine, class_weights: balanced}", "head: class_weights and label_smoothing are for labels"),
        ("name=a/b", "name='a/b': string should match pattern"),
        ("pretrain.learning_rate=.nan", "pretrain.learning_rate=nan: input should be a finite number"),
        ("seed=[1", "seed=[1, line 1: not valid YAML"),
        ("seed", "'seed': not an override; write key.path=value"),
        ("seed.deep=1", "seed.deep: seed is 7, not a section; remove one of the two"),
    ],
)
def test_a_fault_is_one_line_with_key_value_and_remedy(override, line):
    overrides = ["seed=7", override] if override.startswith("seed.") else [override]
    with pytest.raises(UserError) as fault:
        load_config("demo", overrides)
    assert str(fault.value).startswith(line)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["budget={}"], "pretrain.budget: nothing given; give exactly one of tokens, hours, money"),
        (["budget.hours=1", "budget.tokens=1"], "pretrain.budget: both tokens and hours given; give exactly one"),
        (["budget.hours=-1"], "pretrain.budget.hours=-1: input should be greater than 0"),
        (["budget.money=9"], "pretrain.budget.money=9: give cluster.price_per_worker_hour=PRICE too"),
        (["budget.hours=1", "micro_batch=[4,2]"], "pretrain.budget.hours with rows.length=128 and pretrain.micro"),
    ],
)
def test_a_budget_is_one_number_that_can_be_counted(overrides, line):
    with pytest.raises(UserError) as fault:
        load_config("demo", ["pretrain.steps=null", *(f"pretrain.{override}" for override in overrides)])
    assert str(fault.value).startswith(line) and len(str(fault.value).splitlines()) == 1


def test_masks_that_follow_the_steps_are_refused_with_a_budget():
    words = ["pretrain.steps=null", "pretrain.budget.tokens=5e6", "masking.final_mlm_probability=0.3"]
    with pytest.raises(UserError, match=r"masking.final_mlm_probability=0.3: it is reached at the last step, and with"):
        load_config("demo", words)


def test_a_budget_takes_the_place_of_the_default_steps_and_both_forms_survive_yaml(tmp_path):
    (tmp_path / "own.yaml").write_text("name: x\npretrain: {budget: {hours: 2}}\n")
    budget = load_config(str(tmp_path / "own.yaml"))
    assert budget.pretrain.steps is None and budget.pretrain.total_steps is None
    phases = load_config("pretrain_two_phases")
    assert phases.pretrain.total_steps == 1_000_000 and phases.rows.longest == 512
    for config in (budget, phases):
        (tmp_path / "again.yaml").write_text(to_yaml(config))
        assert load_config(str(tmp_path / "again.yaml")) == config


def test_phases_are_identity_and_a_budget_is_not():
    raised = load_config("demo", ["pretrain.steps=null", "pretrain.budget.hours=2"])
    other = load_config("demo", ["pretrain.steps=null", "pretrain.budget.hours=3"])
    assert identity(raised, PRETRAIN_SECTIONS) == identity(other, PRETRAIN_SECTIONS)
    one, two = (load_config("pretrain_two_phases", [f"pretrain.steps=[{steps},100]"]) for steps in (900, 901))
    assert identity(one, PRETRAIN_SECTIONS) != identity(two, PRETRAIN_SECTIONS)


def test_several_faults_are_several_lines():
    with pytest.raises(UserError) as fault:
        load_config("demo", ["pretrain.steps=0", "zero.stage=9", "rows.lenght=4"])
    assert [line.split(":")[0].split("=")[0] for line in str(fault.value).splitlines()] == [
        "rows.lenght", "pretrain.steps", "zero.stage",
    ]  # fmt: skip


def test_a_name_is_required_and_the_message_says_how():
    with pytest.raises(UserError, match="name: missing; give name=NAME"):
        load_config(None, [])
    assert load_config(None, ["name=2024"]).name == "2024"


def test_broken_recipes_say_where(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: x\npretrain:\n  steps: [1\n")
    with pytest.raises(UserError, match=r"broken.yaml, line \d+: not valid YAML"):
        load_config(str(broken))
    broken.write_text("name: x\nname: y\n")
    with pytest.raises(UserError, match="key stands twice: name"):
        load_config(str(broken))
    broken.write_text("- a\n")
    with pytest.raises(UserError, match="holds list, not a mapping"):
        load_config(str(broken))
    with pytest.raises(UserError, match="no such recipe; give a YAML file or one of: .*demo, .*claims/causal"):
        load_config(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("text, value", [("1e-3", 1e-3), ("3E5", 3e5), ("1.5", 1.5), (".5", 0.5), ("12", 12),
                                         ("1.2.3", "1.2.3"), ("-2e-1", -0.2), ("e5", "e5")])  # fmt: skip
def test_numbers_are_read_as_people_write_them(text, value):
    assert parse_yaml(text, "here") == value


def test_precedence_is_default_recipe_override():
    assert Config(name="x").pretrain.steps == 2000 and load_config("demo").pretrain.steps == 1500
    assert load_config("pretrain_base").pretrain.steps == 100_000
    assert load_config("pretrain_base", ["pretrain.steps=5", "pretrain.steps=6"]).pretrain.steps == 6


@pytest.mark.parametrize("recipe", shipped_recipes())
def test_recipes_hold_and_what_is_printed_reads_back(recipe, tmp_path):
    config = load_config(recipe)
    assert len(shipped_recipes()[recipe].read_text().splitlines()) < 41
    path = tmp_path / "again.yaml"
    path.write_text(to_yaml(config))
    assert load_config(str(path)) == config


def test_texts_that_look_like_numbers_stay_texts(tmp_path):
    path = tmp_path / "again.yaml"
    config = load_config(None, ["name=1e5", 'task.label="1e5"', "tokenizer.path='010'"])
    assert (config.name, config.task.label, config.tokenizer.path) == ("1e5", "1e5", "010")
    path.write_text(to_yaml(config))
    assert load_config(str(path)) == config


def test_config_is_never_changed():
    config = load_config("demo")
    with pytest.raises(Exception, match="frozen"):
        config.pretrain.steps = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_free_keys_exist_and_the_others_are_identity():
    flat = flatten(Config(name="x"))
    for free in FREE:
        assert any(key == free or key.startswith(free + ".") for key in flat), free
    kept = identity(Config(name="x"), PRETRAIN_SECTIONS)
    assert {"seed", "corpus.sources", "pretrain.global_batch", "rows.length", "masking.mask_share"} <= kept.keys()
    assert not {"storage", "zero.stage", "scaling.workers", "pretrain.micro_batch", "name", "task.train"} & kept.keys()
    assert "finetune.length" in identity(Config(name="x"), SWEEP_SECTIONS)


def test_a_changed_value_goes_through_validation():
    values = yaml.safe_load(to_yaml(load_config("demo")))
    assert build_config(values, {"finetune.learning_rate": 0.5}).finetune.learning_rate == 0.5
    with pytest.raises(UserError, match="finetune.learning_rate"):
        build_config(values, {"finetune.learning_rate": -1})
    assert values == yaml.safe_load(to_yaml(load_config("demo")))


def test_a_fault_inside_a_source_is_one_line_with_a_remedy_that_works():
    for source, told in (
        ({"path": "a", "weight": -1}, r"^corpus.sources.0.weight=-1: .*; change it in the recipe$"),
        ({"path": "a", "weight": 1e9}, r"^corpus.sources.0.weight=1000000000.0: .*less than or equal to 1000"),
        ({"path": "a", "wait": 1}, r"^corpus.sources.0.wait: unknown key; did you mean weight\?$"),
        ({"path": ""}, r"^corpus.sources.0.path='': .*at least 1 character"),
    ):
        with pytest.raises(UserError, match=told) as error:
            build_config({"name": "x", "corpus": {"sources": [source]}}, {})
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="every source has weight 0"):
        build_config({"name": "x", "corpus": {"sources": [{"path": "a", "weight": 0}]}}, {})


@pytest.mark.parametrize(
    "given",
    ["[]", "[2]", "[1, 2, 3]", "[0, 2]", "[1, two]", "0", "-1", "1.5", "two", "true", "null", "{a: 1}", "[3, 1]"],
)
def test_workers_are_a_number_or_the_fewest_and_the_most(given: str):
    """What is neither is one line: key, value, what is allowed, what to do."""
    assert load_config("demo", ["scaling.workers=[1, 3]"]).scaling.max_workers == 3
    with pytest.raises(UserError) as error:
        load_config("demo", [f"scaling.workers={given}"])
    allowed = "neither a number of workers from 1 on nor two, [FEWEST, MOST]"
    allowed = "the fewest come first: [1, 3]" if given == "[3, 1]" else allowed
    assert str(error.value).startswith(f"scaling.workers={yaml.safe_load(given)!r}: {allowed}; change it with ")
    assert len(str(error.value).splitlines()) == 1
