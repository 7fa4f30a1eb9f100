"""What is told of a prepared corpus: exact counts of a small store, exact marks, and a sample of a large one."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from made_store import TOKENIZER
from worded_store import ROWS, WORDS, row, store_of

from data.config import Masking
from data.inspection import mark_rows, sample, script_of, summarise
from data.order import GROUP_ROWS
from data.rows import Row
from data.store import Store

ALL_MASKED = Masking(mlm_probability=0.99, mask_share=1, random_share=0)


def texts(store: Store, row_ids: list[int], masking: Masking, part: str = "train") -> list[str]:
    ids = np.array(row_ids)
    marked = mark_rows(store, part, ids, np.zeros_like(ids), masking.mlm_probability, 0, masking)
    assert all("".join(text for _, text in one["parts"]) == one["text"] for one in marked)
    return [one["text"] for one in marked]


def test_counts_of_a_small_store_are_exact(tmp_path: Path):
    store = store_of(tmp_path, ROWS)
    facts = json.loads(json.dumps(summarise(store, "train", Masking(), 0.15, 0)))
    assert facts["documents"] == {"read": 10, "kept": 6, "empty": 1, "duplicate": 1, "quarantined": 2}
    assert facts["quarantined_by_reason"] == {"encoding": 2} and facts["files"] == 3
    assert [(one["source"], one["rows"], one["held_out_rows"]) for one in facts["sources"]] == [(0, 1, 0), (1, 3, 1)]
    assert sum(one["bytes"] for one in facts["sources"]) == sum(
        path.stat().st_size for path in tmp_path.rglob("*.parquet")
    )
    assert (facts["rows"]["train"], facts["rows"]["held_out"], facts["rows"]["length"]) == (4, 1, 10)
    found = facts["sample"]
    assert (found["rows"], found["tokens"]) == (4, 9 + 5 + 3 + 5)
    assert found["unknown_share"] == pytest.approx(1 / 13, abs=1e-6)
    assert found["padding_share"] == pytest.approx(18 / 40)
    assert {bar["from"]: bar["rows"] for bar in found["lengths"] if bar["rows"]} == {3: 1, 5: 2, 9: 1}
    assert [(bar["from"], bar["to"]) for bar in found["lengths"]] == [(i, i) for i in range(1, 11)]
    assert found["shortest"] == {"row_id": 2, "tokens": 3} and found["longest"] == {"row_id": 0, "tokens": 9}
    assert found["rows_of_several_segments"] == 1 and found["pair_labels"] is None
    letters = {"Latin": 3 * 3 + 9 + 3 + 3 + 5, "Cyrillic": 3, "Han": 1}
    assert found["scripts"] == {name: pytest.approx(n / 33, abs=1e-6) for name, n in letters.items()}


def test_targets_are_counted_for_every_strategy(tmp_path: Path):
    rows = [row("[CLS]", *["the", "em", "##bed", "##ding", "cat", "sat", "кот", "中"], "[SEP]")] * 900
    targets = summarise(store_of(tmp_path, rows), "train", Masking(), 0.25, 0)["sample"]["targets"]
    assert list(targets) == ["token", "whole_word", "span", "ngram"]
    for found in targets.values():
        assert found["share"] == 0.25  # two of eight, and there are always words of one token
        assert found["masked"] == pytest.approx(0.8, abs=0.05)
        assert found["masked"] + found["random"] + found["kept"] == pytest.approx(1, abs=1e-5)


def test_a_part_without_rows_has_no_shares(tmp_path: Path):
    store = store_of(tmp_path, ROWS)
    store.manifest["shards"]["held_out"] = []
    found = summarise(store, "held_out", Masking(), 0.15, 0)["sample"]
    assert found["rows"] == 0 and found["scripts"] == {} and found["longest"] is None
    assert found["padding_share"] is None and found["targets"]["token"]["share"] is None


def test_masked_and_kept_tokens_are_marked_in_their_words_and_documents_apart(tmp_path: Path):
    store = store_of(tmp_path, ROWS)
    assert texts(store, [0, 2, 1], ALL_MASKED) == [
        "[CLS] [MASK:the] [MASK:cat] [MASK:sat] [SEP] ‖ [MASK:em][MASK:bed][MASK:ding] [SEP]",
        "[CLS] [MASK:cat] [SEP]",
        "[CLS] [MASK:кот] [UNK] [MASK:中] [SEP]",
    ]
    kept = Masking(mlm_probability=0.99, mask_share=0, random_share=0)
    assert texts(store, [0], kept, "held_out") == ["[CLS] {sat} {cat} {the} [SEP]"]
    one = texts(store, [0], Masking(mlm_probability=0.01, mask_share=1, random_share=0))[0]
    assert re.sub(r"\[MASK:(\w+)\]", r"\1", one) == "[CLS] the cat sat [SEP] ‖ embedding [SEP]"
    assert one.count("[MASK:") == 1


def test_a_random_token_stands_beside_the_true_one(tmp_path: Path):
    store = store_of(tmp_path, ROWS)
    (text,) = texts(store, [0], Masking(mlm_probability=0.99, mask_share=0, random_share=1))
    words = [word.removeprefix("##") for word in WORDS[5:]]
    pairs = re.findall(r"\{(?:(\w+)\|)?(\w+)\}", text)  # a random token may be the true one: {word}
    assert [true for _, true in pairs] == ["the", "cat", "sat", "em", "bed", "ding"]
    shown = [shown for shown, _ in pairs if shown]
    assert len(shown) >= 3 and set(shown) <= {*words, "##bed", "##ding"}


def test_facts_of_a_shown_row_and_the_visit_that_decides_its_masks(tmp_path: Path):
    store = store_of(tmp_path, [row(*one, starts=(4,), label=i % 2) for i, one in enumerate([
        ("[CLS]", "the", "cat", "[SEP]", "sat", "[SEP]")] * 4)], packing="next_sentence")  # fmt: skip
    row_ids, visits = np.array([2, 1]), np.array([0, 7])
    first, second = mark_rows(store, "train", row_ids, visits, 0.4, 3, Masking())
    assert {**first, "text": 0, "parts": 0} == {
        "row_id": 2, "visit": 0, "tokens": 6, "targets": 1, "segments": 2, "pair_label": 0, "text": 0, "parts": 0
    }  # fmt: skip
    assert (second["visit"], second["pair_label"]) == (7, 1)
    assert summarise(store, "train", Masking(), 0.15, 0)["sample"]["pair_labels"] == {"0": 2, "1": 1}
    seen = {mark_rows(store, "train", row_ids[:1], np.array([v]), 0.4, 3, Masking())[0]["text"] for v in range(20)}
    assert len(seen) > 3


def test_characters_of_several_bytes_are_shown_whole(tmp_path: Path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate([*WORDS[:5], *letters])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(WORDS[:5]))
    ids = np.array([2, *backend.encode("é 中a").ids, 3], np.int32)
    store = store_of(tmp_path, [Row(ids, np.ones(len(ids), bool))] * 3, backend=backend)
    store.manifest["tokenizer"] = {**TOKENIZER, "vocab_size": 5 + len(letters)}
    (all_masked,) = texts(store, [0], ALL_MASKED)
    assert all_masked == "[CLS][MASK:\ufffd][MASK:é][MASK: ][MASK:\ufffd][MASK:\ufffd][MASK:中][MASK:a][SEP]"
    (one,) = texts(store, [0], Masking(mlm_probability=0.01, mask_share=1, random_share=0))
    assert one.count("[MASK:") == 1 and "".join(re.split(r"\[MASK:\ufffd?|\]", one[5:-5])) == "é 中a"


def test_a_sample_of_many_rows_reads_few_row_groups_and_spans_them_all():
    assert sample(0).tolist() == [] and sample(2048).tolist() == list(range(2048))
    for num_rows in (2049, 10_000, 10**9 + 7):
        row_ids = sample(num_rows)
        assert len(np.unique(row_ids)) == len(row_ids) == 2048 and (np.diff(row_ids) > 0).all()
        assert (row_ids[0], row_ids[-1]) == (0, num_rows - 1)
        assert len(np.unique(row_ids // GROUP_ROWS)) <= 64


@pytest.mark.parametrize(
    ("letters", "script"),
    [
        ("aÉßﬁＡ", "Latin"), ("жЁ", "Cyrillic"), ("αΩ", "Greek"), ("北豈", "Han"), ("あ", "Hiragana"),
        ("アｱ", "Katakana"), ("한", "Hangul"), ("א", "Hebrew"), ("ع", "Arabic"), ("अ", "Devanagari"), ("ก", "Thai"),
        ("ªµᴴ", "other"),
    ],
)  # fmt: skip
def test_letters_are_told_by_script(letters: str, script: str):
    assert {script_of(letter) for letter in letters} == {script}
