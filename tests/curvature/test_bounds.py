"""Sharp constants against dense Hessians of random problems at random points."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import twofold as tw
from curved import LOSSES, OBJECTIVES, Dense, hessians, matrix_of, problem
from twofold.curvature import model as models
from twofold.curvature.bounds import arrow, row_smoothness, sharp
from twofold.curvature.metric import build
from twofold.oracle import Oracle, Sample
from twofold.problem import Problem
from twofold.variables import Variables

EVERY = [(objective, name, (i + j) % 2 == 0) for j, name in enumerate(LOSSES) for i, objective in enumerate(OBJECTIVES)]
EVERY += [("weight_sharing", "logistic", True), ("weight_sharing", "softmax", False)]
SLACK = 1 + 1e-9


@pytest.mark.parametrize("objective, name, intercept", EVERY)
def test_constants_bound_dense_hessians(objective, name, intercept):
    p = problem(objective, name, intercept)
    model = p.objective.curvature(p.clients)
    c = sharp(model, p.scale, lemma=p.constants())
    dense, rng = hessians(p), np.random.default_rng(1)
    lows, tops, betas, wholes = [], [], [], []
    for size in (0.0, 0.3, 3.0):
        ww, wb, bb = dense.at(rng, size)
        values = np.linalg.eigvalsh(Dense.whole(ww, wb, bb))
        lows.append(values[0])
        wholes.append(values[-1])
        tops.append(np.linalg.eigvalsh(ww)[-1] if ww.size else 0.0)
        betas.append(max((np.linalg.eigvalsh(h)[-1] for h in bb if h.size), default=0.0))
    assert 0 < c.mu <= min(lows) * SLACK
    assert max(tops) <= c.L_w * SLACK and max(betas) <= c.L_beta * SLACK and max(wholes) <= c.L * SLACK
    assert (c.L_w + c.L_beta) * SLACK >= c.L
    if name == "squared":  # the Hessian is known: nothing may be lost
        assert c.mu == pytest.approx(lows[0], rel=2e-3)
        assert c.L_w == pytest.approx(tops[0], rel=1e-9) and c.L_beta == pytest.approx(betas[0], rel=1e-9)
    if name == "logistic" and not objective.endswith("_inf"):  # κ = ¼ is attained at 0
        assert c.L_w == pytest.approx(tops[0], rel=1e-9) and c.L_beta == pytest.approx(betas[0], rel=1e-9)
    paper = p.constants()
    assert c.mu >= paper.mu * (1 - 1e-9) and c.L_w <= paper.L_w * SLACK and c.L_beta <= paper.L_beta * SLACK
    assert c.calL_w <= paper.calL_w * SLACK and c.calL_beta <= paper.calL_beta * SLACK


@pytest.mark.parametrize("kind", ["matrix", "diagonal", "scale", "profile"])
@pytest.mark.parametrize("objective, name, intercept", EVERY)
def test_metric_makes_upper_blocks_at_most_one_and_its_mu_holds(objective, name, intercept, kind):
    p = problem(objective, name, intercept)
    model = p.objective.curvature(p.clients)
    found = build(model, p.scale, kind)
    c = sharp(model, p.scale, found)
    w, beta = p._start
    of_w = matrix_of(found.w, w) if c.L_w else np.zeros((0, 0))
    of_beta = [
        matrix_of(lambda x, m=m: found.beta(None if found.private is None else found.private[m], x), beta)
        if c.L_beta
        else None
        for m in range(p.M)
    ]
    assert kind == "profile" or {c.L_w, c.L_beta} <= {0.0, 1.0}
    dense, rng = hessians(p), np.random.default_rng(2)
    for size in (0.0, 2.0):
        ww, wb, bb = dense.at(rng, size)
        ww = of_w.T @ ww @ of_w
        if c.L_beta:
            wb = np.stack([of_w.T @ h @ r for h, r in zip(wb, of_beta, strict=True)])
            bb = np.stack([r.T @ h @ r for h, r in zip(bb, of_beta, strict=True)])
            assert max(np.linalg.eigvalsh(h)[-1] for h in bb) <= c.L_beta * SLACK
            if name == "squared" and kind == "matrix":
                np.testing.assert_allclose(bb, np.broadcast_to(np.eye(len(bb[0])), bb.shape), atol=1e-8)
        if c.L_w:
            assert np.linalg.eigvalsh(ww)[-1] <= c.L_w * SLACK
            if name == "squared" and kind == "matrix":
                np.testing.assert_allclose(ww, np.eye(len(ww)), atol=1e-8)
            if name == "squared" and kind == "profile":  # the Hessian of min_β F
                rest = ww - sum((h @ np.linalg.solve(g, h.T) for h, g in zip(wb, bb, strict=True)), 0 * ww)
                np.testing.assert_allclose(rest, np.eye(len(ww)), atol=1e-8)
        values = np.linalg.eigvalsh(Dense.whole(ww, wb, bb))
        assert 0 < c.mu <= values[0] * SLACK and values[-1] <= c.L * SLACK
        if name == "squared" and kind != "diagonal":
            assert c.mu == pytest.approx(values[0], rel=2e-3)
        if c.L_w and c.L_beta:
            for p_w in (0.1, 0.6):
                shrunk = np.concatenate([np.full(len(ww), p_w), np.full(len(values) - len(ww), 1 - p_w)])
                least = np.linalg.eigvalsh(shrunk[:, None] * Dense.whole(ww, wb, bb) * shrunk)[0]
                assert 0 < arrow(model, p.scale, found).nu(p_w) <= least * SLACK


@pytest.mark.parametrize("kind", [None, "matrix", "diagonal", "scale"])
@pytest.mark.parametrize("objective", ["multitask", "adaptive", "weight_sharing"])
def test_noise_is_the_data_part_of_single_rows(objective, kind):
    name = "squared"
    p = problem(objective, name, True)
    model = p.objective.curvature(p.clients)
    found = None if kind is None else build(model, p.scale, kind)
    rows = row_smoothness(model, p.scale, found)
    plain = Problem(_without_ridge(p.objective), p.clients)
    each = _rows_by_hessians(plain, found)
    uniform, importance = np.zeros(2), np.zeros(2)
    for m in range(p.M):
        lo, hi = p.clients.offsets[m : m + 2]
        mine = float(p.clients.weights[m]) * each[m, : hi - lo]
        np.testing.assert_allclose(np.stack([rows.w, rows.beta], axis=1)[lo:hi], mine, rtol=1e-9)
        uniform, importance = np.maximum(uniform, mine.max(0)), np.maximum(importance, mine.mean(0))
    for sampling, expected in (("uniform", uniform), ("importance", importance)):
        c = sharp(model, p.scale, found, sampling=sampling)
        np.testing.assert_allclose([c.noise_w, c.noise_beta], expected, rtol=1e-9)


@pytest.mark.parametrize("kind", [None, "matrix", "diagonal", "scale"])
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("objective", ["multitask", "adaptive", "weight_sharing"])
def test_the_largest_row_as_it_is_drawn(objective, sampling, kind):
    """𝓛_π by Hessians of single rows, data part times the weights that the oracle gives a drawn row, and the rest once."""
    given = problem(objective, "squared", True)
    p = Problem(given.objective, given.clients, rescale=given.rescale, precondition=kind, sampling=sampling)
    plain, expected = Problem(_without_ridge(p.objective), p.clients, rescale=given.rescale), np.zeros(2)
    each, whole = _rows_by_hessians(plain, p.metric), _rows_by_hessians(p, p.metric)
    stack = p.stack(np.arange(p.M), np.dtype(np.float64))
    for m in range(p.M):
        n, share = p.clients.counts[m], np.array([1.0, p.clients.weights[m]])
        weight = np.ones(n) if stack.draws is None else np.asarray(stack.draws.weight)[m, :n]
        if kind in (None, "scale"):  # the rest is a multiple of the identity here, so that it adds to every eigenvalue
            rest = whole[m, 0] - each[m, 0]
            expected = np.maximum(expected, share * (np.max(weight[:, None] * each[m, :n], axis=0) + rest))
        else:
            expected = np.maximum(expected, share * np.max(weight[:, None] * each[m, :n], axis=0))
    c = p.constants()
    if kind in (None, "scale"):
        np.testing.assert_allclose([c.drawn_w, c.drawn_beta], expected, rtol=1e-6)
    else:
        assert c.drawn_w >= expected[0] * (1 - 1e-9) and c.drawn_beta >= expected[1] * (1 - 1e-9)
    if sampling == "uniform":
        np.testing.assert_allclose([c.drawn_w, c.drawn_beta], [c.calL_w, c.calL_beta], rtol=1e-12)


def test_a_row_that_two_blocks_share_may_count_twice():
    """The rows of w are alike and one row alone has a β: it takes half of every other row's chances."""
    x = np.hstack([np.ones((20, 1)), np.eye(20)[:, :1] * 0.1])
    objective = tw.objectives.weight_sharing(tw.losses.squared(l2=1e-6), split=1)
    c = Problem(objective, tw.Clients.from_list([(x, np.ones(20))])).constants()
    assert c.drawn_w == pytest.approx(2 * c.calL_w, rel=1e-3)
    assert c.drawn_beta == pytest.approx(c.calL_beta / 20 * 2, rel=0.06)


