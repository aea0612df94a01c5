"""The lower-bound instance: its constants and minimiser are exact, nothing outruns it, and ACD comes near it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import twofold as tw
from twofold import reference, theory
from twofold.oracle import Oracle, Sample
from twofold.problem import Problem
from twofold.theory import chain_rounds, lower_bounds
from twofold.theory.instances import Chain, LowerBound, _residual, least, lower_bound_instance, minimiser, ratio
from twofold.variables import Variables

EPS = 1e-6


# --- what the instance is ---------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1))
def _hessians(has_shared: bool, has_private: bool, program: tuple, point: tuple) -> tuple[Any, Any, Any]:
    """f_m's Hessians in w, in β_m, and across, for every client, of its mean and of each row; () for no such block."""
    objective, scale, (stack,) = program
    rows = jnp.concatenate([jnp.full((1, objective.n), 1 / objective.n), jnp.eye(objective.n)])
    w, beta = point

    def one(member: Any, beta: Any, weight: jax.Array) -> tuple[Any, Any, Any]:
        sample = Sample(jnp.arange(objective.n), weight)
        function = partial(Oracle(objective, Variables(scale), member).value, sample=sample)
        of_w = jax.hessian(function, 0)(w, beta) if has_shared else ()
        of_beta = jax.hessian(function, 1)(w, beta) if has_private else ()
        across = jax.jacfwd(jax.grad(function, 0), 1)(w, beta) if has_shared and has_private else ()
        return of_w, of_beta, across

    return jax.vmap(lambda member, beta: jax.vmap(lambda weight: one(member, beta, weight))(rows))(stack, beta)


def curvature(problem: Problem) -> dict[str, float]:
    """The five constants from dense Hessians in the scaled space, by their definitions."""
    program = (problem.objective, problem.scale, problem.stacks)
    found = _hessians(problem.has_shared, problem.has_private, program, problem.start)
    of_w, of_beta, across = jax.tree.map(np.asarray, found)
    assert not np.any(across)  # the blocks do not mix, so ∇²F is the mean over clients for w, and 1/M of each β_m
    tops: dict[str, float] = {}
    low = []
    for name, hessians in (("w", of_w), ("beta", of_beta)):
        if isinstance(hessians, tuple):
            tops |= {f"L_{name}": 0.0, f"calL_{name}": 0.0}
            continue
        size = hessians.shape[-1] * hessians.shape[-2]
        square = hessians.reshape(problem.M, -1, size, size) / (problem.M if name == "beta" else 1)
        eigenvalues = np.linalg.eigvalsh(square)[..., -1]
        tops |= {f"L_{name}": eigenvalues[:, 0].max(), f"calL_{name}": eigenvalues[:, 1:].max()}
        parts = square[:, 0] if name == "beta" else square[:, 0].mean(axis=0)
        low.append(np.linalg.eigvalsh(parts).min())
    return {"mu": min(low), **tops}


@pytest.mark.parametrize(
    "kappa_w, kappa_beta, M, n",
    [(50.0, 7.0, 2, 1), (50.0, 7.0, 5, 3), (3.0, 90.0, 4, 2), (20.0, None, 3, 2), (None, 30.0, 2, 3), (1.0, 1.0, 2, 2)],
)
def test_constants_are_exact(kappa_w: float | None, kappa_beta: float | None, M: int, n: int) -> None:
    problem = lower_bound_instance(kappa_w, kappa_beta, M, n, dimension=7, mu=0.3, dimension_beta=6)
    c, found = problem.constants(), curvature(problem)
    assert {name: getattr(c, name) for name in found} == pytest.approx(found, rel=1e-11)
    assert (c.mu, c.L_w, c.L_beta) == pytest.approx((0.3, 0.3 * (kappa_w or 0), 0.3 * (kappa_beta or 0)))
    assert (c.calL_w, c.calL_beta) == pytest.approx((n * c.L_w, n * c.L_beta))
    assert set(c.how.values()) == {"certified"}


