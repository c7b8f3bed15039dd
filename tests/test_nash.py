"""The bargain: its condition, its symmetries, TorchJD as an oracle, and every gradient that breaks careless solvers."""

import warnings

import numpy as np
import pytest
import torch
from torchjd.aggregation import NashMTL

from gamelora import nash
from gamelora.nash import NotConverged, Opposed, arbitrate, bargaining_weights

CASES = range(40)


def jacobian(seed: int, tasks: int | None = None, spread: float = 0.0) -> np.ndarray:
    """Task gradients of any angle; `spread` is the range of their lengths in powers of ten."""
    rng = np.random.default_rng(seed)
    tasks = tasks or int(rng.integers(2, 6))
    J = rng.normal(size=(tasks, 30)) + (seed % 3) * rng.normal(size=(1, 30))
    return J * 10.0 ** rng.uniform(-spread, spread, size=(tasks, 1))


@pytest.mark.parametrize("seed", CASES)
def test_the_weights_satisfy_the_bargaining_condition(seed):
    J = jacobian(seed, spread=6)
    powers = 10.0 ** np.random.default_rng(seed).uniform(-5, 0, size=len(J))
    M = J @ J.T
    a = bargaining_weights(M, powers)
    assert (a > 0).all()
    np.testing.assert_allclose(a * (M @ a), powers, atol=1e-8)


@pytest.mark.parametrize("seed", CASES)
def test_equal_powers_are_nash_mtl(seed):
    J = jacobian(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cvxpy says that the reference's problem is not DPP
        reference = NashMTL(len(J), max_norm=0, optim_niter=200).weighting(torch.tensor(J)).numpy()
    ours = bargaining_weights(J @ J.T, np.ones(len(J)))
    np.testing.assert_allclose(ours / np.linalg.norm(ours), reference / np.linalg.norm(reference), atol=2e-3)


@pytest.mark.parametrize("seed", CASES)
def test_the_solution_is_the_minimum(seed):
    J = jacobian(seed)
    M, powers = J @ J.T, np.linspace(1, 0.2, len(J))
    a = bargaining_weights(M, powers)
    value = lambda w: w @ M @ w / 2 - powers @ np.log(w)  # noqa: E731
    rng = np.random.default_rng(seed)
    assert all(value(a * np.exp(rng.normal(scale=0.05, size=len(a)))) > value(a) for _ in range(50))


@pytest.mark.parametrize("seed", CASES)
def test_the_step_keeps_the_length_of_the_reference(seed):
    J = jacobian(seed, tasks=3)
    bargain = arbitrate(J @ J.T, [1.0, 0.352, 0.179])
    if bargain.outcome == "solved":
        assert np.linalg.norm(J.T @ bargain.weights) == pytest.approx(np.linalg.norm(J[0]), rel=1e-9)


def test_permuting_tasks_permutes_weights_and_scaling_one_loss_changes_no_step():
    J, powers = jacobian(1, tasks=3), np.array([1.0, 0.352, 0.179])
    a = arbitrate(J @ J.T, powers).weights
    order = [2, 0, 1]
    permuted = arbitrate(J[order] @ J[order].T, powers[order], reference=1).weights
    np.testing.assert_allclose(permuted, a[order], rtol=1e-8)
    scaled = J * np.array([1.0, 1e6, 1e-6])[:, None]
    np.testing.assert_allclose(scaled.T @ arbitrate(scaled @ scaled.T, powers).weights, J.T @ a, rtol=1e-7)


def test_more_power_turns_the_step_towards_that_task():
    J = jacobian(4, tasks=2)
    angles = [J[1] @ J.T @ arbitrate(J @ J.T, [1.0, power]).weights for power in (0.01, 0.1, 1.0)]
    assert angles == sorted(angles) and angles[0] < angles[-1]


def test_a_task_without_power_has_left_the_bargain():
    J = jacobian(2, tasks=3)
    bargain = arbitrate(J @ J.T, [1.0, 0.0, 0.179])
    two = arbitrate(J[[0, 2]] @ J[[0, 2]].T, [1.0, 0.179])
    np.testing.assert_allclose(bargain.weights, [two.weights[0], 0.0, two.weights[1]])
    assert bargain.zero == ()
    assert arbitrate(J @ J.T, [1.0, 0.0, 0.0]).outcome == "alone"


def test_a_zero_gradient_leaves_the_bargain_and_is_counted():
    J = jacobian(2, tasks=3)
    J[1] = 0
    bargain = arbitrate(J @ J.T, [1.0, 0.352, 0.179])
    assert bargain.zero == (1,) and bargain.weights[1] == 0 and bargain.weights[2] > 0
    J[0] = 0
    bargain = arbitrate(J @ J.T, [1.0, 0.352, 0.179])
    assert (bargain.outcome, bargain.zero) == ("alone", (0, 1)) and np.linalg.norm(J.T @ bargain.weights) == 0


@pytest.mark.parametrize("factor", [1.0, 1e6, 1e-6])
def test_identical_gradients_share_the_step_by_their_powers(factor):
    g = jacobian(0)[0]
    J = np.stack([g, factor * g])
    bargain = arbitrate(J @ J.T, [1.0, 0.25])
    assert bargain.outcome == "solved"
    np.testing.assert_allclose(bargain.weights * [1, factor], [0.8, 0.2], rtol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 1e6, 1e-6])
@pytest.mark.parametrize("power", [0.25, 1.0])
def test_opposite_gradients_leave_the_reference_alone(factor, power):
    g = jacobian(0)[0]
    J = np.stack([g, -factor * g])
    bargain = arbitrate(J @ J.T, [1.0, power])
    assert (bargain.outcome, bargain.weights.tolist()) == ("opposed", [1.0, 0.0])
    with pytest.raises(Opposed):
        bargaining_weights(J @ J.T, np.array([1.0, power]))


def test_weights_stay_moderate_however_near_to_opposite():
    rng = np.random.default_rng(0)
    g, other = rng.normal(size=(2, 30))
    for noise in 10.0 ** np.arange(-9, 1):
        J = np.stack([g, -g + noise * other])
        bargain = arbitrate(J @ J.T, [1.0, 0.352])
        assert np.isfinite(bargain.weights).all() and (bargain.weights >= 0).all() and bargain.weights.max() < 30


def test_gradients_that_are_not_finite_are_refused():
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            arbitrate(np.array([[1.0, bad], [bad, 1.0]]), [1.0, 1.0])


def test_a_solver_failure_is_an_outcome_of_its_own(monkeypatch):
    def fails(gramian, powers):
        raise NotConverged("on purpose")

    monkeypatch.setattr(nash, "bargaining_weights", fails)
    J = jacobian(3, tasks=2)
    bargain = arbitrate(J @ J.T, [1.0, 0.5])
    assert bargain.outcome == "failed"
    assert np.linalg.norm(J.T @ bargain.weights) == pytest.approx(np.linalg.norm(J[0]))
    assert bargain.weights[1] / bargain.weights[0] == pytest.approx(0.5 * np.linalg.norm(J[0]) / np.linalg.norm(J[1]))