def _rows_by_hessians(plain, found):
    """The largest eigenvalue of f_mj's Hessian in w and in β, (clients, rows, 2), at zero, in the metric."""
    everyone = jax.tree.map(np.asarray, plain.stack(np.arange(plain.M), np.dtype(np.float64)))
    factors = (None, None) if found is None else (found.shared, found.private)

    def one(member, mine, j):
        oracle, tops = Oracle(plain.objective, Variables(plain.scale), member), []
        for block, factor in enumerate((factors[0], mine)):
            flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, plain._start[block]))

            def of(v, block=block, factor=factor, unravel=unravel):
                at = [jax.tree.map(jnp.zeros_like, part) for part in plain._start]
                at[block] = unravel(v) if found is None else found._apply(factor, unravel(v))
                return oracle.value(*at, Sample(j[None], jnp.ones(1)))

            tops.append(jnp.linalg.eigvalsh(jax.hessian(of)(jnp.zeros_like(flat)))[-1])
        return jnp.stack(tops)

    rows = jnp.arange(everyone.x.shape[1])
    inner = jax.vmap(one, in_axes=(None, None, 0))
    return np.asarray(jax.jit(jax.vmap(inner, in_axes=(0, 0, None)))(everyone, factors[1], rows))


def _without_ridge(objective):
    """The data part alone: no ridge, no penalty."""
    loss = dataclasses.replace(objective.loss, l2=0.0)
    return dataclasses.replace(objective, loss=loss, **({"lam": 0.0} if objective.name == "multitask" else {}))


