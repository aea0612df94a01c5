"""The problem: values, gradients full and sampled, padding, scaling, constants, and the reference optimum."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize

import plain
import twofold as tw
from twofold import kernels, randomness, reference
from twofold.data import synthetic
from twofold.oracle import Member, Oracle, Program, Sample
from twofold.problem import gradients
from twofold.reference import NotConvexError, minimise
from twofold.variables import Variables

WEIGHTS = np.array([0.5, 0.2, 0.3])
L2 = 0.1


def custom():
    return tw.objectives.custom(
        lambda w, beta, batch: jnp.mean((batch.x @ (w + beta) - batch.y) ** 2) + 0.1 * jnp.sum(w**2 + beta**2),
        np.zeros(3),
        np.zeros(3),
    )


MAKE = {
    "traditional": tw.objectives.traditional,
    "local": tw.objectives.local,
    "multitask": lambda loss: tw.objectives.multitask(loss, 0.3, 0.7),
    "mixture": lambda loss: tw.objectives.mixture(loss, 0.3),
    "adaptive": lambda loss: tw.objectives.adaptive(loss, [0.2, 0.5, 0.9], 0.7),
    "weight_sharing": lambda loss: tw.objectives.weight_sharing(loss, 2),
    "residual": lambda loss: tw.objectives.residual(loss, [0, 1], [1, 2]),
    "custom": lambda loss: custom(),
}
every = pytest.mark.parametrize("name", MAKE)


def make(name="mixture", kind="logistic", weights=None, l2=L2, **options):
    return tw.Problem(MAKE[name](plain.loss(kind, l2)), plain.clients(kind, weights=weights), **options)


@cache
def weighted(name, kind="logistic"):
    """One of them with unequal weights; made once, so that its optimum is found once."""
    return make(name, kind, weights=WEIGHTS)


@jax.jit
def asked(objective, scale, member, w, beta):
    """A client's value, both gradients as its oracle gives them, and that in β without its weight."""
    oracle = Oracle(objective, Variables(scale), member)
    return oracle.value(w, beta), oracle.gradients(w, beta), jax.grad(oracle.value, argnums=1)(w, beta)


def flat(x):
    return np.asarray(ravel_pytree(x)[0])


def member(problem, m):
    """A client as the engines have it, padded: all of them go through one program."""
    (stack,) = problem.stacks
    return jax.tree.map(lambda leaf: leaf[m], stack)


# ---- values and gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_value_is_the_weighted_mean(weights):
    problem = make(weights=weights)
    at = plain.point(problem)
    p = np.full(3, 1 / 3) if weights is None else weights
    assert_allclose(problem.value(*at), p @ problem.values(*at), rtol=1e-15)
    assert not np.allclose(problem.value(*at), np.mean(problem.values(*at)), rtol=1e-6) or weights is None


@every
def test_gradients_come_separately_or_together(name):
    problem = weighted(name)
    w, beta = plain.point(problem)
    both = problem.gradient(w, beta)
    assert_array_equal(flat(both[0]), flat(problem.gradient_w(w, beta)))
    assert_array_equal(flat(both[1]), flat(problem.gradient_beta(w, beta)))
    of_w = 0.0
    for m in range(3):
        _, mine, unweighted = asked(problem.objective, 1.0, member(problem, m), w, plain.client(beta, m))
        of_w = of_w + WEIGHTS[m] * flat(mine[0])
        # The β_m-block of ∇F carries p_m: the 1/M that is so easily lost.
        assert_allclose(flat(mine[1]), flat(plain.client(both[1], m)), atol=1e-16)
        assert_allclose(flat(mine[1]), WEIGHTS[m] * flat(unweighted), rtol=1e-14)
    assert_allclose(flat(both[0]), of_w, atol=1e-15)


def test_norm_of_the_gradient_in_the_scaled_space():
    problem = make(weights=WEIGHTS)
    at = plain.point(problem)
    of_w, of_beta = problem.gradient(*at)
    expected = np.sum(of_w**2) / 3 + np.sum(of_beta**2)
    assert_allclose(problem.gradient_norm_squared(*at), expected, rtol=1e-14)


def test_a_gradient_can_be_taken_through_the_value():
    problem = make()
    w, beta = plain.point(problem)
    assert_allclose(jax.grad(problem.value, argnums=1)(w, beta), problem.gradient_beta(w, beta), atol=1e-15)


