"""The head game against numerical optimization, its bounds, its dynamics, and redundancy against plain regressions."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from analysis.game import HeadGame, best_responses, free_riders, redundant
from analysis.game_result import GameResult, play
from analysis.interaction import cosine


def correlation(rng, n_heads, n_features=None):
    """A random correlation matrix: positive definite when there are more features than heads."""
    features = rng.normal(size=(n_heads, n_features or 2 * n_heads))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features @ features.T


def near_identity(rng, n_heads, norm):
    """G with |G - I|_2 = norm, below 1."""
    off = correlation(rng, n_heads) - np.eye(n_heads)
    return np.eye(n_heads) + off * norm / abs(np.linalg.eigvalsh(off)).max()


GAMES = [
    HeadGame(correlation(np.random.default_rng(seed), int(n)), np.random.default_rng(1000 + seed).normal(size=n))
    for seed, n in enumerate(np.random.default_rng(7).integers(2, 17, size=200))
]


# --- closed forms against numerical optimization ------------------------------------------------------------------


def maximum(value, gradient, hessian, start):
    found = minimize(
        lambda x: -value(x),
        start,
        jac=lambda x: -gradient(x),
        hess=lambda x: -hessian,
        method="trust-exact",
        options={"gtol": 1e-12, "maxiter": 1000},
    )
    return found.x, -found.fun


def test_nash_optimum_and_price_equal_numerical_optimization():
    for game in GAMES:
        assert_closed_forms_hold(game)


def assert_closed_forms_hold(game):
    start = np.zeros(game.n_heads)
    optimum, best = maximum(game.welfare, lambda x: game.benefits - game.G @ x, -game.G, start)
    nash, _ = maximum(game.potential, lambda x: game.benefits - x, -np.eye(game.n_heads), start)
    scale = abs(optimum).max()
    np.testing.assert_allclose(game.optimum, optimum, rtol=0, atol=1e-8 * scale)
    np.testing.assert_allclose(game.nash, nash, rtol=0, atol=1e-8)
    if game.price_of_anarchy.bounded:
        assert game.price_of_anarchy.value == pytest.approx(best / game.welfare(nash), rel=1e-8)
    else:
        assert game.welfare(nash) <= 0


def test_the_potential_changes_as_the_utility_of_the_head_that_moves():
    game, rng = GAMES[3], np.random.default_rng(0)
    felt = game.G - np.eye(game.n_heads)

    def implicit(x, i):
        return game.benefits[i] * x[i] - x[i] ** 2 / 2

    def priced(x, i):
        return implicit(x, i) - x[i] * (felt @ x)[i]

    for i in range(game.n_heads):
        x, y = rng.normal(size=(2, game.n_heads))
        y = np.where(np.arange(game.n_heads) == i, y, x)
        assert game.potential(y) - game.potential(x) == pytest.approx(implicit(y, i) - implicit(x, i), abs=1e-12)
        assert game.welfare(y) - game.welfare(x) == pytest.approx(priced(y, i) - priced(x, i), abs=1e-12)


def test_worst_case_is_the_largest_price_over_all_benefits():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        G = near_identity(rng, int(rng.integers(2, 12)), rng.uniform(0.05, 0.95))
        inverse, at_nash = np.linalg.inv(G), 2 * np.eye(len(G)) - G

        def price(b, inverse=inverse, at_nash=at_nash):
            return -(b @ inverse @ b) / (b @ at_nash @ b)

        found = min(minimize(price, rng.normal(size=len(G)), options={"gtol": 1e-9}).fun for _ in range(5))
        game = HeadGame(G, np.ones(len(G)))
        assert game.worst_case.value == pytest.approx(-found, rel=1e-8)
        assert HeadGame(G, game.worst_benefits).price_of_anarchy.value == pytest.approx(game.worst_case.value, rel=1e-10)


def test_no_benefits_exceed_the_worst_case_and_the_bound_holds():
    rng = np.random.default_rng(5)
    for norm in (0.1, 0.5, 0.9):
        G = near_identity(rng, 9, norm)
        draws = rng.normal(size=(10_000, 9))
        price = np.einsum("bi,ij,bj->b", draws, np.linalg.inv(G), draws)
        price /= np.einsum("bi,ij,bj->b", draws, 2 * np.eye(9) - G, draws)
        game = HeadGame(G, draws[0])
        assert game.price_of_anarchy.value == pytest.approx(price[0], rel=1e-12)
        assert price.min() >= 1 - 1e-12
        assert price.max() <= game.worst_case.value <= game.gamma_bound.value
    for game in GAMES:
        assert 1 <= game.price_of_anarchy.value <= game.worst_case.value <= game.gamma_bound.value or not game.worst_case.bounded


def test_bound_falls_with_the_off_diagonal_mass_and_is_one_without_it():
    rng = np.random.default_rng(2)
    G = near_identity(rng, 6, 0.4)
    bounds = [HeadGame(np.eye(6) + scale * (G - np.eye(6)), np.ones(6)).gamma_bound.value for scale in (1, 0.5, 0.1, 0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == 1


def test_permuting_heads_permutes_the_game_and_scaling_benefits_keeps_the_price():
    game, order = GAMES[11], np.random.default_rng(0).permutation(GAMES[11].n_heads)
    other = HeadGame(game.G[np.ix_(order, order)], game.benefits[order])
    np.testing.assert_allclose(other.optimum, game.optimum[order], atol=1e-10)
    np.testing.assert_allclose(other.vif, game.vif[order], rtol=1e-9)
    np.testing.assert_allclose(other.charges, game.charges[order], atol=1e-10)
    assert other.worst_case.value == pytest.approx(game.worst_case.value)
    scaled = HeadGame(game.G, -3 * game.benefits)
    assert scaled.price_of_anarchy.value == pytest.approx(game.price_of_anarchy.value, rel=1e-12)


# --- charges and dynamics -----------------------------------------------------------------------------------------


def test_charges_are_what_each_head_costs_the_others():
    game = GAMES[20]
    others = game.G - np.eye(game.n_heads)
    np.testing.assert_allclose(game.charge_rates, others @ game.optimum, atol=1e-10)
    np.testing.assert_allclose(game.charges, game.optimum * (others @ game.optimum), atol=1e-10)


@pytest.mark.parametrize("step", [1.0, 0.3])
def test_priced_dynamics_reach_the_optimum_and_unpriced_ones_the_nash_point(step):
    for game in GAMES:
        priced, implicit = best_responses(game, priced=True, step=step), best_responses(game, priced=False, step=step)
        assert priced.settled and implicit.settled
        np.testing.assert_allclose(priced.efforts[-1], game.optimum, rtol=0, atol=1e-8 * max(1, abs(game.optimum).max()))
        np.testing.assert_allclose(implicit.efforts[-1], game.benefits, rtol=0, atol=1e-8)
        assert (np.diff(priced.welfare) >= -1e-12 * abs(priced.welfare[-1])).all()  # a potential game: no step loses
        assert implicit.welfare[-1] <= priced.welfare[-1] + 1e-12


def test_priced_dynamics_settle_on_an_almost_singular_game():
    rng = np.random.default_rng(3)
    G = near_identity(rng, 8, 1 - 1e-5)
    game = HeadGame(G, rng.normal(size=8))
    assert 0 < game.eigenvalues[0] < 2e-5 or game.eigenvalues[-1] > 2 - 2e-5
    path = best_responses(game, priced=True)
    assert path.settled
    np.testing.assert_allclose(path.efforts[-1], game.optimum, atol=1e-8 * abs(game.optimum).max())


def test_rounds_that_are_skipped_are_played_all_the_same():
    rng = np.random.default_rng(6)
    G = 0.02 * np.eye(5) + 0.98 * np.ones((5, 5))
    game = HeadGame(G, rng.normal(size=5))
    path = best_responses(game, priced=True, step=0.05)
    x, by_round = np.zeros(5), {0: np.zeros(5)}
    for played in range(1, 1025):
        for i in range(5):
            x[i] += 0.05 * (game.benefits[i] - (G @ x - x)[i] - x[i])
        by_round[played] = x.copy()
    assert path.rounds[-1] >= 1024
    for played, efforts in zip(path.rounds, path.efforts, strict=True):
        if played <= 1024:
            np.testing.assert_allclose(efforts, by_round[int(played)], rtol=1e-9, atol=1e-9)


def test_dynamics_refuse_a_step_of_no_sense():
    with pytest.raises(ValueError, match=r"step of 1.5 is not in \(0, 1\]"):
        best_responses(GAMES[0], priced=True, step=1.5)


# --- redundancy ---------------------------------------------------------------------------------------------------


def test_vif_is_that_of_a_regression_on_the_other_heads():
    rng = np.random.default_rng(8)
    features = rng.normal(size=(40, 7)) + rng.normal(size=(40, 1))
    features /= np.linalg.norm(features, axis=0)
    game = HeadGame(features.T @ features, np.ones(7))
    for i in range(7):
        others = np.delete(features, i, axis=1)
        fit = others @ np.linalg.lstsq(others, features[:, i], rcond=None)[0]
        assert game.vif[i] == pytest.approx(1 / (1 - fit @ fit), rel=1e-9)
        without = np.delete(np.delete(game.G, i, 0), i, 1)
        assert game.marginal_charges[i] == pytest.approx(np.linalg.slogdet(without)[1] - np.linalg.slogdet(game.G)[1], rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_duplicated_head_has_the_largest_vif_and_an_orthogonal_one_has_one(dtype):
    features = np.random.default_rng(1).normal(size=(4, 12)).astype(dtype)
    features[3] = 2 * features[0]
    features[:, 11] = 0
    features = np.vstack([features, np.eye(12, dtype=dtype)[11]])  # head 4 shares nothing
    game = HeadGame(cosine(torch.from_numpy(features @ features.T)).numpy(), np.ones(5))
    assert np.isinf(game.vif[[0, 3]]).all() and np.isinf(game.marginal_charges[[0, 3]]).all()
    assert game.vif[4] == pytest.approx(1, abs=1e-6)
    middle = HeadGame(game.G[:3, :3], np.ones(3))
    np.testing.assert_allclose(game.vif[1:3], middle.vif[1:], rtol=1e-5)  # the copy explains nothing more


def test_free_riders_are_redundant_and_cost_nothing():
    vif, effect = np.array([9, 9, 9, 1.2, np.inf]), np.array([0.0, 0.5, np.nan, 0.0, -0.01])
    assert redundant(vif).tolist() == [True, True, True, False, True]
    assert free_riders(vif, effect).tolist() == [True, False, False, False, True]
    assert free_riders(vif, effect, vif_threshold=1.1, low_effect=1.0).tolist() == [True, True, False, True, True]


# --- borders and bad input ----------------------------------------------------------------------------------------


def test_one_head_alone_has_no_anarchy():
    game = HeadGame([[1.0]], [0.3])
    assert game.price_of_anarchy.value == game.worst_case.value == game.gamma_bound.value == 1
    assert game.vif == [1] and game.charges == [0] and game.optimum == pytest.approx([0.3])


def test_two_equal_heads_destroy_all_welfare():
    game = HeadGame(np.ones((2, 2)), [1, 1])
    np.testing.assert_allclose(game.optimum, [0.5, 0.5])
    assert not game.price_of_anarchy.bounded and "leave no welfare" in game.price_of_anarchy.reason
    assert not game.worst_case.bounded and "eigenvalue 2" in game.worst_case.reason
    assert not game.gamma_bound.bounded and "Gamma(G) is 1.41" in game.gamma_bound.reason
    path = best_responses(game, priced=True)
    assert path.settled and path.welfare[-1] == pytest.approx(0.5)


def test_an_eigenvalue_above_two_leaves_the_price_of_benign_benefits_bounded():
    G = np.full((4, 4), 0.5) + 0.5 * np.eye(4)  # eigenvalues 2.5 and 0.5
    benign = HeadGame(G, [1, -1, 0, 0])
    assert benign.price_of_anarchy.value == pytest.approx(1 / (0.5 * 1.5))
    assert not benign.worst_case.bounded
    assert not HeadGame(G, np.ones(4)).price_of_anarchy.bounded


def test_singular_and_indefinite_games_have_no_maximum_and_say_so():
    twins = HeadGame(np.ones((2, 2)), [1.0, 0.0])
    assert twins.optimum is None and twins.charges is None and "repeat each other" in twins.price_of_anarchy.reason
    assert not best_responses(twins, priced=True).settled
    indefinite = HeadGame([[1, -1.5], [-1.5, 1]], [1.0, 1.0])
    assert "eigenvalue -0.5, below 0" in indefinite.price_of_anarchy.reason
    path = best_responses(indefinite, priced=True)
    assert not path.settled and np.isfinite(path.efforts).all()


def test_no_benefits_no_loss():
    assert HeadGame(GAMES[0].G, np.zeros(GAMES[0].n_heads)).price_of_anarchy.value == 1


@pytest.mark.parametrize(
    ("G", "benefits", "message"),
    [
        (np.ones((2, 3)), [1, 1], r"not of shape \(2, 3\)"),
        (np.eye(3), [1, 1], "3 heads but the benefits have shape"),
        ([[1, np.nan, 0], [np.nan, 1, 0], [0, 0, 1]], [1, 1, 1], "not finite at heads 0, 1"),
        ([[1, 0.2], [0.4, 1]], [1, 1], "symmetric with a unit diagonal"),
        (2 * np.eye(2), [1, 1], "symmetric with a unit diagonal"),
    ],
)
def test_a_matrix_that_is_no_game_is_refused(G, benefits, message):
    with pytest.raises(ValueError, match=message):
        HeadGame(G, benefits)


# --- the games of a measurement -----------------------------------------------------------------------------------


class Measurement:
    """What `play` reads of an InteractionResult."""

    def __init__(self, G):
        self.G, self.layers = G, np.array([2, 5])
        self.n_layers, self.n_heads = G.shape[:2]


def test_play_names_the_layer_and_the_file_says_unbounded(tmp_path):
    rng = np.random.default_rng(4)
    good = np.stack([correlation(rng, 3), np.ones((3, 3))])
    games = play(Measurement(good))
    assert all((game.benefits == 1).all() for game in games)
    effect = np.array([[np.nan, np.nan, np.nan], [0.0, 0.2, np.nan]])
    result = GameResult([2, 5], games, "equal", effect, {"model": {"source": "tiny"}})
    assert result.names(result.free_riders) == ["L5H0"]
    result.save(tmp_path / "a.json")
    result.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["redundant"] == ["L5H0", "L5H1", "L5H2"] and record["free_riders"] == ["L5H0"]
    first, second = record["layers"]
    assert first["price_of_anarchy"] == {"value": games[0].price_of_anarchy.value, "reason": ""}
    assert second["worst_case"]["value"] == "unbounded" and second["worst_case"]["reason"]
    assert second["vif"] == ["unbounded"] * 3 and second["effect"] == [0.0, 0.2, None]

    good[1, 0, 1] = math.nan
    with pytest.raises(ValueError, match=r"layer 5: .*heads 0"):
        play(Measurement(good))
    with pytest.raises(ValueError, match=r"benefits are \(3, 3\)"):
        play(Measurement(good), np.ones((3, 3)))


def test_the_default_model_has_games(shared):
    layers = json.loads((shared / "golden" / "smollm2_135m_interaction.json").read_text())["layers"]
    games = [HeadGame(layer["G"], np.ones(9)) for layer in layers]
    prices = np.array([game.price_of_anarchy.value for game in games])
    assert ((prices >= 1) & np.isfinite(prices)).all()
    assert [layer["gamma"] for layer in layers] == pytest.approx([game.gamma for game in games], rel=1e-3)
    unbounded = [layer["layer"] for layer, game in zip(layers, games, strict=True) if not game.worst_case.bounded]
    assert unbounded == [18]  # the one layer with an eigenvalue above 2
