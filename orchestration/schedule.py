"""Learning rate as a pure function of the optimizer step: no state to save, none to step twice."""


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