# ---- sampling -------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("batch", [2])
def test_sampled_gradients_are_unbiased(name, batch):
    """The mean over all samples of rows (all of them equally likely) is the full gradient, in either block."""
    problem = make(name, "squared", weights=WEIGHTS)
    w, beta = plain.point(problem)
    m, n = 0, 6
    oracle, b = Oracle(problem.objective, Variables(problem.scale), problem.member(m)), plain.client(beta, m)
    index = np.stack([axis.ravel() for axis in np.meshgrid(*[np.arange(n)] * batch)], axis=1).astype(np.int32)
    weight = jnp.full(batch, 1 / batch)
    sampled = jax.jit(jax.vmap(lambda i: oracle.gradients(w, b, Sample(i, weight))))(index)
    mean = jax.tree.map(lambda leaf: np.mean(leaf, axis=0), sampled)
    assert_allclose(flat(mean), flat(jax.jit(oracle.gradients)(w, b)), atol=1e-13)
    assert np.std(flat(jax.tree.map(lambda leaf: leaf[:, 0] if leaf.ndim > 1 else leaf, sampled))) > 0


def test_a_sample_of_maml_is_biased_as_its_docstring_says():
    problem = tw.Problem(tw.objectives.maml(tw.losses.logistic(L2), 0.5), plain.clients())
    w, _ = plain.point(problem)
    oracle, one = Oracle(problem.objective, Variables(1.0), problem.member(0)), jnp.ones(1)
    sampled = jax.jit(jax.vmap(lambda i: oracle.gradient_w(w, (), Sample(i[None], one))))(jnp.arange(6))
    assert np.max(np.abs(np.mean(sampled, axis=0) - jax.jit(oracle.gradient_w)(w, ()))) > 1e-3


def test_a_sample_draws_every_row_and_no_padding():
    problem = make()
    stack = problem.stacks[0]
    draw = jax.jit(
        jax.vmap(
            lambda k: jax.vmap(
                lambda member: Oracle(problem.objective, Variables(1.0), member).sample(randomness.of(k, 0), 2).index
            )(stack)
        )
    )
    keys = jnp.stack([randomness.root(seed) for seed in range(200)])
    index = np.asarray(draw(keys))  # (seeds, clients, batch)
    for m, n in enumerate((6, 11, 8)):
        assert set(index[:, m].ravel()) == set(range(n))


def test_where_rows_are_drawn_alike_their_smoothness_is_not_computed():
    clients = tw.Clients.from_list([(np.eye(2), [0.0, 1.0])] * 2)
    for sampling, needed in (("uniform", False), ("importance", True)):
        problem = tw.Problem(tw.objectives.mixture(tw.losses.squared(l2=0.5), lam=1.0), clients, sampling=sampling)
        problem.program()
        assert ("_row_smoothness" in vars(problem)) is needed


@pytest.mark.parametrize("buckets, sampling", [(None, "uniform"), ([[2], [1, 0]], "importance")])
def test_a_sampled_gradient_of_the_problem(buckets, sampling):
    """It is the weighted mean of the gradients of the drawn rows; each client draws its own, whatever the bucketing."""
    problem = make(weights=WEIGHTS, buckets=buckets, sampling=sampling)
    w, beta = plain.point(problem)
    key = randomness.root(5)
    of_w, of_beta = problem.gradient(w, beta, key=key, batch=4)
    expected = []
    for m in range(3):
        oracle = Oracle(problem.objective, Variables(1.0), problem.member(m))
        sample = oracle.sample(randomness.of(randomness.private(key, m), 0), 4)
        x, y = problem.clients[m].x[sample.index], problem.clients[m].y[sample.index]
        each = np.stack([plain.gradient("logistic", beta[m], x[[i]], y[[i]], 0.0) for i in range(4)])
        slope = np.asarray(sample.weight) @ each + L2 * beta[m] + 0.3 * (beta[m] - w)
        assert_allclose(of_beta[m], WEIGHTS[m] * slope, atol=1e-15)
        expected.append(WEIGHTS[m] * 0.3 * (w - beta[m]))
    assert_allclose(of_w, np.sum(expected, axis=0), atol=1e-15)


