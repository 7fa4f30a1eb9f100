"""Numbers and names of a leaderboard as people read them: on the terminal, in charts, in sentences. Pure."""

from collections.abc import Iterable

from orchestration.progress import duration

# Names of folders that say nothing of what lies in them.
EMPTY_NAMES = ("model", "export", "best", "encoder")


def short(number: float) -> str:
    """A learning rate as people write it.

    >>> [short(x) for x in (3e-4, 1e-2, 2.5e-5, 1.0)]
    ['3e-4', '1e-2', '2.5e-5', '1']
    """
    if number == 0 or 0.1 <= abs(number) < 1000:
        return f"{number:g}"
    mantissa, exponent = f"{number:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def with_interval(mean: float | None, half: float | None, sign: str = "") -> str:
    """A score, or with `sign` "+" a difference, and the half-width of its interval where there is one.

    >>> with_interval(0.91, 0.004), with_interval(-0.003, 0.006, "+"), with_interval(None, None)
    ('0.910 ± 0.004', '-0.003 ± 0.006', '–')
    """
    if mean is None:
        return "–"
    return f"{mean:{sign}.3f}" + ("" if half is None else f" ± {half:.3f}")


def time_text(seconds: float) -> str:
    """What a trial took; heads on cached features take fractions of a second.

    >>> [time_text(s) for s in (0.42, 12.3, 185)]
    ['0.4 s', '12 s', '3 min 05 s']
    """
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def size_text(size: int | None) -> str:
    """A number of training examples; None: all, however many they are."""
    return "all examples" if size is None else f"{size:,} example{'s' * (size != 1)}"


def names_of(encoders: Iterable[str]) -> dict[str, str]:
    """Encoders as a sweep names them -> short names: of a folder its last parts, as many as tell it from the others.

    >>> names_of(["pretrained", "/m/minilm/model", "runs/law/export", "runs/med/export"])
    {'pretrained': 'pretrained', '/m/minilm/model': 'minilm', 'runs/law/export': 'law', 'runs/med/export': 'med'}
    >>> names_of(["a/bert", "b/bert"])
    {'a/bert': 'a/bert', 'b/bert': 'b/bert'}
    """
    parts: dict[str, list[str]] = {}
    for encoder in dict.fromkeys(encoders):
        whole = [part for part in encoder.split("/") if part] or [encoder]
        parts[encoder] = whole[:-1] if len(whole) > 1 and whole[-1] in EMPTY_NAMES else whole
    longest = max(map(len, parts.values()), default=0)
    for number in range(1, longest + 1):
        names = {encoder: "/".join(of[-number:]) for encoder, of in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {encoder: encoder for encoder in parts}
