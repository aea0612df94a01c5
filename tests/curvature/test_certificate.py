"""The certificate is at least F − F*, near it, and the same whichever way it is summed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import twofold as tw
from curved import LOSSES, OBJECTIVES, clients, hessians, loss, problem
from twofold.curvature import certificate
from twofold.curvature.bounds import sharp
from twofold.metrics import loss as full_value
from twofold.oracle import Program
from twofold.problem import Problem
from twofold.variables import Variables

_gap = jax.jit(certificate.gap)


def random_point(p: Problem, rng: np.random.Generator, size: float):
    best = p.optimum()
    return jax.tree.map(lambda leaf: np.asarray(leaf) + size * rng.normal(size=np.shape(leaf)), (best.w, best.beta))


ONE_EACH = [(objective, tuple(LOSSES)[i % len(LOSSES)]) for i, objective in enumerate(OBJECTIVES)]


@pytest.mark.parametrize(
    ("objective", "name"), [*ONE_EACH, *((o, "squared") for o, name in ONE_EACH if name != "squared")]
)
def test_bound_is_the_dense_quadratic_form_and_at_least_the_gap(objective, name):
    p = problem(objective, name, name != "squared")
    model = p.objective.curvature(p.clients)
    found = certificate.prepare(model, p.clients.weights)
    assert found.how == "arrow"
    rng = np.random.default_rng(3)
    for size in (0.01, 1.0):
        w, beta = random_point(p, rng, size)
        gradient = p.gradient(w, beta)
        bound, true = float(_gap(found, *gradient, w, beta)), float(p.value(w, beta)) - p.optimum().value
        assert true <= bound * (1 + 1e-9)
        mu = sharp(model, p.scale).mu
        assert bound <= float(p.gradient_norm_squared(w, beta)) / (2 * mu) * (1 + 1e-5)  # never worse than by μ
        if name == "squared":
            assert bound == pytest.approx(true, rel=1e-6)
            dense = hessians(p)
            full = dense.whole(*dense.at(rng, 0.0))
            flat = np.concatenate(
                [p.scale * np.ravel(ravel_pytree(gradient[0])[0]), *map(np.ravel, _each(gradient[1], p.M))]
            )
            assert bound == pytest.approx(0.5 * flat @ np.linalg.solve(full, flat), rel=1e-6)


def _each(beta, M):
    return [np.asarray(ravel_pytree(jax.tree.map(lambda leaf, m=m: leaf[m], beta))[0]) for m in range(M)]


def test_sums_in_pieces_and_turned_weights_give_the_same():
    p = problem("multitask", "softmax", True)
    model = p.objective.curvature(p.clients)
    w, beta = random_point(p, np.random.default_rng(0), 0.3)
    g_w, g_beta = p.gradient(w, beta)
    whole = float(_gap(certificate.prepare(model, p.clients.weights), g_w, g_beta, w, beta))
    turned = certificate.prepare(model, p.clients.weights, turned=True)
    swap = lambda x: {"bias": x["bias"], "weight": jnp.swapaxes(x["weight"], -1, -2)}  # noqa: E731
    parts = [
        certificate.bound_client(
            jax.tree.map(lambda leaf, m=m: leaf[m], turned.clients),
            *(jax.tree.map(lambda leaf, m=m: leaf[m], swap(x)) if x is not w else swap(w) for x in (g_beta, w, beta)),
        )
        for m in range(p.M)
    ]
    total = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    assert float(certificate.finish(turned.shared, swap(g_w), total)) == pytest.approx(whole, rel=1e-12)


def least(p: Problem) -> tuple[Any, float]:
    """The minimiser and F* by Newton's method on the dense Hessian; compiled once for all problems of one kind."""
    w, beta = p.start
    for _ in range(60):
        w, beta, decrement = _newton(p.objective, p.stacks, w, p.split(beta))
        beta = p.join(beta)
        if decrement < 1e-24:
            break
    assert decrement < 1e-18
    return (w, beta), float(p.value(w, beta))


@jax.jit
def _newton(objective, stacks, w, parts):
    flat, unravel = ravel_pytree((w, parts))
    of = lambda v: full_value(Program(objective, Variables(), stacks), *unravel(v))  # noqa: E731
    gradient = jax.grad(of)(flat)
    step = jnp.linalg.solve(jax.hessian(of)(flat), gradient)
    decrement = gradient @ step
    return *unravel(flat - step / (1 + jnp.sqrt(decrement / 1e-2) * (decrement > 1e-4))), decrement


KINDS = (
    ("mixture", "logistic"),
    ("multitask", "softmax"),
    ("adaptive", "squared"),
)


def random_problems(count: int):
    rng = np.random.default_rng(11)
    for i in range(count):
        objective, name = KINDS[i % len(KINDS)]
        made = clients(name, seed=100 + i, spread=float(rng.uniform(0, 6)), sizes=(5, 8, 5, 8))
        linear = loss(name, l2=float(10 ** rng.uniform(-3, -1)))
        yield objective, name, Problem(OBJECTIVES[objective](linear), made, buckets=[range(4)])