def test_constants_without_rescaling() -> None:
    scaled = lower_bound_instance(50.0, 7.0, M=4, dimension=7, dimension_beta=6)
    problem = Problem(scaled.objective, scaled.clients, rescale=False)
    c, found = problem.constants(), curvature(problem)
    assert {name: getattr(c, name) for name in found} == pytest.approx(found, rel=1e-11)
    assert c.L_w / scaled.constants().L_w == pytest.approx(4)


@pytest.mark.parametrize("M", [2, 3])
def test_the_minimiser_is_exact(M: int) -> None:
    """Against the banded system, and against the reference optimum, which knows nothing of chains."""
    problem = lower_bound_instance(40.0, 9.0, M=M, n=2, dimension=15, mu=0.5)
    known, found = problem.optimum(), reference.minimise(problem)
    np.testing.assert_allclose(known.w, found.w, atol=1e-13)
    np.testing.assert_allclose(known.beta, found.beta, atol=1e-13)
    assert known.value == pytest.approx(found.value, rel=1e-14)
    assert known.value == pytest.approx(float(problem.value(known.w, known.beta)), rel=1e-14)
    assert known.gradient_norm < 1e-13
    assert float(problem.gradient_norm_squared(known.w, known.beta)) ** 0.5 < 1e-13
    for chain, d in ((problem.objective.shared, 15), (problem.objective.private, known.beta.shape[-1])):
        bands = np.zeros((2, d))
        bands[0, 1:] = -chain.stiffness
        bands[1] = chain.ridge + chain.stiffness * np.where((np.arange(d) == 0) | (np.arange(d) == d - 1), 1, 2)
        solved = scipy.linalg.solveh_banded(bands, chain.pull * np.eye(d)[0])
        np.testing.assert_allclose(minimiser(chain, d), solved, rtol=1e-12)
        # shifted by 1, only the ridge pulls back
        assert _residual(chain, solved + 1.0) == pytest.approx(d * chain.ridge**2, rel=1e-10)


@pytest.mark.parametrize("kappa", [1e2, 1e4, 1e5])
def test_a_long_chain_has_a_geometric_minimiser(kappa: float) -> None:
    problem = lower_bound_instance(kappa, None)
    w = problem.optimum().w[0]
    q = (np.sqrt(kappa) - 1) / (np.sqrt(kappa) + 1)
    half = len(w) // 2
    np.testing.assert_allclose(w[:half], q ** np.arange(half), rtol=1e-10)
    assert w[-1] ** 2 < 1e-34 * np.sum(w**2)
    assert ratio(problem.objective.shared) == pytest.approx(q, rel=1e-14)
    assert least(problem, EPS).rounds == np.ceil(chain_rounds(kappa, EPS))


def test_a_row_touches_its_own_block_only() -> None:
    problem = lower_bound_instance(30.0, 20.0, M=2, n=4, dimension=6, dimension_beta=5)
    rng = np.random.default_rng(0)
    w, beta = rng.normal(size=(4, 6)), rng.normal(size=(4, 5))
    (stack,) = problem.stacks

    @jax.jit
    def gradients(member: Any, weight: jax.Array) -> Any:
        oracle = Oracle(problem.objective, Variables(problem.scale), member)
        return oracle.gradients(w, beta, Sample(jnp.arange(4), weight))

    for m in range(2):
        member = jax.tree.map(lambda leaf, m=m: leaf[m], stack)
        rows = [jax.tree.map(np.asarray, gradients(member, weight)) for weight in jnp.eye(4)]
        for j, row in enumerate(rows):
            for gradient in row:
                assert np.flatnonzero(np.any(gradient != 0, axis=1)).tolist() == [j]
        for block, whole in enumerate(gradients(member, jnp.full(4, 0.25))):  # f_m is the mean of its rows
            np.testing.assert_allclose(np.mean([row[block] for row in rows], axis=0), whole, atol=1e-13)


# --- nothing outruns it -----------------------------------------------------------------------------------------------


