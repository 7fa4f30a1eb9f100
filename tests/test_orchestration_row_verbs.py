"""`cloze inspect`: the rows of a step as the stream masks them, facts as text and as JSON, mistakes in one line."""

import io
import json
import time

import numpy as np
import pytest
from made_store import made_store
from worded_store import ROWS, WORDS, store_of

from data.config import UserError
from data.masking import Vocabulary, mask_rows
from orchestration.cli import main
from orchestration.config import Config
from orchestration.recipe import build_config
from orchestration.row_verbs import look, show_facts


def config_of(**changes: object) -> Config:
    """Two sources, the second visited twice as often, and batches of three rows."""
    sources = [{"path": "a.txt"}, {"path": "b.txt", "weight": 2}]
    pretrain = {"global_batch": 3, "micro_batch": 3, "steps": 10}
    return build_config({"name": "x", "seed": 7, "corpus": {"sources": sources}, "pretrain": pretrain, **changes}, {})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--rows 0", "--rows 0: no row to show; give 1 or more"),
        ("--rows few", "--rows few: not a whole number; give 0 or more"),
        ("--row-ids 3,x", "--row-ids x: not a whole number; give 0 or more"),
        ("--part test", "--part test: no such part; give one of: train, held_out"),
        ("--step 99", "--step 99: the run has steps 0 to 9; give one of them"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2_before_anything_starts(tmp_path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("some words\n")
    begun = time.monotonic()
    assert main(["inspect", "name=x", "corpus.sources=corpus.txt", "pretrain.steps=10", *words.split()]) == 2
    assert capsys.readouterr().err == f"cloze: {line}\n"
    assert time.monotonic() - begun < 10 and not (tmp_path / "runs").exists()


def test_rows_that_are_not_there_are_told(tmp_path):
    store = store_of(tmp_path, ROWS)
    with pytest.raises(UserError, match="^--row-ids 4: train has the rows 0 to 3; give some of these$"):
        look(config_of(), store, "train", 0, 3, [0, 4])
    store.manifest["shards"]["held_out"] = []
    with pytest.raises(UserError, match="^--part held_out: no document is held out, so it has no rows; give --part"):
        look(config_of(), store, "held_out", 0, 3, None)


def test_the_rows_of_a_step_are_those_of_the_stream_with_its_masks(tmp_path):
    """Every step of two epochs: the row ids, visits and targets that training has there."""
    from orchestration.segments import order_of

    store = store_of(tmp_path, ROWS)
    shares = {"mlm_probability": 0.2, "final_mlm_probability": 0.8, "mask_share": 1, "random_share": 0}
    config = config_of(masking=shares)
    order = order_of(store, (1.0, 2.0), 7, 3)
    assert order.num_rows == 7  # one of the first source, three twice of the second
    for step in range(6):
        window = order.window(order.window_of(step))
        ids, visits = (array[step - window.first_step] for array in (window.rows, window.visits))
        shown = look(config, store, "train", step, 3, None)["rows_shown"]
        assert [one["row_id"] for one in shown] == ids.tolist()
        assert [one["visit"] for one in shown] == visits.tolist()
        rows = store.train.read(ids)
        shares = np.full(len(ids), 0.2 + 0.6 * step / 9)
        inputs, _ = mask_rows(
            rows.input_ids, rows.word_starts, ids, visits, shares, 7, config.masking, Vocabulary(13, 4, (0, 1, 2, 3, 4))
        )
        assert [one["text"].count("[MASK:") for one in shown] == (inputs == 4).sum(1).tolist()
    assert look(config, store, "train", 5, 1, None)["rows_shown"] == shown[:1]


def test_a_wanted_row_is_masked_as_at_the_visit_of_the_steps_epoch(tmp_path):
    store = made_store(tmp_path / "store", [8, 6], sources=[0, 1])
    from orchestration.row_verbs import _visits_before

    row_ids = np.array([13, 0, 8, 7])
    assert _visits_before(0, row_ids, store, (1.0, 2.0)).tolist() == [0, 0, 0, 0]
    assert _visits_before(3, row_ids, store, (1.0, 2.0)).tolist() == [6, 3, 6, 3]
    assert _visits_before(3, row_ids, store, (0.5, 0.0)).tolist() == [0, 1, 0, 1]


def test_held_out_rows_are_masked_as_in_every_evaluation(tmp_path):
    store = store_of(tmp_path, ROWS)
    config = config_of(masking={"mlm_probability": 0.5, "final_mlm_probability": 0.1})
    first, last = (look(config, store, "held_out", step, 5, None) for step in (0, 9))
    assert first == last and first["mlm_probability"] == 0.5
    assert [(one["row_id"], one["visit"]) for one in first["rows_shown"]] == [(0, 2**32 - 1)]


def test_facts_are_one_json_object_and_name_the_sources(tmp_path):
    facts = look(config_of(), store_of(tmp_path, ROWS), "train", 0, 2, [2, 0])
    assert json.loads(json.dumps(facts)) == facts
    assert [(one["path"], one["rows"]) for one in facts["sources"]] == [("a.txt", 1), ("b.txt", 3)]
    assert [one["row_id"] for one in facts["rows_shown"]] == [2, 0]
    assert facts["strategy"] == "token" and facts["store"] == str(tmp_path)


def test_what_is_printed_is_plain_where_there_is_no_terminal(tmp_path):
    out = io.StringIO()
    config = config_of(masking={"mlm_probability": 0.99, "mask_share": 1, "random_share": 0})
    show_facts(look(config, store_of(tmp_path, ROWS), "train", 0, 2, [0, 2]), out)
    lines = out.getvalue().splitlines()
    assert "\x1b" not in out.getvalue()
    for line in (
        "documents   10 read = 6 kept + 1 empty + 1 duplicate + 2 quarantined (2 encoding)",
        "source      b.txt: 3 rows x 2 an epoch, 1 held out",
        "rows        4, 1 held out, of 10 tokens (full_sentences)",
        "unknown     7.69% of the tokens",
        "padding     45.00%",
        "scripts     Latin 87.88%, Cyrillic 9.09%, Han 3.03%",
        "token       100.00% targets, of these 100.00% masked, 0.00% random, 0.00% kept  <- masking.strategy",
        "lengths     3 (row 2) to 9 tokens (row 0)",
        "         5  " + "█" * 40 + " 2",
        "         9  " + "█" * 20 + " 1",
        "row 0, visit 0: 9 tokens, 6 targets",
        "[CLS] [MASK:the] [MASK:cat] [MASK:sat] [SEP] ‖ [MASK:em][MASK:bed][MASK:ding] [SEP]",
        "[CLS] [MASK:cat] [SEP]",
    ):
        assert line in lines, "\n".join(lines)


def test_what_a_terminal_obeys_is_shown_as_text(tmp_path):
    facts = look(config_of(), store_of(tmp_path, ROWS), "train", 0, 2, [0])
    facts["rows_shown"][0]["parts"] = [("text", "a\x1b]0;title\x07\x9b2J\u202eb\nc")]
    out = io.StringIO()
    show_facts(facts, out)
    assert "a\\u001b]0;title\\u0007\\u009b2J\\u202eb\nc" in out.getvalue()


def test_marks_are_coloured_on_a_terminal_and_a_long_row_is_not_cut(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    facts = look(config_of(), store_of(tmp_path, ROWS), "train", 0, 2, [0])
    facts["rows_shown"][0]["parts"] = [["text", "word " * 100], ["random", "{cat|sat}"], ["masked", "[MASK:the]"]]
    out = Terminal()
    show_facts(facts, out)
    (line,) = (line for line in out.getvalue().splitlines() if "word word" in line)
    assert line.startswith("word " * 100 + "\x1b[1;31m{cat|sat}\x1b[0m") and "[MASK:the]" in line
    assert WORDS[4] == "[MASK]"