def test_rows_drawn_by_importance_give_the_gradient_on_average():
    """Weights 1/(n π_j) for the data part alone: the ridge and the penalty are in every sample as they are."""
    problem, draws = make(weights=WEIGHTS), 4000
    assert problem.sampling == "importance"
    w, beta = plain.point(problem)
    keys = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(1), draws))
    found = jax.jit(jax.vmap(lambda key: problem.gradient_beta(w, beta, key=key, batch=8)))(keys)
    spread = np.std(found, axis=0) / draws**0.5
    assert np.all(np.abs(np.mean(found, axis=0) - problem.gradient_beta(w, beta)) < 5 * spread)
    assert np.all(spread > 0)


def test_a_key_of_jax_will_do():
    problem = make()
    at = plain.point(problem)
    expected = problem.gradient(*at, key=randomness.root(3), batch=2)
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        assert_array_equal(flat(problem.gradient(*at, key=key, batch=2)), flat(expected))


def test_slices_of_a_reshuffling_visit_every_row_once():
    oracle = Oracle(None, Variables(1.0), make().member(1))  # 11 rows
    order = oracle.order(randomness.of(randomness.root(0), 0))
    parts = [oracle.slice(order, start, 4) for start in (0, 4, 8)]
    seen = np.concatenate([np.asarray(p.index)[np.asarray(p.weight) > 0] for p in parts])
    assert sorted(seen.tolist()) == list(range(11))
    assert_allclose([np.sum(p.weight) for p in parts], 1.0, rtol=1e-15)
    assert_allclose(parts[2].weight, [1 / 3, 1 / 3, 1 / 3, 0.0], rtol=1e-15)


@pytest.mark.parametrize(
    ("count", "mask"),
    [
        *((count, mask) for count in (2, 3, 1000) for mask in (0xFFFFFFFF, 0xFFFF0000, 0x0000000F, 0)),
        (65536, 0xFFFFFFFF),
    ],
)
def test_a_reshuffling_is_the_stable_order_of_its_draws(count, mask):
    """Also where many draws are equal, or differ only in the bits that the quick sort does not see."""
    words = randomness.bits(randomness.of(randomness.root(1), count), count) & jnp.uint32(mask)
    assert_array_equal(jax.jit(kernels.stable_order)(words), np.argsort(words, kind="stable"))


# ---- padding --------------------------------------------------------------------------------------------------------

COUNTS = (3, 5, 2)
PADDED = {name: MAKE[name] for name in ("mixture", "adaptive", "weight_sharing", "residual")} | {
    "maml": lambda loss: tw.objectives.maml(loss, 0.4),
    "own loss": lambda loss: tw.objectives.multitask(
        tw.losses.custom(lambda p, x, y: jnp.mean(jnp.logaddexp(0, (1 - 2 * y) * (x @ p))), np.zeros(3), l2=L2), 0.3
    ),
}
PROBLEMS = {
    name: tw.Problem(make(tw.losses.logistic(L2)), plain.clients(counts=COUNTS)) for name, make in PADDED.items()
}


@jax.jit
def everything(objective, member, w, beta):
    """All that an algorithm can ask of a client: values and gradients, full, sampled, row by row and reshuffled."""
    oracle = Oracle(objective, Variables(0.5), member)
    key = randomness.of(randomness.root(0), 7)
    sample, last = oracle.sample(key, 3), oracle.slice(oracle.order(key), 2, 2)
    full, of_rows = oracle.value(w, beta), oracle.row_gradients_beta(w, beta, sample)
    return full, of_rows, [oracle.gradients(w, beta, s) for s in (None, sample, last)]


