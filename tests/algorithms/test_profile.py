"""Profile: what it sends is φ_m(w) = min_β f_m(w, β) and its derivatives, it only ever descends, and it needs few rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose

import plain
import twofold as tw
from problems import LOSSES, clients, maml, problem
from twofold import randomness, tree
from twofold.algorithms import Profile, newton, search
from twofold.oracle import Oracle
from twofold.solver import complete
from twofold.variables import Variables

WEIGHTS = (0.5, 0.2, 0.3)


def weighted(name: str = "mixture", kind: str = "softmax") -> tw.Problem:
    """Three clients who do not count equally, so that a lost p_m is seen."""
    make = {"mixture": lambda loss: tw.objectives.mixture(loss, 0.5), "residual": tw.objectives.residual}[name]
    return tw.Problem(make(plain.loss(kind, 0.1)), plain.clients(kind, weights=WEIGHTS))


def oracle(whole: tw.Problem, m: int) -> Oracle:
    return Oracle(whole.objective, Variables(whole.scale), whole.member(m))


def badly_scaled() -> tw.Problem:
    """Heavy-tailed, correlated features whose columns differ by a factor of 10⁴."""
    rng = np.random.default_rng(1)
    mixed, common = np.eye(20) + 0.3 * rng.normal(size=(20, 20)), rng.normal(size=20)
    pairs = []
    for _ in range(10):
        x = rng.standard_t(3, size=(60, 20)) @ mixed
        y = x @ (common + 0.3 * rng.normal(size=20)) + rng.normal(size=60) > 0
        pairs.append((x * 10.0 ** np.linspace(-2, 2, 20), y.astype(int)))
    objective = tw.objectives.multitask(tw.losses.logistic(l2=0.01), lam=0.1, Lambda=1.0)
    return tw.Problem(objective, tw.Clients.from_list(pairs))


def gaps(whole: tw.Problem, method: Profile, rounds: int, **options: Any) -> np.ndarray:
    """F − F* after each round, relative to the start."""
    found = np.asarray(tw.solve(whole, method, rounds=rounds, **options).history["loss"]) - whole.optimum().value
    return found / found[0]


# --- what a client computes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixture", "residual"])
def test_the_oracles_hessians_are_blocks_of_the_hessian_of_F(name: str):
    """Scaled as its gradients are: with p_m in β, with the scale of w in w."""
    whole = weighted(name)
    w, beta = plain.point(whole)
    scaled = tree.scale(1 / whole.scale, w)
    d, b, p = w.size, beta[0].size, np.asarray(whole.clients.weights)

    def F(v: jax.Array) -> jax.Array:
        return whole.value(whole.scale * v[:d].reshape(w.shape), v[d:].reshape(beta.shape))

    v = np.arange(b, dtype=float)

    def asked(member: Any, mine: jax.Array) -> Any:
        one = Oracle(whole.objective, Variables(whole.scale), member)
        at = scaled, mine
        hessians = one.hessian_w(*at), one.hessian_beta(*at), one.hessian_beta_times(*at, v.reshape(mine.shape))
        of_beta = one.value_and_gradient_beta(*at), one.gradient_beta(*at)
        return hessians, of_beta, one.value_and_gradient_w(*at)[0]

    (stack,) = whole.stacks
    H = np.asarray(jax.jit(jax.hessian(F))(ravel_pytree((scaled, beta))[0]))
    ((ww, cross), bb, products), ((values, gradients), others), again = jax.jit(jax.vmap(asked))(stack, beta)
    for m in range(3):
        mine = slice(d + m * b, d + (m + 1) * b)
        assert_allclose(cross[m], H[mine, :d], atol=1e-12)
        assert_allclose(bb[m], H[mine, mine], atol=1e-12)
        assert_allclose(np.ravel(products[m]), H[mine, mine] @ v, atol=1e-12)
    assert_allclose(gradients, others, rtol=1e-13)
    assert_allclose(values, again, rtol=1e-14)
    assert_allclose(np.einsum("m,mij->ij", p, ww), H[:d, :d], atol=1e-12)


@pytest.mark.parametrize("products", [None, 12], ids=["matrix", "products"])
def test_beta_is_the_minimiser(products: int | None):
    whole = weighted()
    (w, beta), one = plain.point(whole), oracle(whole, 1)
    found, damping = newton.minimise_beta(one, w, beta[1], jnp.zeros(()), steps=6, products=products)
    assert np.max(np.abs(one.gradient_beta(w, found))) < 1e-12
    assert damping == 0


def test_a_client_sends_the_derivatives_of_the_profile():
    """∇φ_m and ∇²φ_m by differences of min_β f_m, which a long search finds."""
    whole = weighted()
    one, (w, beta) = oracle(whole, 1), plain.point(whole)
    method, _ = complete(whole, Profile(steps=8))
    flat, unravel = ravel_pytree(w)

    @jax.jit
    def message(at: Any) -> Any:
        shared = method.init(unravel(at))
        private = method.init_private(w, beta[1], one)
        plan = method.plan(randomness.root(0), 0)
        return method.client(plan, shared, private, one, randomness.of(randomness.root(0), 0))[1]

    here, eps = message(flat), 1e-5
    upper = np.zeros((flat.size, flat.size))
    upper[np.triu_indices(flat.size)] = here.hessian
    for i in (0, 4, 8):
        step = eps * np.eye(flat.size)[i]
        ahead, back = message(flat + step), message(flat - step)
        assert_allclose(np.ravel(here.gradient)[i], (ahead.value - back.value) / (2 * eps), atol=1e-8)
        column = (np.ravel(ahead.gradient) - np.ravel(back.gradient)) / (2 * eps)
        assert_allclose(upper[: i + 1, i], column[: i + 1], atol=1e-8)


def test_a_step_in_beta_that_does_not_descend_is_not_taken():
    """From far out on √(1 + β²) Newton's step overshoots; damped, it comes home."""
    objective = tw.objectives.local(
        tw.losses.custom(lambda p, x, y: jnp.mean(jnp.sqrt(1 + (x @ p) ** 2)), np.full(1, 9.0))
    )
    whole = tw.Problem(objective, tw.Clients.from_list([(np.ones((2, 1)), np.zeros(2))]))
    losses = tw.solve(whole, Profile(steps=1), iterations=25).history["loss"]
    assert np.all(np.diff(losses) <= 1e-15) and losses[1] == losses[0]
    assert_allclose(losses[-1], 1, atol=1e-14)


