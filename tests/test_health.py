"""What is said about a run's course: each note appears when its cause does, and nothing is said of a sound run."""

import pandas as pd
import pytest

from gamelora.health import health, seconds_left
from gamelora.run_metrics import RunMetrics

SOUND = {
    "loss/ce": 2.0,
    "loss/ldb": 0.5,
    "loss/bt": 30.0,
    "gap/ldb": 0.4,
    "weight/ce": 0.8,
    "weight/ldb": 1.0,
    "weight/bt": 0.01,
    "gradient_norm/ce": 1.0,
    "gradient_norm/ldb": 0.3,
    "gradient_norm/bt": 5.0,
}
STATUS = {"notes": [], "bargains": {"solved": 5, "failed": 0, "opposed": 0}}


def metrics(steps=40, held_out=(3.0, 2.8, 2.7), **changes) -> RunMetrics:
    """A run whose every step is the same, with some values changed; a list gives the last values of a column."""
    table = pd.DataFrame({name: [value] * steps for name, value in SOUND.items()}, index=range(1, steps + 1), dtype=float)
    for name, value in changes.items():
        values = value if isinstance(value, list) else [value] * steps
        table.loc[table.index[-len(values) :], name] = values
    return RunMetrics(table, pd.DataFrame({"eval_loss": list(held_out)}, index=[10 * place for place in range(len(held_out))]))


def test_nothing_is_said_of_a_sound_run_or_of_one_that_has_not_begun():
    assert health(metrics(), STATUS) == [] == health(RunMetrics(), {})


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"loss/ce": [2.0, float("nan"), 2.0]}, "cross-entropy was not finite in 1 of the last 20 steps, last in step 39"),
        ({"loss/bt": [float("nan")]}, "Barlow Twins loss was not finite"),
        ({"gap/ldb": 1e-5}, "barrier is at its floor (gap 1e-05)"),
        ({"weight/ce": 0.01}, "cross-entropy has 2.8% of the weight"),
        ({"held_out": (3.0, 2.5, 2.6)}, "rose from 2.5 after step 10 to 2.6"),
    ],
    ids=str,
)
def test_each_cause_is_named(changes, part):
    (said,) = health(metrics(**changes), STATUS)
    assert part in said


def test_a_loss_that_recovered_long_ago_is_no_longer_said():
    assert health(metrics(**{"loss/ce": [float("nan")] + [2.0] * 25}), STATUS) == []


@pytest.mark.parametrize(
    ("paper", "invariant", "said"),
    [((0.8, 0.1), (1.0, 1.1), True), ((0.8, 0.1), (1.0, 0.7), False), ((0.8, 0.78), (1.0, 1.1), False)],
)
def test_a_fall_that_the_invariant_coupling_does_not_see_is_said(paper, invariant, said):
    run = metrics(held_out=(3.0, 2.8))
    run.evaluations["eval_gamma_paper/L3"], run.evaluations["eval_gamma_invariant/L3"] = paper, invariant
    notes = health(run, STATUS | {"design_layers": [3]})
    assert len(notes) == said and all("-88% under the paper's coupling and by +10% under the invariant" in note for note in notes)
    assert health(run, STATUS) == [], "without knowing the design layer nothing is said"


def test_bargains_without_a_solution_are_counted_and_the_trainers_words_follow():
    status = {"notes": ["A word."], "bargains": {"solved": 2, "failed": 1, "opposed": 2}}
    first, last = health(metrics(), status)
    assert "3 of 5 bargains" in first and "1 by the solver, 2 because the gradients oppose" in first and last == "A word."


def test_a_single_loss_has_no_weight_to_lose():
    alone = RunMetrics(pd.DataFrame({"loss/ce": [2.0], "weight/ce": [1.0]}, index=[1]))
    assert health(alone, STATUS) == []


def paced(*times, first=1) -> RunMetrics:
    steps = pd.DataFrame({"time": times}, index=range(first, first + len(times)), dtype=float)
    return RunMetrics(steps, pd.DataFrame({"time": [times[0] - 30.0], "eval_loss": [3.0]}, index=[0]))


def test_the_time_left_goes_by_the_latest_steps_and_counts_down_between_them():
    assert seconds_left(paced(100, 102, 104, 106), 10, now=106) == 6 * 2
    assert seconds_left(paced(100, 102, 104, 106), 10, now=109) == 6 * 2 - 3
    assert seconds_left(paced(100, 102, 104, 106), 10, now=500) == 0
    assert seconds_left(paced(*range(0, 400, 4), *range(400, 600, 2), first=1), 300, now=598) == pytest.approx(100 * 2, rel=0.02)


def test_a_break_between_stop_and_resume_is_no_pace():
    assert seconds_left(paced(0, 1, 2, 3, 9000, 9001, 9002), 17, now=9002) == 10


def test_no_time_is_known_before_two_steps():
    assert seconds_left(RunMetrics(), 10, 0) is None and seconds_left(paced(5), 10, 5) is None
