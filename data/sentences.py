"""A text -> its sentences, or its lines, as pieces that joined are the text again.

In: one text of any language. Out: pieces of at most PIECE_CHARACTERS, in time linear in the text. Rules, not a trained
model: the same text is cut alike everywhere, and 20 MB without an end mark are cut too. Knows nothing of tokens.
"""

import re
from collections.abc import Iterator

PIECE_CHARACTERS = 10_000  # longest text handed to a tokenizer at once: a 20 MB line must not become one encoding

_CLOSING = "\"'”’»)\\]）」』】》〉"
_LATIN = ".!?…؟۔։"  # end a sentence before white space only: not in 3.50
_WIDE = "。！？；｡．।॥።។"  # end one wherever they stand
# A run of marks with the quotes and brackets that close behind it, or line breaks. It begins with one class of
# characters, which Python's engine looks for quickly, and nothing that begins can fail: dots alone take linear time.
_MARK = re.compile(rf"[{_LATIN}{_WIDE}\n](?:(?<=\n)\s*+|(?<!\n)[{_LATIN}{_WIDE}]*+[{_CLOSING}]*+)")
_WIDE_MARK = re.compile(f"[{_WIDE}]")
_NEXT = re.compile(r"\s*+[\"'“‘«(\[¿¡]*+(\w*)")
_WORD_BEFORE = re.compile(r"[^\s\"'“‘«(\[—–/\u2e80-\uffef-]{1,16}\Z")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]\Z")  # U.S  e.g  a.m


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Before a name: never the end of a sentence.
_LEADING = _words(
    "mr mrs ms mx messrs dr drs prof st ste mt ft gen col maj capt cpt cmdr lt sgt cpl adm rev fr sr hon pres gov sen "
    "rep supt insp amb treas cf vs viz ca approx resp esp incl e.g i.e bzw z.b d.h nr hr mme mlle"
)
_NUMBERED = _words("no nos art fig figs eq vol vols p pp ch sec ext")  # before a number: not the end
# They may end one: they do where a word follows that often begins a sentence.
_TRAILING = _words(
    "inc ltd co corp bros llc plc jr etc al ave blvd rd dept univ assn est ed eds ph.d m.d b.a m.a jan feb mar apr jun "
    "jul aug sep sept oct nov dec usw"
)
_OPENERS = _words(
    "The This That These Those There Then Thus Therefore It Its He His She Her They Their We Our You Your I My In On "
    "At As After Although Also An A And But Because Before By For From However If Meanwhile Most Many No Not Now Once "
    "One Or Some Since So Such To Today Under Until What When Where While Who Why With Yet Yes Please Thanks"
)


def split_sentences(text: str) -> list[str]:
    """Cut a text at sentence ends and line breaks; the parts joined are the text again.

    White space goes with the part that follows it, as byte-level tokenizers expect. A line break inside a sentence
    that goes on in lower case (hard-wrapped text) is no end. A part longer than PIECE_CHARACTERS is cut before white
    space where it has any.
    """
    return list(_pieces(text, _sentence_ends(text)))


def split_lines(text: str) -> list[str]:
    """The lines of a text that hold more than white space, without their line breaks."""
    return [line for line in text.split("\n") if line and not line.isspace()]


def _pieces(text: str, ends: Iterator[int]) -> Iterator[str]:
    """The parts between `ends` (ascending), cut further where they are too long."""
    start = 0
    for end in ends:
        while end - start > PIECE_CHARACTERS:
            stop = start + PIECE_CHARACTERS
            space = max(text.rfind(space, start + 1, stop) for space in " \t\n")
            stop = space if space > start else stop
            yield text[start:stop]
            start = stop
        if start < end:
            yield text[start:end]
            start = end


def _sentence_ends(text: str) -> Iterator[int]:
    """Where sentences end, ascending, the end of the text last."""
    begin, last = 0, len(text)
    for match in _MARK.finditer(text):
        first, end = match.start(), match.end()
        if end == last:
            break
        if text[first] == "\n":
            if text[end].islower() and text[first - 1] not in _LATIN:
                continue
            end = first
            while end > begin and text[end - 1].isspace():
                end -= 1
        elif text[first] in _LATIN:
            marks = match[0]
            if text[end].isspace():
                if not _ends_sentence(text, begin, first, marks):
                    continue
            elif len(marks) == 1 or not (marks.startswith("……") or _WIDE_MARK.search(marks)):
                continue
        if begin < end:
            yield end
            begin = end
    if last:
        yield last


def _ends_sentence(text: str, begin: int, dot: int, marks: str) -> bool:
    """Do Latin `marks` at `dot`, with white space behind them, end the sentence that began at `begin`?"""
    follows = _NEXT.match(text, dot + len(marks))[1]  # type: ignore[index]  it always matches
    lower_follows = follows[:1].islower()
    if lower_follows and (marks[-1] in _CLOSING or marks[0] == "…" or marks.startswith("..")):
        return False  # "Why?" he asked. Well... perhaps.
    if marks[0] != "." or marks.startswith(".."):
        return True
    word = _WORD_BEFORE.search(text, max(begin, dot - 17), dot)
    if word is None:
        return not lower_follows
    before = word[0]
    if lower_follows and (len(before) < 4 or not before.isalpha()):
        return False  # more likely an abbreviation that is not listed
    if before.replace(".", "").isdecimal():  # "1.2. First item" is one sentence, "in 1998. The" are two
        return word.start() - begin > 20 or bool(text[begin : word.start()].strip())
    lower = before.lower()
    if lower in _LEADING or (lower in _NUMBERED and follows.isdecimal()):
        return False
    if (len(before) == 1 and before.isupper() and before != "I") or lower in _TRAILING or _DOTTED.match(before):
        return follows in _OPENERS
    return True