# --- what the server does ---------------------------------------------------------------------------------------------


def test_lbfgs_is_bfgs_of_the_last_pairs():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(5, 5))
    moves = rng.normal(size=(3, 5))
    changes = moves @ (half @ half.T + np.eye(5))
    gradient, inverse = rng.normal(size=5), np.eye(5) * (moves[0] @ changes[0]) / (changes[0] @ changes[0])
    for s, y in zip(moves[::-1], changes[::-1], strict=True):  # the oldest first
        V = np.eye(5) - np.outer(y, s) / (s @ y)
        inverse = V.T @ inverse @ V + np.outer(s, s) / (s @ y)
    padded = [jnp.concatenate([pairs, jnp.zeros((2, 5))]) for pairs in (moves, changes)]
    assert_allclose(search.lbfgs_direction(gradient, *padded, jnp.asarray(1.0)), -inverse @ gradient, atol=1e-13)


def test_a_trial_that_does_not_descend_is_refused():
    """With 1/L far too long the first trials rise; the reported pair does not, and all rounds are counted."""
    whole = weighted(kind="logistic")
    result = tw.solve(whole, Profile(L_w=1e-4, outer="lbfgs"), rounds=20)
    losses = np.asarray(result.history["loss"])
    assert np.all(np.diff(losses) <= 1e-15)
    assert losses[2] == losses[1]
    assert result.ledger.rounds == 20
    assert_allclose(losses[-1], whole.optimum().value, rtol=1e-14)


def test_what_is_reported_belongs_together():
    """β is the minimiser at the reported w also where the last trial was refused."""
    whole = weighted(kind="logistic")
    result = tw.solve(whole, Profile(L_w=1e-4, outer="lbfgs", steps=8), rounds=2)
    assert result.status == "budget" and np.all(result.w == 0)
    assert np.max(np.abs(whole.gradient_beta(result.w, result.beta))) < 1e-12
    assert np.max(np.abs(whole.gradient_w(result.w, result.beta))) > 1e-3


def test_bad_scaling_does_not_matter_to_newton():
    with pytest.warns(tw.TheoryWarning, match="differ in size"):
        found = gaps(badly_scaled(), Profile(), 12)
    assert np.all(np.diff(found) <= 1e-15)
    assert found[7] < 1e-8 and abs(found[9]) < 1e-12


