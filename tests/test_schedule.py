"""The lambda schedule and the moving average."""

import numpy as np
import pytest

from gamelora.schedule import moving_average, ramp


def test_the_ramp_rises_stays_and_falls_to_zero():
    assert [ramp(p, 0.02, 0.879) for p in (0.0, 0.01, 0.02, 0.5, 0.879, 1.0)] == pytest.approx([0, 0.5, 1, 1, 1, 0])
    assert ramp(0.9395, 0.02, 0.879) == pytest.approx(0.5)


def test_the_ramp_is_continuous_within_bounds_and_unimodal():
    values = np.array([ramp(p, 0.1, 0.6) for p in np.linspace(0, 1, 2001)])
    assert values.min() == 0 and values.max() == 1 and np.abs(np.diff(values)).max() < 0.006
    steps = np.sign(np.diff(values))
    assert (np.diff(steps[steps != 0]) <= 0).all()


def test_edges_of_the_schedule():
    assert ramp(0.0, 0.0, 1.0) == 1 and ramp(1.0, 0.0, 1.0) == 1
    assert ramp(0.3, 0.3, 0.3) == 1 and ramp(1.0, 0.3, 0.3) == 0


def test_the_moving_average_starts_at_the_first_value_and_converges():
    assert moving_average(None, 7.0, 0.1) == 7.0
    assert moving_average(7.0, 17.0, 0.1) == pytest.approx(8.0)
    average = 0.0
    for _ in range(200):
        average = moving_average(average, 5.0, 0.1)
    assert average == pytest.approx(5.0)
