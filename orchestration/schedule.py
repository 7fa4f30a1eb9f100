"""Learning rate as a pure function of how far a run is: no state to save, none to step twice.

How far a run is, is told by its steps, or by the share of its budget that was spent before the step.
"""


def learning_rate(step: int, steps: int, peak: float, warmup_ratio: float, schedule: str = "linear") -> float:
    """Learning rate of optimizer step `step` (0-based) of `steps`.

    Rises linearly over the first `warmup_ratio` of the steps to `peak`, then falls linearly to 0 at step `steps`
    ("linear") or stays ("constant"). The first step has a rate above 0 and so has the last: no step is wasted.
    Source: BERT, arXiv:1810.04805 appendix A.2.
    """
    warmup_steps = int(steps * warmup_ratio)
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    return peak * (steps - step) / (steps - warmup_steps)


def rate_of_share(share: float, peak: float, warmup_ratio: float, schedule: str = "linear") -> float:
    """Learning rate of a step before which `share` (0 to 1) of the budget was spent: the same line over the budget.

    It rises from 0: what the first step will spend nobody knows before it is done. It is above 0 in the last step,
    before which something is left. A budget that is raised makes the share smaller: the rate follows that.
    """
    if share < warmup_ratio:
        return peak * share / warmup_ratio
    return peak if schedule == "constant" else peak * (1 - share) / (1 - warmup_ratio)
