"""Sentences: joined they are the text, cut where people cut, in linear time, in English, Chinese and other scripts."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.sentences import PIECE_CHARACTERS, split_lines, split_sentences

# "|" stands where a sentence ends.
ENGLISH = [
    "One. |Two!  |Three? |four",
    'He said "No." |Then he left. |(She stayed.) |Nobody knew.',
    "v1.2 costs 3.50 today. |It cost $2.75 in 1998. |That was cheap.",
    "Mr. Smith met Dr. J. R. Jones at St. Paul's. |They spoke for hours.",
    "The U.S. Army arrived at 5 p.m. on Monday. |It left the U.S. |The next day was quiet.",
    "Use fruit, e.g. apples, i.e. what keeps, cf. Fig. 3 and No. 12. |No. |He would not.",
    'Well... perhaps not. |"Why?" he asked. |"Because!" she cried. |He went.',
    "Acme Inc. makes parts, gears, etc. for cars. |Widgets Ltd. |The others failed.",
    "She was born on Jan. 5 in Washington D.C. and died there. |Who knew?! |I did.",
    "1. Mix the flour. |2.1. Add milk. |Section 3. |It follows.",
    "this is web text. |people write so. |They do! |ok? |fine",
    "See www.example.com/a.html?b=1 for more. |Mail a.b@c.org. |Thanks!",
    "Is it Plan B? |Yes. |Then I. |The end, said Prof. Brown et al. in vol. 7.",
]
CHINESE = [
    "你好。|再见！|“好。”|完",
    "他问：“你去吗？”|我说：“不去。”|然后他走了。",
    "今天天气很好；|明天会下雨。|你带伞了吗？！|带了。",
    "价格是3.5元，比去年高了1.2%。|这很正常。",
    "他想了想……|还是没有说话。|“算了……”|她叹气。",
    "（这是注释。）|正文从这里开始。|结束",
    "Debian 12.5 已经发布。|请访问 www.debian.org 下载！|谢谢。",
    "《红楼梦》是谁写的？|曹雪芹。|他是清代人。",
    "「是吗？」|「是的。」|他点头。",
    "第一章。|第二章！|第三章？|没有第四章",
    "他说Mr. Wang来了。|我们走吧！",
    "中文没有空格。 |有空格也行。\t|制表符也行",
]
OTHERS = [
    "यह पहला वाक्य है। |यह दूसरा है॥ |और यह?",
    "هل أنت بخير؟ |نعم. |شكرا",
    "Das ist z.B. so. |Der Preis ist 3,50 Euro. |Ende",
]


def cut(text: str) -> list[str]:
    """Sentences, white space moved to the end of the one before it, as the marks above have it."""
    return [sentence.strip() for sentence in split_sentences(text) if sentence.strip()]


@pytest.mark.parametrize("marked", [*ENGLISH, *CHINESE, *OTHERS])
def test_sentences(marked: str):
    assert cut(marked.replace("|", "")) == [sentence.strip() for sentence in marked.split("|")]


def test_line_breaks_end_sentences_but_not_where_wrapped_text_goes_on():
    assert split_sentences("title\n\nBody text\nMore") == ["title", "\n\nBody text", "\nMore"]
    wrapped = "A line that is wrapped\nat some column. It goes on\n\n\tNext"
    assert split_sentences(wrapped) == ["A line that is wrapped\nat some column.", " It goes on", "\n\n\tNext"]
    assert split_sentences("end.\nlower  \n Upper") == ["end.", "\nlower", "  \n Upper"]


@settings(max_examples=300)
@given(st.text(alphabet=st.sampled_from("abAB .!?\n\"')。！；…“”।؟1\t\u3000"), max_size=200) | st.text(max_size=50))
def test_sentences_joined_are_the_text(text: str):
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    assert all(sentences)


def test_endless_sentence_is_cut_before_white_space_where_there_is_any():
    text = "word " * PIECE_CHARACTERS
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= PIECE_CHARACTERS
    assert all(piece.startswith(" word") for piece in pieces[1:])
    assert [len(piece) for piece in split_sentences("x" * 25_000)] == [PIECE_CHARACTERS, PIECE_CHARACTERS, 5_000]


@pytest.mark.parametrize("text", ["x", " ", ".", '"', "\n", " \n", '?)"', "a.b", ". a", "…", "。", "U.S. "])
def test_time_is_linear(text: str):
    def seconds(characters: int) -> float:
        begin = time.process_time()
        pieces = split_sentences(text * (characters // len(text)))
        assert max(map(len, pieces)) <= PIECE_CHARACTERS
        return time.process_time() - begin

    seconds(10_000)
    assert seconds(800_000) < 2.5  # quadratic time would be hours; a twentieth of this is what it takes


def test_lines_are_told_without_their_breaks_and_blank_ones_not_at_all():
    assert split_lines("a\n\n \nb b\n\tc\n") == ["a", "b b", "\tc"]
    assert split_lines("\n") == []


@pytest.mark.shared
def test_boundaries_of_real_text_are_found(shared):
    """Sentences of web text joined to paragraphs: 97 % of the cuts are right, 98 % of the marked ends found."""
    paragraphs: list[list[str]] = []
    for line in (shared / "pos_en_ud_ewt" / "en_ewt-ud-dev.conllu").read_text(encoding="utf-8").splitlines():
        if line.startswith(("# newpar", "# newdoc")):
            paragraphs.append([])
        elif line.startswith("# text = "):
            paragraphs[-1].append(line.removeprefix("# text = ").rstrip())
    right = wrong = missed = 0
    for sentences in paragraphs:
        ends = {len(" ".join(sentences[:count])): sentences[count - 1] for count in range(1, len(sentences))}
        pieces = split_sentences(" ".join(sentences))
        cuts = {sum(map(len, pieces[:count])) for count in range(1, len(pieces))}
        right += len(cuts & ends.keys())
        wrong += len(cuts - ends.keys())
        missed += sum(sentence[-1] in ".!?" for end, sentence in ends.items() if end not in cuts)
    assert right > 1000
    assert right / (right + wrong) > 0.97
    assert right / (right + missed) > 0.97
