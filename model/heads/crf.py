"""A linear-chain conditional random field: scores of whole tag sequences.

In: scores of single tags, and which tokens are in the chain. Out: log-likelihoods, the best sequence, marginals.
Computed in fp32 whatever comes in: sums of exponentials over a sentence are beyond half precision. Knows torch only.
Source: Lafferty et al., Conditional Random Fields (ICML 2001); Rabiner, A Tutorial on Hidden Markov Models (1989).

Letters of shapes: B rows, T tokens, L tokens of the longest chain, C tags.
"""

import torch
from torch import Tensor, nn


class ConditionalRandomField(nn.Module):
    """score(tags) = starts[first] + sum of emissions + sum of transitions[tag, next tag] + ends[last].

    A mask (B, T) tells which tokens are in a row's chain, in their order: what lies between them is left out. A row
    with no token has one sequence, the empty one: log-likelihood 0.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        self.starts = nn.Parameter(torch.zeros(tags))
        self.ends = nn.Parameter(torch.zeros(tags))

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Emissions (B, T, C), tags (B, T), mask (B, T) bool -> log p(tags | emissions) of each row, (B,) fp32."""
        with torch.autocast(emissions.device.type, enabled=False):
            chain, place, inside = _compact(emissions, mask)
            tags = tags.gather(1, place)
            starts, ends, transitions = self._scores()
            single = chain.gather(-1, tags[:, :, None]).squeeze(-1)
            steps = transitions[tags[:, :-1], tags[:, 1:]]
            score = single.masked_fill(~inside, 0.0).sum(1) + steps.masked_fill(~inside[:, 1:], 0.0).sum(1)
            last = tags.gather(1, (inside.sum(1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
            score = score + starts[tags[:, 0]] + ends[last]
            total = torch.logsumexp(self._forward(chain, inside)[-1] + ends, -1)
            return (score - total).masked_fill(~inside[:, 0], 0.0)

    @torch.no_grad()
    def best(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The most likely tags (Viterbi), (B, T) int64, 0 outside of the chain."""
        with torch.autocast(emissions.device.type, enabled=False):
            chain, place, inside = _compact(emissions, mask)
            starts, ends, transitions = self._scores()
            best, pointers = starts + chain[:, 0], []  # (B, C)
            for step in range(1, chain.shape[1]):
                values, previous = (best[:, :, None] + transitions).max(1)
                within = inside[:, step, None]
                best = torch.where(within, values + chain[:, step], best)
                # Behind the end of a row the pointers stay where they are.
                pointers.append(torch.where(within, previous, torch.arange(previous.shape[-1], device=chain.device)))
            path = [(best + ends).argmax(-1)]
            for pointer in reversed(pointers):
                path.append(pointer.gather(1, path[-1][:, None]).squeeze(1))
            tags = torch.stack(path[::-1], 1).masked_fill(~inside, 0)
            return torch.zeros(mask.shape, dtype=torch.long, device=mask.device).scatter_add_(1, place, tags)

    @torch.no_grad()
    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Probability of each tag of each token given the whole row, (B, T, C) fp32; 0 outside of the chain."""
        with torch.autocast(emissions.device.type, enabled=False):
            chain, place, inside = _compact(emissions, mask)
            _, ends, transitions = self._scores()
            behind = [ends.expand(len(chain), -1)]
            for step in range(chain.shape[1] - 1, 0, -1):
                values = torch.logsumexp(transitions + (chain[:, step] + behind[-1])[:, None], -1)
                behind.append(torch.where(inside[:, step, None], values, behind[-1]))
            scores = torch.stack(self._forward(chain, inside), 1) + torch.stack(behind[::-1], 1)
            shares = scores.softmax(-1).masked_fill(~inside[:, :, None], 0.0)
            whole = torch.zeros(emissions.shape, dtype=shares.dtype, device=shares.device)
            return whole.scatter_add_(1, place[:, :, None].expand_as(shares), shares)

    def _scores(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.starts.float(), self.ends.float(), self.transitions.float()

    def _forward(self, chain: Tensor, inside: Tensor) -> list[Tensor]:
        """Log sums over all beginnings that end in each tag, (B, C) for each step; behind a row's end the last one."""
        starts, _, transitions = self._scores()
        sums = [starts + chain[:, 0]]
        for step in range(1, chain.shape[1]):
            values = torch.logsumexp(sums[-1][:, :, None] + transitions, 1) + chain[:, step]
            sums.append(torch.where(inside[:, step, None], values, sums[-1]))
        return sums


def _compact(emissions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the tokens of each chain to the front: (chain (B, L, C) fp32, their places (B, L), which are real (B, L)).

    Steps are then taken over the words of the longest row, not over its tokens. L is 1 at least.
    """
    mask = mask.bool()
    lengths = mask.sum(1)
    longest = max(int(lengths.max()), 1) if len(mask) else 1
    place = torch.argsort(~mask, dim=1, stable=True)[:, :longest]
    inside = torch.arange(longest, device=mask.device) < lengths[:, None]
    chain = emissions.float().gather(1, place[:, :, None].expand(-1, -1, emissions.shape[-1]))
    # What is behind a row's end may be anything, NaN too: it must reach neither the sums nor their gradient.
    return chain.masked_fill(~inside[:, :, None], 0.0), place, inside
