"""Parts travel unchanged, and become the same number of micro-batches on every rank."""

import dataclasses

import numpy as np

from data.batches import Part, decode, encode, micro_batches, steps_of
from data.masking import IGNORED


def part() -> Part:
    draw = np.random.default_rng(0)
    ids = draw.integers(5, 90, (5, 32)).astype(np.int32)
    lengths = np.array([32, 3, 9, 17, 8], dtype=np.int32)
    ids[np.arange(32) >= lengths[:, None]] = 0
    labels = np.where((ids % 5 == 0) & (ids > 0), ids, IGNORED).astype(np.int32)
    return Part(False, 3, 6, 1, 2, np.array([3, 3, 3, 5, 5]), np.array([7, 2**40, 0, 4, 9]), lengths, ids, labels)


def test_a_part_comes_back_as_it_was():
    sent = part()
    got = decode(encode(sent))
    for name, value in vars(sent).items():
        assert np.array_equal(getattr(got, name), value), name
    assert isinstance(got.evaluation, bool)


def test_a_rank_without_rows_is_a_part_too():
    empty = np.empty(0, dtype=np.int64)
    wide = np.empty((0, 16), dtype=np.int32)
    got = decode(encode(Part(True, 0, 1, 3, 0, empty, empty, empty.astype(np.int32), wide, wide)))
    assert got.evaluation and got.rank == 3
    [(step, rows)] = steps_of(got)
    [batch] = micro_batches(got, rows, 2, 1, pad_id=0)
    assert (step, len(rows)) == (0, 0)
    assert batch["input_ids"].shape == (2, 8)


def test_steps_without_rows_are_steps():
    assert [(step, rows.tolist()) for step, rows in steps_of(part())] == [(3, [0, 1, 2]), (4, []), (5, [3, 4])]


def test_micro_batches_hold_every_row_and_filler_of_weight_zero():
    sent = part()
    batches = micro_batches(sent, np.array([0, 1, 2]), micro_batch=2, accumulation=3, pad_id=0)
    assert [b["input_ids"].shape for b in batches] == [(2, 32), (2, 16), (2, 8)]  # trimmed to the longest row
    seen = [b["input_ids"][i][b["attention_mask"][i] == 1].tolist() for b in batches for i in range(2)]
    assert seen[:3] == [sent.input_ids[r, : sent.lengths[r]].tolist() for r in range(3)]
    assert seen[3:] == [[0]] * 3  # a filler row attends one [PAD]: nothing attended would be NaN
    assert all((b["labels"][i] == IGNORED).all() for b, i in [(batches[1], 1), (batches[2], 0), (batches[2], 1)])
    targets = sum(int((b["labels"] != IGNORED).sum()) for b in batches)
    assert targets == int((sent.labels[:3] != IGNORED).sum())


def test_pairs_and_packed_documents_travel_and_reach_the_model():
    plain = part()
    segments = ((np.arange(32) >= 2) & (np.arange(32) < plain.lengths[:, None])).astype(np.int16)
    pairs = dataclasses.replace(plain, segments=segments, pair_labels=np.array([1, 0, 1, 0, 0], np.int8))
    packed = dataclasses.replace(plain, segments=segments)
    for sent in (pairs, packed):
        got = decode(encode(sent))
        assert np.array_equal(got.segments, segments)
        assert np.array_equal(got.pair_labels, sent.pair_labels) if sent is pairs else got.pair_labels is None
    [batch] = micro_batches(decode(encode(pairs)), np.array([1, 2]), 3, 1, pad_id=0)
    assert batch["token_type_ids"].tolist() == [[0, 0, 1] + [0] * 13, [0, 0] + [1] * 7 + [0] * 7, [0] * 16]
    assert batch["pair_labels"].tolist() == [0, 1, IGNORED]
    [batch] = micro_batches(packed, np.array([1, 2]), 3, 1, pad_id=0)
    assert batch["document_ids"].tolist() == [
        [0, 0, 1] + [-1] * 13, [0, 0] + [1] * 7 + [-1] * 7, [0] + [-1] * 15
    ]  # fmt: skip
    assert batch["position_ids"][1].tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6]
    assert "token_type_ids" not in batch and "pair_labels" not in batch


def test_a_number_for_each_token_travels_where_the_objective_draws():
    drawn = np.random.default_rng(1).random((5, 32), np.float32)
    got = decode(encode(dataclasses.replace(part(), draws=drawn)))
    assert got.draws is not None and np.array_equal(got.draws, drawn)
    [batch] = micro_batches(got, np.array([1, 2]), 3, 1, pad_id=0)
    assert np.array_equal(batch["draws"][:2], drawn[1:3, :16]) and not batch["draws"][2].any()
    assert "draws" not in micro_batches(part(), np.array([1]), 3, 1, pad_id=0)[0]
