"""The README.md of a model's folder: what the Hugging Face hub shows of it.

In: facts, by name. Out: Markdown with a YAML front matter. Facts, labels and names are data: none of them can end a
line, a cell or the front matter, or become HTML. Knows nothing of models.
"""

import html
import json
import re
from collections.abc import Mapping
from typing import Any

PIPELINES = {
    "masked_lm": "fill-mask",
    "classification": "text-classification",
    "multi_label": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "answering": "question-answering",
    "multiple_choice": "multiple-choice",
    "embedding": "sentence-similarity",
}
"""What the model is for -> the hub's pipeline_tag."""
APART = ("title", "recipe")  # not in the table of facts
LONGEST_CELL = 2000  # characters: a thousand labels are listed in config.json


def model_card(name: str, card: Mapping[str, Any], loads_with: str, purpose: str) -> str:
    """The card of folder `name`. `card`: {"title": ..., "recipe": YAML, fact: value}; `loads_with`: an Auto class of
    transformers, "sentence-transformers" or "cloze"; `purpose`: a key of PIPELINES, or another word."""
    library = loads_with if loads_with in ("cloze", "sentence-transformers") else "transformers"
    front = {"library_name": library, "pipeline_tag": PIPELINES.get(purpose, "feature-extraction")}
    facts = "".join(f"| {shown(key)} | {shown(value)} |\n" for key, value in card.items() if key not in APART)
    return (
        f"---\n{''.join(f'{key}: {value}' + chr(10) for key, value in front.items())}---\n\n"
        f"# {shown(card.get('title', name))}\n\nTrained with Cloze.\n\n| | |\n|---|---|\n{facts}\n"
        f"{_how_to_load(_quoted(name), loads_with)}{_recipe(str(card.get('recipe', '')))}"
    )


def _recipe(text: str) -> str:
    """How to train it again, in a fence that nothing in the text can end."""
    if not text:
        return ""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"\n## Recipe\n\n{fence}yaml\n{text.rstrip()}\n{fence}\n"


def shown(value: Any) -> str:
    """A value as text in a line or cell of Markdown.

    >>> shown("a|b <b>\\nc")
    'a\\\\|b &lt;b&gt; c'
    """
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = "".join(c if c.isprintable() else " " for c in text)
    text = text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + " ..."
    return re.sub(r"([\\`\[\]|])", r"\\\1", html.escape(text, quote=False))


def _quoted(name: str) -> str:
    """A folder's name as a string of Python, which cannot end the block of code either."""
    return json.dumps(name).replace("`", "\\u0060")


def _how_to_load(name: str, loads_with: str) -> str:
    if loads_with == "sentence-transformers":
        return (
            "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
            f"model = SentenceTransformer({name})\n```\n"
        )
    if loads_with == "cloze":
        return (
            "transformers has no class for this head: it loads the encoder (AutoModel), Cloze the whole.\n\n"
            "```python\nfrom model.heads.loading import load_head\n\n"
            f"head, description = load_head({name})\n```\n"
        )
    return (
        f"```python\nfrom transformers import {loads_with}, AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({name})\nmodel = {loads_with}.from_pretrained({name})\n```\n"
    )