def test_flat_directions_do_no_harm():
    """A column twice, no ridge: every Hessian is singular."""
    rng = np.random.default_rng(0)
    pairs = [plain.rows("logistic", n, rng) for n in (40, 25)]
    twice = tw.Clients.from_list([(np.column_stack([x, x[:, 0]]), y) for x, y in pairs])
    whole = tw.Problem(tw.objectives.weight_sharing(tw.losses.logistic(), 2), twice)
    for method in (Profile(), Profile(outer="lbfgs", inner="products", products=3)):
        assert gaps(whole, method, 25)[-1] < 1e-10


def test_what_is_not_convex_still_descends_to_a_stationary_point():
    whole = maml("logistic")
    result = tw.solve(whole, "profile", rounds=40, record=("loss", "gradient_norm"))
    assert result.algorithm.outer == "lbfgs"
    assert np.all(np.diff(result.history["loss"]) <= 1e-15)
    assert result.history["gradient_norm"][-1] < 1e-8 * result.history["gradient_norm"][0]


def test_single_precision():
    with jax.enable_x64(False):
        whole = tw.Problem(tw.objectives.mixture(LOSSES["logistic"], lam=0.5), clients("logistic"))
        result = tw.solve(whole, "profile", rounds=8)
    assert result.w.dtype == np.float32
    assert_allclose(result.history["loss"][-1], problem("mixture", "logistic").optimum().value, rtol=1e-6)


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_the_ledger():
    """d = 3, b = 3, rows n: φ, ∇φ and half of ∇²φ leave; ∇_w once and in each column of ∇²φ, ∇_β many times."""
    whole = problem("mixture", "logistic")
    newton, lbfgs = (tw.solve(whole, Profile(outer=outer, steps=2), rounds=4).ledger for outer in ("newton", "lbfgs"))
    n = np.asarray(whole.clients.counts)
    assert (newton.rounds, newton.floats_up) == (4, 4 * (1 + 3 + 6))
    assert (lbfgs.rounds, lbfgs.floats_up) == (4, 4 * (1 + 3))
    np.testing.assert_array_equal(newton.gradients_w, 4 * n * (1 + 3))
    np.testing.assert_array_equal(newton.gradients_beta, 4 * n * (1 + 2 * (1 + 3) + 3 + 3))
    np.testing.assert_array_equal(lbfgs.gradients_w, 4 * n)
    np.testing.assert_array_equal(lbfgs.gradients_beta, 4 * n * (1 + 2 * (1 + 3)))


def test_who_shares_nothing_says_nothing():
    result = tw.solve(problem("local", "logistic"), "profile", iterations=3)
    assert (result.ledger.rounds, result.ledger.floats_up) == (0, 0)
    assert_allclose(result.history["loss"][-1], problem("local", "logistic").optimum().value, rtol=1e-14)


def test_the_ways_to_solve_are_chosen_by_size():
    def chosen(width: int, **fields: Any) -> tuple[str, str]:
        pairs = [(np.eye(2, width), np.array([0, 1]))]
        whole = tw.Problem(tw.objectives.mixture(tw.losses.logistic(0.1), 0.5), tw.Clients.from_list(pairs))
        found = complete(whole, Profile(**fields))[0]
        return found.outer, found.inner  # type: ignore[attr-defined]

    assert chosen(3) == ("newton", "matrix")
    assert chosen(3, outer="lbfgs") == ("lbfgs", "matrix")
    assert chosen(200) == ("newton", "matrix")
    assert chosen(201) == ("lbfgs", "products")
    assert chosen(150, outer="lbfgs") == ("lbfgs", "products")


def test_what_is_refused():
    with pytest.raises(tw.TwofoldError, match=r"^Profile's outer must be one of auto, lbfgs, newton, got 'bfgs'"):
        Profile(outer="bfgs")  # type: ignore[arg-type]
    with pytest.raises(tw.TwofoldError, match=r"^Profile needs all of these ≥ 1: .*self.steps=0"):
        Profile(steps=0)


# --- real data --------------------------------------------------------------------------------------------------------


def test_rounds_on_the_school_data(data_folder: Path):
    """Quadratic, so Newton is there after two rounds; L-BFGS takes 19 to 1e-8, where acd took hundreds."""
    from twofold.data import school

    pairs = [(x[:, :-1], y) for x, y in school.load(data_folder).clients]
    x, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    standard = [((a - x.mean(0)) / x.std(0), (b - y.mean()) / y.std()) for a, b in pairs]
    loss = tw.losses.squared(l2=0.01)
    whole = tw.Problem(tw.objectives.multitask(loss, 0.1), tw.Clients.from_list(standard))
    assert gaps(whole, Profile(), 3)[2] < 1e-8
    assert gaps(whole, Profile(outer="lbfgs"), 25)[-1] < 1e-8