@pytest.mark.parametrize("name", PADDED)
@given(
    m=st.sampled_from([0, 2]),
    size=st.sampled_from([0.0, 1.0, 1e6]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=12)
def test_a_padded_row_never_changes_anything(name, m, size, seed):
    """Garbage in the padding, of any size, leaves every value and gradient as it was."""
    problem = PROBLEMS[name]
    w, beta = plain.point(problem, seed)
    b = plain.client(beta, m)
    rng = np.random.default_rng(seed)
    member, n, capacity = problem.member(m), COUNTS[m], 6
    x, y = size * rng.normal(size=(capacity, 3)), rng.integers(0, 2, capacity)
    x[:n], y[:n] = member.x, member.y
    padded = Member(jnp.asarray(x), jnp.asarray(y), *member[2:])
    found, expected = (everything(problem.objective, who, w, b) for who in (padded, member))
    assert_allclose(flat(found), flat(expected), atol=1e-14)


@pytest.mark.parametrize("name", ["mixture", "adaptive"])
def test_the_bucketing_never_changes_anything(name):
    plain_one = weighted(name)
    at = plain.point(plain_one)
    for buckets in ([[2, 0], [1]], [[2, 1, 0]]):
        other = make(name, weights=WEIGHTS, buckets=buckets)
        assert len(other.stacks) == len(buckets)
        assert_allclose(other.values(*at), plain_one.values(*at), rtol=1e-14)
        assert_allclose(other.value(*at), plain_one.value(*at), rtol=1e-14)
        assert_allclose(flat(other.gradient(*at)), flat(plain_one.gradient(*at)), atol=1e-15)
        assert_array_equal(flat(other.join(other.split(at[1]))), flat(at[1]))
    assert_allclose(flat(other.optimum()[:2]), flat(plain_one.optimum()[:2]), atol=1e-13)


# ---- what a gradient costs ------------------------------------------------------------------------------------------


def flops(which, objective, rows):
    rng = np.random.default_rng(0)
    problem = tw.Problem(objective, tw.Clients.from_list([plain.rows("logistic", rows, rng) for _ in range(2)]))
    w, beta = problem.start
    program = Program(problem.objective, Variables(), problem.stacks)
    lowered = which.lower(program, w, problem.split(beta), None, None)
    return lowered.compile().cost_analysis()["flops"]


def test_a_w_gradient_does_not_cost_a_beta_gradient():
    """∇_w of the mixture has no data in it: what it costs does not depend on the number of rows."""
    objective = tw.objectives.mixture(tw.losses.logistic(L2), 0.3)
    assert flops(gradients.gradient_w, objective, 1000) == flops(gradients.gradient_w, objective, 10) < 100
    few, many = (flops(gradients.gradient_beta, objective, n) for n in (10, 1000))
    assert many > 50 * few  # so the count does see data where there is some


def test_a_beta_gradient_does_not_cost_a_w_gradient():
    """Of the multi-task objective's two losses, each block differentiates its own."""
    one = tw.objectives.multitask(tw.losses.logistic(L2), 0.3, 0.7)
    alone = flops(gradients.gradient_beta, tw.objectives.local(tw.losses.logistic(L2)), 1000)
    assert flops(gradients.gradient_beta, one, 1000) < 1.1 * alone
    assert flops(gradients.gradient_w, one, 1000) < 1.1 * alone


# ---- scaling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, scale", [("mixture", 3**-0.5), ("traditional", 1.0), ("local", 1.0)])
def test_the_scale(name, scale):
    assert make(name).scale == pytest.approx(scale, rel=1e-15)
    assert make(name, rescale=False).scale == 1.0
    assert make(name, rescale=0.05).scale == (1.0 if scale == 1 else 0.05)


@pytest.mark.parametrize("rescale", [0, -1.0, float("nan"), float("inf"), "yes", None])
def test_a_bad_scale_is_a_sentence(rescale):
    with pytest.raises(ValueError, match="rescale must be True, False or a positive number, got"):
        make(rescale=rescale)


def test_a_scale_of_ones_own_divides_the_step_on_w():
    """A gradient step on w/s moves w by s²η∇_wF: with s = 1/M it is M times shorter than with M^(-1/2)."""
    moved = []
    for rescale in (True, 1 / 3):
        problem = make(rescale=rescale)
        run = tw.solve(problem, tw.algorithms.LSGD(eta=0.1, tau=1, batch=None), rounds=1, seed=0)
        moved.append(flat(run.w) - flat(problem.start[0]))
    assert_allclose(moved[1], moved[0] / 3, rtol=1e-12)


@every
def test_the_scaled_oracle_and_the_real_problem(name):
    problem = weighted(name)
    w, beta = plain.point(problem)
    s, total = problem.scale, 0.0
    real = problem.gradient(w, beta)
    for m in range(3):
        scaled = jax.tree.map(lambda leaf: leaf / s, w)
        value, (of_w, of_beta), _ = asked(problem.objective, s, member(problem, m), scaled, plain.client(beta, m))
        assert_allclose(value, problem.values(w, beta)[m], rtol=1e-13)
        assert_allclose(flat(of_beta), flat(plain.client(real[1], m)), atol=1e-15)
        total = total + WEIGHTS[m] * flat(of_w)
    assert_allclose(total, s * flat(real[0]), atol=1e-15)


def test_the_user_never_sees_the_scale():
    scaled, plain_one = make(), make(rescale=False)
    at = plain.point(scaled)
    assert scaled.value(*at) == plain_one.value(*at)
    assert_array_equal(flat(scaled.gradient(*at)), flat(plain_one.gradient(*at)))
    assert_allclose(scaled.optimum().w, plain_one.optimum().w, atol=1e-13)


# ---- constants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rescale, weights", [(True, WEIGHTS), (False, None)])
def test_local_constants_against_dense_hessians(rescale, weights):
    """Mixture and multi-task at a point: every eigenvalue from NumPy's Hessians of the logistic loss."""
    for name, Lambda in (("mixture", 0.0), ("multitask", 0.7)):
        problem = make(name, weights=weights, rescale=rescale)
        w, beta = plain.point(problem)
        p, s, eye = problem.clients.weights, problem.scale, np.eye(3)
        at_w = [Lambda * plain.logistic_hessian(w, c.x, L2) + 0.3 * eye for c in problem.clients]
        at_beta = [plain.logistic_hessian(b, c.x, L2) + 0.3 * eye for b, c in zip(beta, problem.clients, strict=True)]
        full = np.zeros((12, 12))
        full[:3, :3] = s**2 * np.tensordot(p, at_w, 1)
        for m in range(3):
            mine = slice(3 + 3 * m, 6 + 3 * m)
            full[mine, mine] = p[m] * at_beta[m]
            full[:3, mine] = full[mine, :3] = -s * p[m] * 0.3 * eye

        def row(v, x):
            return plain.logistic_hessian(v, x[None], L2)

        largest = [
            max(np.linalg.eigvalsh(h)[-1] for h in hs)
            for hs in (at_w, [q * h for q, h in zip(p, at_beta, strict=True)])
        ]
        rows = [
            max(np.linalg.eigvalsh(Lambda * row(w, x) + 0.3 * eye)[-1] for c in problem.clients for x in c.x),
            max(
                p[m] * np.linalg.eigvalsh(row(beta[m], x) + 0.3 * eye)[-1]
                for m, c in enumerate(problem.clients)
                for x in c.x
            ),
        ]
        found = problem.constants(at=(w, beta))
        assert_allclose(found.mu, np.linalg.eigvalsh(full)[0], rtol=1e-10)
        assert_allclose([found.L_w, found.calL_w], [s**2 * largest[0], s**2 * rows[0]], rtol=1e-10)
        assert_allclose([found.L_beta, found.calL_beta], [largest[1], rows[1]], rtol=1e-10)
        assert set(found.how.values()) == {"local"} and set(found.why.values()) == {"curvature at a point"}


@pytest.mark.parametrize(
    "name, rescale",
    [("traditional", True), ("local", True),  # without either block there is nothing to scale
     ("multitask", True), ("mixture", False), ("adaptive", True), ("weight_sharing", False), ("residual", True)],
)  # fmt: skip
def test_certified_constants_hold_at_points(name, rescale):
    problem = make(name, weights=WEIGHTS, rescale=rescale)
    local = problem.constants(at=plain.point(problem))
    for rule in ("paper", "sharp"):
        bound = problem.constants(rule=rule)
        assert set(bound.how.values()) == {"certified"} and bound.mu > 0
        assert local.mu >= bound.mu * (1 - 1e-9)
        # At a point, L^w is that of the largest client; a sharp L^w is that of F, and the largest client's stands beside it.
        assert local.L_w <= (bound.L_w if bound.L_client is None else bound.L_client) * (1 + 1e-9)
        for constant in ("L_beta", "calL_w", "calL_beta"):
            assert getattr(local, constant) <= getattr(bound, constant) * (1 + 1e-9)


def test_given_constants_are_marked_and_win():
    problem = make()
    certified = problem.constants()
    found = problem.constants(mu=1e-3, calL_w=7.0)
    assert (found.mu, found.calL_w, found.L_w) == (1e-3, 7.0, certified.L_w)
    assert found.how == {**certified.how, "mu": "given", "calL_w": "given"}
    assert problem.constants() == certified
    at = problem.constants(at=problem.start, mu=0.5)
    assert at.how["mu"] == "given" and at.how["L_w"] == "local"
    with pytest.raises(TypeError, match="Constants has no constant 'nu'; it has mu, L_w, L_beta, calL_w, calL_beta"):
        problem.constants(nu=1.0)


def test_no_ridge_no_strong_convexity():
    constants = make(l2=0.0).constants()
    assert constants.mu == 0 and constants.how["mu"] == "certified"
    assert make(kind="squared", l2=0.0).constants().mu > 0  # the data's own


def test_smallest_eigenvalue_of_a_large_problem(monkeypatch):
    """Lanczos where the Hessian is too large to form."""
    problem = make(weights=WEIGHTS)
    at = plain.point(problem)
    dense = reference.smallest_eigenvalue(problem, at)
    monkeypatch.setattr(reference, "WHOLE", 1)
    assert_allclose(reference.smallest_eigenvalue(problem, at), dense, rtol=1e-4)


@pytest.mark.parametrize("kind", plain.KINDS)
def test_derivatives_may_be_taken_forwards_and_backwards(kind):
    problem = make("mixture", kind)
    at, along = plain.point(problem), plain.point(problem, seed=1)
    value, forwards = jax.jvp(problem.value, at, along)
    backwards = np.vdot(flat(problem.gradient(*at)), flat(along))
    assert_allclose(value, problem.value(*at), rtol=1e-14)
    assert_allclose(forwards, backwards, rtol=1e-12)


def test_a_problem_may_be_seen_first_inside_a_jit():
    problem = make("mixture")
    at = jax.tree.map(np.asarray, plain.point(make("mixture")))
    inside = jax.jit(problem.value)(*at)
    assert_allclose(problem.value(*at), inside, rtol=1e-14)  # nothing of that trace was kept
    assert_allclose(problem.start[1], 0)


# ---- the optimum ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, kind", [(n, "squared" if n == "custom" else k) for n, k in zip(MAKE, 3 * plain.KINDS, strict=False)]
)
def test_the_optimum_of_every_small_problem(name, kind):
    problem = weighted(name, kind)
    best = problem.optimum()
    assert best.gradient_norm < 1e-12
    assert_allclose(np.sqrt(problem.gradient_norm_squared(*best[:2])), best.gradient_norm, atol=1e-15)
    assert_allclose(problem.value(*best[:2]), best.value, rtol=1e-14)
    # SciPy's L-BFGS on the same values and gradients, from elsewhere.
    start, unravel = ravel_pytree(plain.point(problem))
    numbers = jax.jit(lambda v: (problem.value(*unravel(v)), ravel_pytree(problem.gradient(*unravel(v)))[0]))
    other = optimize.minimize(
        lambda v: tuple(np.asarray(part) for part in numbers(v)),
        start,
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 0, "gtol": 1e-9},
    )
    assert_allclose(other.fun, best.value, rtol=1e-12)
    # It ends where F cannot fall any more in floating point: as far off as strong convexity allows, ‖x − x*‖ ≤ ‖∇F‖/μ.
    mu = problem.constants().mu
    far = np.linalg.norm(other.jac) / mu if mu > 0 else 1e-6
    assert far < 1e-4
    assert np.linalg.norm(other.x - flat(best[:2])) <= far
    assert problem.optimum() is best  # computed once


