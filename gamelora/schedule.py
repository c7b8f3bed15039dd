"""The regularizers' powers over a run, and the moving average that scales Barlow Twins (method.md section 4)."""

from __future__ import annotations


def ramp(progress: float, warmup: float, decay_start: float) -> float:
    """Factor on lambda, in [0, 1]: linear warm-up, constant, linear to 0 at the end.

    Parameters
    ----------
    progress : share of the run that is done, in [0, 1]: step / steps before the step.
    warmup : share at which the factor reaches 1; with 0 it starts at 1.
    decay_start : share at which it starts to fall; with 1 it never does.
    """
    rise = progress / warmup if progress < warmup else 1.0
    fall = (1.0 - progress) / (1.0 - decay_start) if progress > decay_start else 1.0
    return max(0.0, min(rise, fall))


def moving_average(previous: float | None, value: float, decay: float) -> float:
    """Exponential moving average in which the newest value has the share `decay`; the first value stands alone.

    [D] method.md's "decay 0.1" is read as the share of the newest value: with the other reading the average would follow
    the loss so closely that the scaled loss stayed at its target whatever happened.
    """
    return value if previous is None else (1.0 - decay) * previous + decay * value