@pytest.mark.slow
def test_the_gap_that_solve_reports_is_never_too_small_and_mostly_near_it():
    """200 problems with unequal weights and bad scales: after some rounds of acd, and where profile can get no further."""
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for i, (objective, name, p) in enumerate(random_problems(200)):
        lowest = least(p)[1]
        rounding = 1e-15 * (1 + abs(lowest))  # of this test's own difference of two values
        for x64 in (True, False):
            for method, rounds in (("acd", 15), ("profile", 25))[: 1 + (i % 5 == 0)]:
                with jax.enable_x64(x64):
                    same = p if x64 else Problem(p.objective, p.clients, buckets=[range(4)])
                    found = tw.solve(same, method, rounds=rounds, every=rounds, record="bound")
                assert jax.tree.leaves(found.w)[0].dtype == (np.float64 if x64 else np.float32)
                exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (found.w, found.beta))
                gap, bound = float(p.value(*exact)) - lowest, float(found.history["bound"][-1])
                assert gap <= bound * (1 + 1e-12) + rounding, (objective, name, i, x64, method, gap, bound)
                if method == "acd" and gap > 0:
                    ratios[x64].append(bound / gap)
    assert all(len(each) > 150 and np.median(each) < 10 for each in ratios.values())


@pytest.mark.slow
def test_bound_is_never_too_small_and_mostly_near_the_gap():
    """The function that solve calls, along gradient descent and where rounding is most of a gradient, on 60 of these problems."""
    ratios, rng = [], np.random.default_rng(0)
    for objective, name, p in random_problems(60):
        model = p.objective.curvature(p.clients)
        certificates = [certificate.prepare(model, p.clients.weights, dtype=t) for t in (np.float64, np.float32)]
        L = sharp(model, p.scale).L
        best, lowest = least(p)
        near = jax.tree.map(lambda x: x + 1e-5 * rng.normal(size=x.shape), best)  # rounding is most of a gradient here
        values, bounds = _along_descent(p.objective, p.stacks, certificates, p.scale, L, p.start, near)
        gaps = np.asarray(values) - lowest
        rounding = 1e-15 * (1 + abs(lowest))  # of this test's own difference of two values
        assert np.all(gaps <= np.asarray(bounds) * (1 + 1e-12) + rounding), (objective, name)
        ratios.append(np.asarray(bounds)[:3] / gaps[:3])
    assert np.median(ratios) < 10


@jax.jit
def _along_descent(objective, stacks, certificates, scale, L, start, near):
    """(4, 2) values of F and bounds of its gap after 7, 14 and 21 steps and at `near`, in float64 and in float32."""
    rounded = jax.tree.map(lambda x: _to(x, jnp.float32), (objective, stacks))

    def gradient(objective, stacks, w, beta):
        program = Program(objective, Variables(), stacks)
        return program.mean(program.gradients_w(w, (beta,))), program.gradients_beta(w, (beta,))[0]

    def step(_, at):
        return jax.tree.map(lambda x, g, s: x - s * g / L, at, gradient(objective, stacks, *at), _like(at, scale))

    def leg(at, _):
        new = jax.lax.fori_loop(0, 7, step, at)
        return new, new

    def measure(at):
        at32 = jax.tree.map(lambda x: x.astype(jnp.float32), at)
        exact32 = jax.tree.map(lambda x: x.astype(jnp.float64), at32)
        g32 = jax.tree.map(lambda x: x.astype(jnp.float32), gradient(*rounded, *at32))
        bound = certificate.gap(certificates[0], *gradient(objective, stacks, *at), *at)
        bounds = jnp.stack([bound, certificate.gap(certificates[1], *g32, *at32).astype(jnp.float64)])
        whole = Program(objective, Variables(), stacks)
        return jnp.stack([full_value(whole, x[0], (x[1],)) for x in (at, exact32)]), bounds

    points = jax.lax.scan(leg, start, None, length=3)[1]
    points = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), points, near)
    return jax.lax.map(measure, points)


def _to(x, dtype):
    x = jnp.asarray(x)
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _like(at, scale):
    w, beta = at
    return jax.tree.map(lambda _: scale**2, w), jax.tree.map(lambda _: 1.0, beta)


def test_without_a_model_it_is_the_norm_over_mu():
    p = problem("mixture", "squared")
    w, beta = p.start
    gradient, square = p.gradient(w, beta), float(p.gradient_norm_squared(w, beta))
    found = certificate.prepare(None, p.clients.weights, mu=0.01, scale=p.scale)
    assert found.how == "norm" and float(_gap(found, *gradient, w, beta)) == pytest.approx(square / 0.02, rel=1e-9)
    flat = certificate.prepare(None, p.clients.weights, mu=0.0, scale=p.scale)
    assert np.isinf(float(_gap(flat, *gradient, w, beta)))
    zero = jax.tree.map(np.zeros_like, gradient)
    assert float(_gap(flat, *zero, w, beta)) == 0
    free = Problem(OBJECTIVES["local"](loss("logistic", l2=0.0)), clients("logistic"))
    assert certificate.prepare(free.objective.curvature(free.clients), free.clients.weights).how == "norm"