@pytest.mark.parametrize("name", ["mixture", "traditional", "local"])
def test_products_with_the_hessian_lead_where_its_blocks_do(name):
    blocks, products = weighted(name).optimum(), minimise(weighted(name), dense=1)
    size = np.max(np.abs(flat(blocks[:2])))
    assert_allclose(flat(products[:2]), flat(blocks[:2]), atol=1e-9 * size)
    assert_allclose(products.value, blocks.value, rtol=1e-14)
    assert products.gradient_norm < 1e-12
    assert jax.tree.structure(products[:2]) == jax.tree.structure(blocks[:2])


def test_products_put_everyone_back_in_place():
    """Clients in two buckets, not in their order."""
    objective, clients = MAKE["mixture"](tw.losses.logistic(L2)), plain.clients(weights=WEIGHTS)
    found = minimise(tw.Problem(objective, clients, buckets=[[2], [1, 0]]), dense=1)
    assert_allclose(found.beta, tw.Problem(objective, clients).optimum().beta, atol=1e-12)


def test_a_larger_softmax_problem_takes_few_products(monkeypatch):
    """Blocks of 200 parameters, an ill-conditioned loss: a dozen Newton steps, most of them far from exact."""
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(30, 40)) @ rng.normal(size=(40, 40)) / 6, rng.integers(0, 5, 30)) for _ in range(4)]
    problem = tw.Problem(tw.objectives.mixture(tw.losses.softmax(5, 0.01), 0.1), tw.Clients.from_list(pairs))
    tolerances, solve = [], reference._Blocks.solve

    def counted(self, w, beta, right, tolerance):
        tolerances.append(tolerance)
        return solve(self, w, beta, right, tolerance)

    monkeypatch.setattr(reference._Blocks, "solve", counted)
    best = problem.optimum()
    assert best.gradient_norm < 1e-14
    assert len(tolerances) < 20 and sum(t >= 0.03 for t in tolerances) > len(tolerances) / 2


