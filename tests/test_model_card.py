"""The model card: facts are data, whatever they hold."""

import re

from model.card import model_card, shown

NASTY = "a: | <script>alert(1)</script>\n---\n# title `x` [y](javascript:z) \x1b[31m \u202e 中"


def test_nothing_ends_its_line_its_cell_or_the_front_matter() -> None:
    card = model_card(f'x"{NASTY}', {"title": NASTY, NASTY: NASTY, "loss": 5.12345, "steps": 7}, "AutoModel", NASTY)
    lines = card.splitlines()
    assert lines[:4] == ["---", "library_name: transformers", "pipeline_tag: feature-extraction", "---"]
    assert lines.count("---") == 2
    assert [line for line in lines if line.startswith("#")] == ["# " + shown(NASTY)]
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 5 and all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
    assert "| loss | 5.123 |" in rows and "| steps | 7 |" in rows
    assert "<script>" not in card.split("```")[0] and not set(card) & {"\x1b", "\u202e"}
    assert card.count("```") == 2  # one block of code, which the folder's name does not end
    code = card.split("```")[1]
    assert 'AutoModel.from_pretrained("x\\"a: ' in code and code.count("\n") == 5


def test_the_card_names_what_loads_the_folder() -> None:
    assert "from sentence_transformers import" in model_card("x", {}, "sentence-transformers", "embedding")
    ours = model_card("x", {}, "cloze", "tagging")
    assert "pipeline_tag: token-classification" in ours and "transformers has no class for this head" in ours
    assert "import AutoModelForQuestionAnswering, AutoTokenizer" in model_card(
        "x", {}, "AutoModelForQuestionAnswering", "answering"
    )


def test_a_thousand_labels_do_not_fill_the_page() -> None:
    assert len(shown(", ".join(f"label {i}" for i in range(1000)))) < 2100