def test_other_scales_and_the_limit_on_memory(monkeypatch):
    """Without room for everyone's matrices the bounds are looser, and still hold."""
    for objective in ("mixture", "adaptive", "weight_sharing", "traditional"):
        p = problem(objective, "squared", False, 0.7)
        exact = sharp(p.objective.curvature(p.clients), p.scale)
        monkeypatch.setattr(models, "WIDE", 1)
        monkeypatch.setattr(models, "POOLED", 1)
        monkeypatch.setattr("twofold.curvature.bounds.POOLED", 1)
        loose = sharp(p.objective.curvature(p.clients), p.scale)
        monkeypatch.undo()
        values = np.linalg.eigvalsh(Dense.whole(*hessians(p).at(np.random.default_rng(0), 1.0)))
        assert 0 < loose.mu <= exact.mu <= values[0] * SLACK
        assert values[-1] <= exact.L * SLACK and exact.L_w <= loose.L_w * SLACK and exact.L <= loose.L * SLACK


def test_no_model_where_nothing_is_known():
    p = problem("mixture", "squared")
    custom = tw.losses.custom(lambda params, x, y: ((x @ params - y) ** 2).mean(), np.zeros(3))
    for objective in (
        tw.objectives.maml(p.objective.loss, alpha=0.1),
        tw.objectives.mixture(custom, lam=1.0),
        tw.objectives.traditional(custom),
        tw.objectives.weight_sharing(custom, split=2),
        tw.objectives.custom(lambda w, beta, batch: 0.0, np.zeros(1), np.zeros(1)),
    ):
        assert objective.bind(p.clients).curvature(p.clients) is None
    odd = tw.objectives.weight_sharing(
        tw.losses.softmax(3, l2=0.1, intercept=True), lambda name, leaf: np.arange(3) < 2
    )
    everyone = problem("mixture", "softmax").clients
    assert odd.bind(everyone).curvature(everyone) is None
