"""Parts of a report -> one HTML page that loads nothing from elsewhere and runs no script.

In: headings, tables of plain text, charts. Out: HTML; what is text is escaped here, once. Knows no runs and no files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Link:
    """A cell that leads to another page beside this one."""

    text: str
    href: str


def page(title: str, parts: Sequence[str]) -> str:
    """The whole page; `parts` are HTML, those that are empty are left out."""
    body = "\n".join(part for part in parts if part)
    return PAGE.format(title=escape(title), style=STYLE, body=body)


def heading(text: str) -> str:
    """A heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; "" for none. kind: lead, note."""
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>" if text else ""


def figure(svg: str | None, caption: str) -> str:
    """A chart with what it shows; "" where there is none."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" if svg else ""


def folded(summary: str, inside: str) -> str:
    """What is shown when it is asked for; "" for nothing."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>" if inside else ""


def facts(pairs: Mapping[str, str | None]) -> str:
    """Key figures by name; those that are not known are left out."""
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in pairs.items() if text)
    return f"<dl>{''.join(cells)}</dl>"


def table(
    columns: Mapping[str, str], lines: Sequence[Sequence[str | Link]], best: Sequence[int] = (), caption: str = ""
) -> str:
    """A table; "" without lines. columns: name -> kind, "n" (a number), "word" or "long" (text that is broken);
    best: numbers of the lines that stand out."""
    if not lines:
        return ""
    kinds = list(columns.values())
    rows = [
        f"<tr{' class=best' if number in best else ''}>"
        + "".join(f'<td class="{kind}">{_cell(cell)}</td>' for kind, cell in zip(kinds, line, strict=True))
        + "</tr>"
        for number, line in enumerate(lines)
    ]
    head = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in columns.items())
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    inside = f"{title}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    width = "text" if kinds.count("long") > 1 else "wide"  # numbers may need more than the page's width, text less
    return f'<div class="{width}"><table>{inside}</table></div>'


def _cell(cell: str | Link) -> str:
    if isinstance(cell, Link):
        return f'<a href="{escape(cell.href)}">{escape(cell.text)}</a>'
    return escape(cell)


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
STYLE = """
:root { color-scheme: light dark; --paper: #fdfcf9; --ink: #1d1d1b; --muted: #6f6d66; --line: #e3e0d8; --tint: #f4f1e9;
  --series-1: #1f5fa8; --series-2: #c0561a; --series-3: #2f7d4f; --series-4: #7b4a9e; --series-5: #9a7b12; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #171715; --ink: #e9e6de; --muted: #9c998f; --line: #34332f; --tint: #22211e;
    --series-1: #7fb2ea; --series-2: #ee9a63; --series-3: #7cc598; --series-4: #c29ae0; --series-5: #d9bb56; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 3.5rem 1.25rem 5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 3.2rem 0 .8rem; }
p { margin: .5rem 0 0; max-width: 40rem; overflow-wrap: anywhere; }
.lead { font-size: 1.125rem; line-height: 1.5; } .note { color: var(--muted); font-size: .875rem; }
a { color: var(--series-1); text-decoration-thickness: 1px; text-underline-offset: .15em; }
figure { margin: 2.2rem 0 0; }
figure svg { display: block; width: 100%; height: auto; font-family: system-ui, sans-serif; }
figcaption { color: var(--muted); font-size: .875rem; margin-top: .5rem; }
.wide, .text { overflow-x: auto; margin-top: .8rem; }
.wide { min-width: 100%; width: max-content; max-width: min(70rem, calc(100vw - 2.5rem)); margin-left: 50%;
  transform: translateX(-50%); }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
caption { text-align: left; color: var(--muted); padding-bottom: .3rem; }
th { color: var(--muted); font-weight: 500; vertical-align: bottom; line-height: 1.25; }
th, td { padding: .42rem .7rem; border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
.best td { background: var(--tint); font-weight: 600; }
.n { text-align: right; white-space: nowrap; } th.n { white-space: normal; } .word { text-align: left; }
.long { text-align: left; vertical-align: top; overflow-wrap: anywhere; min-width: 7rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: 1.1rem 1.5rem; margin: 0; }
dt { color: var(--muted); font-size: .8125rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
details { margin-top: 1.6rem; border-top: 1px solid var(--line); padding-top: .8rem; } summary { cursor: pointer; }
pre { background: var(--tint); padding: 1rem; overflow-x: auto; font: .8125rem/1.5 ui-monospace, monospace; }
"""