@pytest.mark.parametrize("sigma", synthetic.MIXTURE_SIGMAS)
def test_the_optimum_on_the_papers_synthetic_data(sigma):
    data = synthetic.mixture(sigma)
    assert data.lam == pytest.approx(1e-2 / sigma)
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(), data.lam), tw.Clients.from_list(data.clients))
    best = problem.optimum()
    assert best.gradient_norm < 1e-12
    assert float(problem.gradient_norm_squared(*best[:2])) < 1e-24
    # w is the mean of the β_m, and every β_m the prox of w: checked with NumPy's gradients.
    assert_allclose(best.w, np.mean(best.beta, axis=0), atol=1e-13)
    for (x, y), b in zip(data.clients, best.beta, strict=True):
        assert np.max(np.abs(plain.gradient("logistic", b, x, y) + data.lam * (b - best.w))) < 1e-13


def test_a_stiff_problem_is_solved_to_its_own_precision():
    """A penalty of 10⁶ multiplies the rounding of w − β by as much; that is no reason to refuse."""
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(L2), 1e6), plain.clients())
    together = tw.Problem(tw.objectives.traditional(tw.losses.logistic(L2)), plain.clients()).optimum()
    assert_allclose(problem.optimum().w, together.w, atol=1e-6)


def test_flat_directions_do_no_harm():
    """A column twice, softmax without ridge, w and β on the same features: minimisers form a plane, any one will do."""
    rng = np.random.default_rng(0)
    x, y = plain.rows("logistic", 40, rng)
    clients = tw.Clients.from_list([(np.column_stack([x, x[:, 0]]), y), (np.column_stack([x, x[:, 0]])[:25], y[:25])])
    single = tw.Clients.from_list([(x, y), (x[:25], y[:25])])
    loss = tw.losses.logistic()
    least = tw.Problem(tw.objectives.local(loss), single).optimum().value
    for objective in (
        tw.objectives.local(tw.losses.softmax(2)),
        tw.objectives.residual(loss),
    ):
        for dense in (1200, 1):
            best = minimise(tw.Problem(objective, clients), dense)
            assert best.gradient_norm < 1e-12
            assert_allclose(best.value, least, rtol=1e-12)