def reach(z: Any) -> jax.Array:
    """The number of each chain's last coordinate that is not zero, 0 for none: (…, d) to (…)."""
    return jnp.max(jnp.where(z != 0, 1 + jnp.arange(z.shape[-1]), 0), axis=-1)


REACH: dict[str, Callable[[Any, Any], jax.Array]] = {
    "farthest": lambda w, beta: jnp.max(reach(w)),
    "all": lambda w, beta: jnp.sum(reach(w)),
    "own": lambda w, beta: jnp.max(jnp.sum(reach(beta), axis=1)),
}


@pytest.mark.parametrize(
    "method, M", [(tw.algorithms.ACD(), 2), (tw.algorithms.LSGD(tau=7, batch=None), 5)], ids=["acd", "lsgd"]
)
def test_a_round_gains_one_coordinate(method: Any, M: int) -> None:
    """And with full gradients exactly one, though seven local steps could go seven links."""
    problem = lower_bound_instance(50.0, 20.0, M=M, dimension=40, dimension_beta=40)
    history = tw.solve(problem, method, rounds=30, record=REACH).history
    np.testing.assert_array_equal(history["farthest"], history["round"])
    assert np.all(history["own"] <= history["gradients_beta"])


@pytest.mark.parametrize(
    "method",
    [tw.algorithms.LSGD(tau=4, batch=1), tw.algorithms.SVRCD(), tw.algorithms.ASVRCD()],
    ids=["lsgd", "svrcd", "asvrcd"],
)
def test_a_sampled_gradient_gains_one_coordinate_of_one_chain(method: Any) -> None:
    problem = lower_bound_instance(50.0, 20.0, M=4, n=3, dimension=40, dimension_beta=40)
    history = tw.solve(problem, method, rounds=60, record=REACH).history
    # (A round may show two at once, where one was already known but held back, as in SVRCD's full gradient.)
    assert np.all(history["farthest"] <= history["round"])
    assert np.all(history["all"] <= 4 * history["gradients_w"])
    assert np.all(history["own"] <= history["gradients_beta"])
    assert history["farthest"][-1] > 3  # it does move


