"""Tags of words <-> entities, by the schemes in use. Pure.

In: tags such as B-PER, and a scheme. Out: entities as (type, first word, behind the last word), and back. The schemes:

    bio    B- begins each entity, I- goes on (also IOB2)          B-PER I-PER O B-ORG
    iob1   I- begins and goes on; B- only where an entity touches another of its type
    iobes  also E- at the end and S- for a single word (BILOU's L and U, BMES's M, read alike)
    io     I- (or the type alone) for every word of an entity; two of a type that touch are one

What breaks a scheme is read by the rule of the CoNLL shared tasks' conlleval: an entity begins at B or S, behind E or
S, and wherever the word before is O or of another type, whatever else its letter says. Source: conlleval.pl
of CoNLL-2000, https://www.clips.uantwerpen.be/conll2000/chunking/output.html (seqeval follows it).
"""

from collections.abc import Iterable, Mapping, Sequence

OUTSIDE = "O"
LETTERS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I", "W": "S"}  # all names of the same four
SCHEMES = {"bio": "BI", "iob1": "BI", "iobes": "BIES", "io": "I"}

Entity = tuple[str, int, int]


def split_tag(tag: str) -> tuple[str, str]:
    """(one of B I E S, type) of a tag, ("O", "") outside of entities. A type alone is as with I."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    letter, dash, type_ = tag.partition("-")
    if not dash or letter not in LETTERS:
        return ("I", tag) if tag not in LETTERS else (LETTERS[tag], "")
    return LETTERS[letter], type_


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Entities of one sentence, in order; of every scheme, and of tags that break theirs (see the rule above)."""
    entities: list[Entity] = []
    before, type_before, start = OUTSIDE, "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, type_ = split_tag(tag)
        new = letter in "BS" or before in "ESO" or type_ != type_before
        if before != OUTSIDE and (letter == OUTSIDE or new):
            entities.append((type_before, start, place))
        if letter != OUTSIDE and new:
            start = place
        before, type_before = letter, type_
    return entities


def tags_of(
    entities: Iterable[Entity], length: int, scheme: str, letters: Mapping[str, str] | None = None
) -> list[str]:
    """The tags of a sentence of `length` words. Entities are in order and do not overlap; `letters` as letters_of."""
    tags = [OUTSIDE] * length
    behind, type_before = -1, ""
    for type_, start, end in entities:
        of = ["I"] * (end - start)
        if scheme in ("bio", "iobes") or (scheme == "iob1" and behind == start and type_before == type_):
            of[0] = "B"
        if scheme == "iobes":
            of[-1] = "E" if len(of) > 1 else "S"
        written = [letters[letter] if letters else letter for letter in of]
        tags[start:end] = [f"{letter}-{type_}" if type_ else letter for letter in written]
        behind, type_before = end, type_
    return tags


def letters_of(sentences: Iterable[Sequence[str]]) -> dict[str, str]:
    """How B, I, E and S are called in some sentences' tags: BILOU says L for E and U for S."""
    letters = {letter: letter for letter in "BIES"}
    for tag in sorted({tag.partition("-")[0] for tags in sentences for tag in tags} & LETTERS.keys()):
        letters[LETTERS[tag]] = tag
    return letters


def breaks_of(tags: Sequence[str], scheme: str) -> list[int]:
    """Places of the words whose tags stand where the scheme has no such tag."""
    broken: list[int] = []
    before, type_before = OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, type_ = split_tag(tag)
        goes_on = before in "BI" and type_ == type_before  # an entity is open, and this word could be of it
        wrong = {
            "bio": letter == "I" and not goes_on,
            "iob1": letter == "B" and not goes_on,
            # Nothing is open, or what is open was not ended, or is of another type.
            "iobes": (letter in "IE") != (before in "BI") or (letter in "IE" and not goes_on),
            "io": False,
        }
        if wrong[scheme] or letter not in SCHEMES[scheme] + OUTSIDE:
            broken.append(place)
        before, type_before = letter, type_
    return [min(place, len(tags) - 1) for place in broken]  # what is still open at the end is the last word's fault


def repair(tags: Sequence[str], scheme: str, letters: Mapping[str, str] | None = None) -> list[str]:
    """The tags that the scheme has for the entities that are read."""
    return tags_of(entities_of(tags), len(tags), scheme, letters)


def marks_entity(tag: str) -> bool:
    """Whether a tag is a letter of the schemes, a dash and a type."""
    letter, _, type_ = tag.partition("-")
    return letter in LETTERS and bool(type_)


def detect_scheme(sentences: Sequence[Sequence[str]]) -> str | None:
    """The scheme that the tags of all sentences break least, of equals the first in the table above; None: no scheme.

    Tags without O, or of which one is neither O nor a letter of the schemes, a dash and a type, mark no entities (parts
    of speech). Where I is the only letter, it is io.
    """
    tags = {tag for sentence in sentences for tag in sentence}
    marked = tags - {OUTSIDE}
    if not marked or not all(map(marks_entity, marked)):
        return None
    letters = {split_tag(tag)[0] for tag in marked}
    if letters == {"I"}:
        return "io"
    fitting = [scheme for scheme, known in SCHEMES.items() if letters <= set(known)]
    if len(fitting) < 2:
        return fitting[0] if fitting else "iobes"
    broken = {scheme: sum(len(breaks_of(tags, scheme)) for tags in sentences) for scheme in fitting}
    return min(broken, key=lambda scheme: broken[scheme])
