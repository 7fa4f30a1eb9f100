"""Learning rate as a pure function of how far a run is: no state to save, none to step twice.

How far a run is, is told by its steps, or by the shares of its budget that were spent before and after the step.
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


def rate_of_share(
    before: float, after: float, peak: float, warmup_ratio: float, schedule: str = "linear"
) -> float:
    """Learning rate of a step before which a share of the budget was spent, and another one after it (0 to 1 each).

    The same line over the budget: where all steps spend alike it is `learning_rate`, with a warm-up of whole steps.
    The first step has a rate above 0, and so has the last, before which something is left. A budget that is raised
    makes the shares smaller: the rate follows that.
    """
    if before < warmup_ratio:
        return peak * after / (warmup_ratio + after - before)
    return peak if schedule == "constant" else peak * (1 - before) / (1 - warmup_ratio)