def test_the_least_is_what_the_best_deal_of_coordinates_needs() -> None:
    """k coordinates of each chain leave the tail Σ_{i>k} (w*_i)²; an uneven deal over the chains never does better."""
    problem = lower_bound_instance(30.0, 20.0, M=2, n=3, dimension=25)
    bound, best = least(problem, 0.01), problem.optimum()

    def error(z: np.ndarray, counts: np.ndarray) -> float:
        kept = np.arange(z.shape[-1])[None, :] < counts[:, None]
        return float(np.sum(np.where(kept, 0, z) ** 2) / np.sum(z**2))

    k = int(bound.rounds)
    assert error(best.w, np.full(3, k)) <= 0.01 < error(best.w, np.full(3, k - 1))
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.integers(0, 2 * k, size=3)
        if error(best.w, counts) <= 0.01:
            assert counts.max() >= k and counts.sum() >= 2 * bound.grad_w
        if error(best.beta[0], counts) <= 0.01:
            assert counts.sum() >= bound.grad_beta
    # the even deal of that many calls, rounded up, does it
    calls = int(np.ceil(bound.grad_beta))
    assert error(best.beta[0], np.array([(calls + i) // 3 for i in range(3)])) <= 0.01
    assert error(best.beta[0], np.array([(calls - 1 + i) // 3 for i in range(3)])) > 0.01
    assert least(problem, 1.0) == theory.LowerBounds(0.0, 0.0, 0.0)
    assert least(lower_bound_instance(None, 5.0), 0.1).rounds == 0


def test_truncation_is_of_no_help() -> None:
    """Before a method has come to the end it cannot know where the end is: a chain twice as long gives the same run."""
    short, long = (lower_bound_instance(100.0, 10.0, dimension=d) for d in (60, 120))
    one, two = (tw.solve(problem, "acd", rounds=59, record=()) for problem in (short, long))
    np.testing.assert_allclose(one.w, two.w[:, :60], rtol=0, atol=1e-14)
    assert not np.any(two.w[:, 60:])


# --- and ACD comes near it --------------------------------------------------------------------------------------------


def errors(problem: Problem) -> dict[str, Callable[[Any, Any], jax.Array]]:
    """‖w − w*‖²/‖w*‖² and the same for β."""
    best = problem.optimum()
    return {
        "w": lambda w, beta: jnp.sum(jnp.square(w - best.w)) / np.sum(best.w**2),
        "beta": lambda w, beta: jnp.sum(jnp.square(beta - best.beta)) / np.sum(best.beta**2),
    }


def first_below(history: Any, error: str, cost: str) -> float:
    """The cost at the first record with an error of at most EPS."""
    below = np.flatnonzero(history[error] <= EPS)
    assert below.size, f"{error} stays at {history[error].min()}"
    return float(history[cost][below[0]])


def slope(x: Any, y: Any) -> float:
    """That of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_acd_needs_the_rounds_of_the_lower_bound_and_not_many_more() -> None:
    """Between the bound and 4 times the bound from 10² to 10⁵, and as the square root of L^w/μ.

    The bound is `least`, with its constant. The theorem's order √(L^w/μ) log(1/ε), with the constant 1, is none: ACD
    needs only 0.6 of it.
    """
    kappas, rounds = (1e2, 1e3, 1e4, 1e5), []
    longest = lower_bound_instance(kappas[-1], None).objective.d_w
    for kappa in kappas:
        # one dimension for all, so that the loop is compiled once
        problem = lower_bound_instance(kappa, 10.0, M=4, dimension=longest)
        bound = least(problem, EPS).rounds
        assert bound == np.ceil(chain_rounds(kappa, EPS))
        history = tw.solve(problem, "acd", rounds=int(4 * bound), record=errors(problem)).history
        rounds.append(first_below(history, "w", "round"))
        assert rounds[-1] < longest  # so it never came to the end of the chain
        assert bound <= rounds[-1] <= 4 * bound, (kappa, rounds[-1], bound)
        # not only at the end: no record is below what so many coordinates can do
        tails = 1 - np.cumsum(problem.optimum().w[0] ** 2) / np.sum(problem.optimum().w[0] ** 2)
        k = history["round"].astype(int)
        assert np.all(history["w"][1:] >= tails[k[1:] - 1] - 1e-14)
    assert 0.45 <= slope(kappas, rounds) <= 0.55


def test_acd_needs_the_private_gradients_of_the_lower_bound_and_not_many_more() -> None:
    kappas, calls = (1e2, 1e3, 1e4), []
    longest = lower_bound_instance(None, kappas[-1]).objective.d_beta
    for kappa in kappas:
        problem = lower_bound_instance(100.0, kappa, dimension_beta=longest)
        bound = least(problem, EPS)
        budget = int(4 * (bound.rounds + bound.grad_beta))
        history = tw.solve(problem, "acd", iterations=budget, record=errors(problem)).history
        calls.append(first_below(history, "beta", "gradients_beta"))
        assert bound.grad_beta <= calls[-1] <= 4 * bound.grad_beta, (kappa, calls[-1], bound.grad_beta)
        assert bound.rounds <= first_below(history, "w", "round") <= 4 * bound.rounds
    assert 0.45 <= slope(kappas, calls) <= 0.55


@cache
def sampled_calls(name: str, kappa: float) -> tuple[float, float]:
    """Row gradients in w and in β that a method needs for errors of EPS, once they are seen to be above `least`."""
    n, method = 4, {"svrcd": tw.algorithms.SVRCD(), "asvrcd": tw.algorithms.ASVRCD()}[name]
    problem = lower_bound_instance(kappa, kappa, n=n, dimension=130, dimension_beta=130)
    exact, order = least(problem, EPS), lower_bounds(problem.constants(), n, EPS)
    most = 600 * n * kappa if name == "svrcd" else 400 * n * np.sqrt(kappa)
    history = tw.solve(problem, method, iterations=int(most), record=errors(problem), every=20).history
    found = first_below(history, "w", "gradients_w"), first_below(history, "beta", "gradients_beta")
    assert exact.grad_w <= found[0] and exact.grad_beta <= found[1]
    assert exact.rounds <= first_below(history, "w", "round")
    # An order has no constant to be held against, so this is an observation: the order with the constant 1.
    assert order.grad_w <= found[0] and order.grad_beta <= found[1]
    return found


@pytest.mark.parametrize("name, exponent", [("svrcd", 1.0), ("asvrcd", 0.5)])
def test_finite_sum_methods_stay_above_the_lower_bound(name: str, exponent: float) -> None:
    """Without acceleration the calls grow as 𝓛/μ, with it as √(𝓛/μ), the power of the bound (Table 1)."""
    kappas = (10.0, 40.0)
    for calls in zip(*(sampled_calls(name, kappa) for kappa in kappas), strict=True):
        assert slope(kappas, calls) == pytest.approx(exponent, abs=0.1)


# --- the construction as printed --------------------------------------------------------------------------------------


def printed(d: int) -> tuple[np.ndarray, np.ndarray]:
    """The paper's M_1 and M_2, cut to d coordinates."""
    block = np.array([[1, 1, 0, 0], [1, 2, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    first = np.kron(np.eye(d), block)[:d, :d]
    return first, scipy.linalg.block_diag(np.diag([1, 0]), first)[:d, :d]


def links(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The Hessians of the two groups' g_m without the ridge, for n = 1 and no β."""
    program = (problem.objective, problem.scale, problem.stacks)
    hessians = np.asarray(_hessians(True, False, program, problem.start)[0])[:2, 0, 0, :, 0, :]
    first, second = hessians - problem.objective.shared.ridge * np.eye(hessians.shape[-1])
    return first, second


def rounds_to(goal: int, pair: tuple[np.ndarray, np.ndarray]) -> int:
    """How many rounds it takes to have `goal` coordinates, with as many local steps in between as anyone likes."""
    known, rounds = np.eye(len(pair[0]))[0] > 0, 1  # the first round shares the pulled coordinate
    while known.sum() < goal:
        found = known.copy()
        for hessian in pair:
            local = known
            for _ in range(goal):
                local = local | (np.abs(hessian) > 1e-12) @ local
            found |= local
        known, rounds = found, rounds + 1
    return rounds


def test_printed_blocks_let_two_coordinates_through_per_round() -> None:
    ours = links(lower_bound_instance(9.0, None, dimension=41))
    assert rounds_to(40, ours) == 40
    assert rounds_to(40, printed(41)) == 21
    # and are stiffer, against the same whole chain: 3 where single links have 2
    whole = ours[0] + ours[1]
    assert np.linalg.eigvalsh(ours[0])[-1] / whole[1, 1] == pytest.approx(2 / 2)
    first, second = printed(41)
    assert np.linalg.eigvalsh(first)[-1] / (first + second)[1, 1] == pytest.approx(3 / 2)
    # the whole is the path's Laplacian, and the printed one with off-diagonals of +1 is it up to signs
    flip = np.diag((-1.0) ** np.arange(41))
    inner = slice(1, 40)
    np.testing.assert_allclose((flip @ (first + second) @ flip)[inner], (2 * whole / whole[1, 1])[inner], atol=1e-12)


def test_printed_shares_weaken_the_bound_with_many_clients() -> None:
    """One client against M − 1 makes L^w/μ M/2 times what two clients have; equal groups keep the chain's own."""
    d, c1, c2 = 200, 1e-2, 1.0
    first, second = printed(d)
    for M in (2, 10, 50):
        top = c1 + c2 * np.linalg.eigvalsh(first)[-1]  # of g'_1
        mean = (2 * c1 * np.eye(d) + c2 * (first + second)) / M
        own = np.linalg.eigvalsh(mean)
        assert top / own[0] / (own[-1] / own[0]) == pytest.approx(M * 3 / 4, rel=0.02)
        chain = lower_bound_instance(400.0, None, M=M, dimension=d).objective.shared
        assert 1 + 4 * chain.stiffness / chain.ridge == pytest.approx(400.0)
    chain = lower_bound_instance(400.0, None, M=5, dimension=d).objective.shared  # groups of 3 and 2
    assert 4 * chain.stiffness / chain.ridge == pytest.approx(399 * 4 / 5)


def test_with_the_whole_chain_for_everyone_nothing_need_be_said() -> None:
    """The printed f_m = g + h: local steps go as far as they like in one round, and end below the bound of a round."""
    problem = lower_bound_instance(20.0, None, dimension=30)
    chain = problem.objective.shared

    def whole(w: Any, beta: Any, batch: Any) -> jax.Array:
        bent = chain.stiffness * jnp.sum(jnp.square(jnp.diff(w))) + chain.ridge * jnp.sum(jnp.square(w))
        return bent / 2 - chain.pull * w[0]

    everyone = Problem(tw.objectives.custom(whole, np.zeros(30), ()), problem.clients)
    best = problem.optimum().w[0]
    np.testing.assert_allclose(everyone.optimum().w, best, atol=1e-12)  # the mean is the same
    steps = tw.algorithms.LSGD(tau=100, batch=None, eta=1 / (20 * chain.ridge))
    alone, together = (tw.solve(p, steps, rounds=1, record=()).w.ravel() for p in (everyone, problem))
    error = [float(np.sum((w - best) ** 2) / np.sum(best**2)) for w in (alone, together)]
    assert error[0] < 1e-3 < np.sum(best[1:] ** 2) / np.sum(best**2) <= error[1]


# --- the rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"kappa_w": 10.0, "M": 1}, "M=1: one client alone"),
        ({"kappa_w": 0.5}, "kappa_w is a condition number ≥ 1"),
        ({"kappa_w": 10.0, "kappa_beta": np.inf}, "kappa_beta is a condition number ≥ 1"),
        ({"kappa_w": 10.0, "n": 0}, "n must be a whole number ≥ 1"),
        ({"kappa_w": 10.0, "dimension": 1}, "dimension must be a whole number ≥ 2"),
        ({"kappa_w": 10.0, "mu": 0.0}, "mu must be a finite number > 0"),
        ({"kappa_w": None, "kappa_beta": None}, "at least one block"),
    ],
)
def test_wrong_arguments_get_a_sentence(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lower_bound_instance(**arguments)


def test_it_is_for_its_own_clients_and_for_its_own_bounds() -> None:
    problem = lower_bound_instance(10.0, 5.0, M=4)
    with pytest.raises(ValueError, match="4 clients of 1 rows of its own"):
        Problem(problem.objective, problem.clients.subset([0, 2]))
    other = Problem(tw.objectives.custom(lambda w, b, _: jnp.sum(w**2), np.zeros(2), ()), problem.clients)
    with pytest.raises(TypeError, match="custom"):
        least(other, 0.1)
    with pytest.raises(ValueError, match="eps=0"):
        least(problem, 0)
    assert isinstance(problem.objective, LowerBound) and isinstance(problem.objective.shared, Chain)
    assert problem.objective.personal(1, 2, None, None) == (1, 2)
    for refuse in (problem.objective.grade, problem.objective.predict):
        with pytest.raises(ValueError, match="lower-bound instance"):
            refuse(*[None] * (6 if refuse.__name__ == "grade" else 5))


def test_theory_offers_it_without_importing_problems(fresh_python: Callable[..., str]) -> None:
    first = "import sys, twofold.theory as theory; assert 'twofold.problem' not in sys.modules"
    assert "lower_bound" in fresh_python(f"{first}; print(theory.lower_bound_instance(9.0), theory.instances.least)")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        theory.nothing  # noqa: B018