def test_newton_from_where_the_loss_is_almost_linear():
    """Far out the pseudo-Huber loss has a gradient that does not shrink for many steps; that is no reason to stop."""
    clients = plain.clients("squared")
    loss = tw.losses.custom(lambda p, x, y: jnp.mean(jnp.sqrt(1 + (x @ p - 100 * y) ** 2)), np.full(3, 200.0))
    problem = tw.Problem(tw.objectives.local(loss), clients)
    best = problem.optimum()
    assert best.gradient_norm < 1e-12
    assert_allclose(minimise(problem, dense=1).value, best.value, rtol=1e-13)


def separable(margin, seed=0):
    """Two clients whose classes a line divides, and rows along another direction that nothing divides."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    pairs = []
    for n in (30, 40):
        x = rng.normal(size=(n, 3))
        x[:, 0] += margin * np.sign(x[:, 0])
        mixed = np.zeros((20, 3))
        mixed[:, 2] = rng.normal(size=20)
        pairs.append(
            (np.concatenate([x, mixed]) @ turn, np.concatenate([x[:, 0] > 0, rng.random(20) < 0.5]).astype(int))
        )
    return tw.Clients.from_list(pairs)


@pytest.mark.parametrize("name, seed", [("traditional", 0), ("local", 1), ("mixture", 0), ("weight_sharing", 1)])
def test_separable_classes_without_a_ridge(name, seed):
    clients = separable(0.2, seed)
    with pytest.raises(
        NotConvexError,
        match=r"runs off to infinity .*, most likely because the classes are separable and there is no ridge. Give",
    ):
        tw.Problem(MAKE[name](tw.losses.logistic()), clients).optimum()
    assert tw.Problem(MAKE[name](tw.losses.logistic(1e-6)), clients).optimum().gradient_norm < 1e-12


def test_separable_classes_in_one_dimension():
    """Where nothing else has any curvature, the Hessian shrinks as a whole and never looks singular."""
    x = np.linspace(-1, 1, 11)[:, None]
    clients = tw.Clients.from_list([(x, (x[:, 0] > 0).astype(int)), (x, (x[:, 0] > 0.1).astype(int))])
    with pytest.raises(NotConvexError, match="runs off to infinity"):
        tw.Problem(tw.objectives.local(tw.losses.logistic()), clients).optimum()


@pytest.mark.parametrize("name", ["traditional", "local"])
def test_separable_classes_in_many_dimensions(name):
    """With more columns than rows anything is separable; conjugate gradients say so too."""
    clients = plain.clients(counts=(10, 12), width=40)
    with pytest.raises(NotConvexError, match="runs off to infinity"):
        minimise(tw.Problem(MAKE[name](tw.losses.logistic()), clients), dense=1)
    best = minimise(tw.Problem(MAKE[name](tw.losses.logistic(1e-3)), clients), dense=1)
    assert best.gradient_norm < 1e-12


def test_nearly_separable_classes_do_have_a_minimiser():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = (rng.random(200) < 1 / (1 + np.exp(-30 * x[:, 0]))).astype(int)
    problem = tw.Problem(tw.objectives.local(tw.losses.logistic()), tw.Clients.from_list([(x, y)]))
    best = problem.optimum()
    assert best.gradient_norm < 1e-12 and 100 < np.max(np.abs(best.beta)) < 500


def network():
    rng = np.random.default_rng(1)
    begin = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=4)}
    return tw.losses.custom(lambda p, x, y: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2), begin, l2=0.01)


@pytest.mark.parametrize("dense", [1200, 1])
def test_a_network_has_no_optimum_to_certify(dense):
    for objective in (tw.objectives.local(network()), tw.objectives.weight_sharing(network(), "a")):
        with pytest.raises(NotConvexError, match=r"has a negative eigenvalue .*: the problem is not convex"):
            minimise(tw.Problem(objective, plain.clients("squared")), dense)


def test_a_problem_without_a_minimum():
    linear = tw.losses.custom(lambda p, x, y: jnp.mean(x @ p), np.zeros(3))
    with pytest.raises(
        NotConvexError, match=r"^No minimiser was found: ‖∇F‖ was .* at the start of the search and is .* at its end"
    ):
        tw.Problem(tw.objectives.local(linear), plain.clients("squared")).optimum()


@pytest.mark.parametrize("name", ["adaptive"])
def test_in_float32_the_optimum_is_still_one_of_float64(name):
    exact = weighted(name).optimum()
    with jax.enable_x64(False):
        problem = make(name, weights=WEIGHTS)
        assert problem.start[0].dtype == np.float32
        at = plain.point(problem)
        assert problem.value(*at).dtype == np.float32
        best = problem.optimum()
    assert best.w.dtype == best.beta.dtype == np.float64
    assert best.gradient_norm < 1e-12
    assert_allclose(best.value, exact.value, rtol=1e-14)
    assert_allclose(flat(best[:2]), flat(exact[:2]), atol=1e-13)


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_points_of_the_wrong_shape():
    problem = make()
    for bad in ((np.zeros(4), np.zeros((3, 3))), (np.zeros(3), np.zeros((2, 3))), ((), np.zeros((3, 3)))):
        for method in (
            problem.value,
            problem.values,
            problem.gradient,
            problem.gradient_w,
            problem.gradient_norm_squared,
        ):
            with pytest.raises(ValueError, match=r"must have shapes \(\(3,\), \(3, 3\)\), got"):
                method(*bad)


def test_a_sampled_gradient_needs_a_key_and_a_size():
    problem = make()
    for given_one in ({"key": randomness.root(0)}, {"batch": 2}):
        for method in (problem.gradient, problem.gradient_w, problem.gradient_beta):
            with pytest.raises(ValueError, match="needs both key= and batch=; a full one neither"):
                method(*problem.start, **given_one)


@pytest.mark.parametrize("buckets", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2, 3]]])
def test_buckets_must_hold_everyone_once(buckets):
    with pytest.raises(ValueError, match="buckets must hold each of the 3 client positions exactly once"):
        make(buckets=buckets)


def test_repr_says_what_is_solved():
    assert repr(make()).startswith("Problem(mixture: f'(β) + (λ/2)‖w − β‖², Clients(3 clients, 6 to 11 rows each")
