"""The conditional random field against enumeration of every sequence; masks with holes; half precision."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from model.heads.crf import ConditionalRandomField

TAGS = 3


def make(tags: int = TAGS, scale: float = 1.0) -> ConditionalRandomField:
    crf = ConditionalRandomField(tags)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(0, scale, generator=generator)
    return crf


def score(crf: ConditionalRandomField, emissions: Tensor, tags: tuple[int, ...]) -> float:
    """Of one sequence over (L, C) emissions, written down as the definition says."""
    total = float(crf.starts[tags[0]]) + float(crf.ends[tags[-1]])
    total += sum(float(emissions[i, tag]) for i, tag in enumerate(tags))
    return total + sum(float(crf.transitions[a, b]) for a, b in itertools.pairwise(tags))


def enumerate_all(crf: ConditionalRandomField, emissions: Tensor) -> dict[tuple[int, ...], float]:
    """Every sequence over (L, C) emissions and its probability."""
    every = list(itertools.product(range(emissions.shape[1]), repeat=len(emissions)))
    scores = [score(crf, emissions, tags) for tags in every]
    total = math.log(sum(math.exp(s) for s in scores))
    return {tags: math.exp(s - total) for tags, s in zip(every, scores, strict=True)}


@pytest.fixture
def rows() -> tuple[Tensor, Tensor, Tensor]:
    """Emissions (4, 7, C), a mask with holes as words of several tokens leave them, tags."""
    generator = torch.Generator().manual_seed(3)
    emissions = 2 * torch.randn(4, 7, TAGS, generator=generator)
    mask = torch.tensor([
        [0, 1, 1, 1, 1, 1, 0],
        [0, 1, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 1, 0, 1],
    ]).bool()  # fmt: skip
    return emissions, mask, torch.randint(0, TAGS, (4, 7), generator=generator)


def test_likelihood_best_sequence_and_marginals_equal_enumeration(rows) -> None:
    crf = make()
    emissions, mask, tags = rows
    likelihoods = crf.log_likelihood(emissions, tags, mask)
    best, marginals = crf.best(emissions, mask), crf.marginals(emissions, mask)
    for row in range(4):
        place = mask[row].nonzero().flatten()
        every = enumerate_all(crf, emissions[row, place])
        assert sum(every.values()) == pytest.approx(1)
        own = tuple(tags[row, place].tolist())
        assert likelihoods[row].item() == pytest.approx(math.log(every[own]), abs=1e-5)
        assert tuple(best[row, place].tolist()) == max(every, key=lambda sequence: every[sequence])
        for step, position in enumerate(place.tolist()):
            for tag in range(TAGS):
                expected = sum(p for sequence, p in every.items() if sequence[step] == tag)
                assert marginals[row, position, tag].item() == pytest.approx(expected, abs=1e-5)
    assert not best[~mask].any() and not marginals[~mask].any()


def test_what_is_outside_of_the_chain_reaches_nothing_not_even_the_gradient(rows) -> None:
    crf = make()
    emissions, mask, tags = rows
    spoilt = emissions.masked_fill(~mask[:, :, None], torch.nan).requires_grad_()
    whole = emissions.clone().requires_grad_()
    other = tags.masked_fill(~mask, 0)
    a, b = crf.log_likelihood(whole, tags, mask), crf.log_likelihood(spoilt, other, mask)
    assert torch.equal(a, b)
    a.sum().backward()
    b.sum().backward()
    assert whole.grad is not None and spoilt.grad is not None
    assert torch.equal(whole.grad, spoilt.grad) and not spoilt.grad[~mask].any()
    assert torch.equal(crf.best(emissions, mask), crf.best(spoilt, mask))
    assert torch.equal(crf.marginals(emissions, mask), crf.marginals(spoilt, mask))


def test_rows_do_not_depend_on_their_neighbours_and_an_empty_row_is_zero(rows) -> None:
    crf = make()
    emissions, mask, tags = rows
    mask[2] = False
    together = crf.log_likelihood(emissions, tags, mask)
    assert together[2] == 0 and not crf.best(emissions, mask)[2].any()
    for row in range(4):
        one = slice(row, row + 1)
        alone = crf.log_likelihood(emissions[one], tags[one], mask[one])
        torch.testing.assert_close(together[one], alone)
        assert torch.equal(crf.best(emissions, mask)[one], crf.best(emissions[one], mask[one]))
    none = crf.log_likelihood(emissions, tags, torch.zeros_like(mask))
    none.sum().backward()
    assert not none.any() and all(p.grad is None or not p.grad.any() for p in crf.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_is_single_precision_inside(dtype: torch.dtype) -> None:
    """64 tokens whose scores add up to 60,000: fp16 ends at 65,504, bf16 has steps of 256 there."""
    generator = torch.Generator().manual_seed(4)
    emissions = (900 + 30 * torch.randn(2, 64, TAGS, generator=generator)).to(dtype)
    tags = torch.randint(0, TAGS, (2, 64), generator=generator)
    mask = torch.ones(2, 64, dtype=torch.bool)
    crf = make()
    expected = crf.log_likelihood(emissions.float(), tags, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = crf.log_likelihood(emissions, tags, mask)
        best = crf.best(emissions, mask)
    assert actual.dtype == torch.float32 and actual.isfinite().all()
    torch.testing.assert_close(actual, expected)
    assert torch.equal(best, crf.best(emissions.float(), mask))
    half = make().to(dtype)
    half.log_likelihood(emissions, tags, mask).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.parameters())


def test_steps_are_taken_over_words_not_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 rows of 60 tokens with 5 words at most, the forward pass sums 4 times, whatever the rows."""
    counted = []
    summed = torch.logsumexp
    monkeypatch.setattr(torch, "logsumexp", lambda *args: counted.append(1) or summed(*args))
    mask = torch.zeros(200, 60, dtype=torch.bool)
    mask[:, ::12] = True
    make().log_likelihood(torch.zeros(200, 60, TAGS), torch.zeros(200, 60, dtype=torch.long), mask)
    assert len(counted) == 4 + 1  # and once over the last tags
