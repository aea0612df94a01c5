"""What the cells solve: the constants of the published runs, the measures, and the published slip that is run on purpose."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from twofold.data import synthetic
from twofold.experiments import ews, images, load, mx2, problems, reparam
from twofold.experiments.base import PUBLISHED, THEORY
from twofold.theory import stepsizes
from twofold.theory.constants import LossConstants


def test_the_mixtures_constants_are_the_published_ones():
    for level in mx2.LEVELS:
        setup = problems.setup(mx2.problem(level))
        data = synthetic.mixture(level)
        known, M = synthetic.paper_constants(data), 20
        c = setup.published
        assert c is not None
        assert c.calL_w == pytest.approx(data.lam / M, rel=1e-14)
        assert c.calL_beta == pytest.approx((known.smoothness + data.lam) / M, rel=1e-14)
        assert c.mu == pytest.approx(known.mu / (3 * M), rel=1e-14)
        assert setup.problem.objective.lam == data.lam


def test_the_mixtures_error_is_the_published_one():
    setup = problems.setup(mx2.problem(0.3))
    w, beta = setup.problem.start
    assert float(setup.measures["error"](w, beta)) == pytest.approx(79.34551, abs=1e-5)


def test_weight_sharing_is_the_published_problem_in_other_units():
    """Private features times √M make the right method take the published steps: M times as long on β."""
    ours, theirs = (problems.setup(ews.problem(5.0, variant)) for variant in (THEORY, PUBLISHED))
    w, beta = (jnp.asarray(np.random.default_rng(0).normal(size=leaf.shape)) for leaf in ours.problem.start)
    small = beta / np.sqrt(20)
    assert float(theirs.problem.value(w, small)) == pytest.approx(float(ours.problem.value(w, beta)), rel=1e-13)
    assert float(theirs.measures["error"](w, small)) == pytest.approx(float(ours.measures["error"](w, beta)), rel=1e-12)
    step, stretched = ours.problem.gradient_beta(w, beta), np.sqrt(20) * theirs.problem.gradient_beta(w, small)
    np.testing.assert_allclose(stretched, 20 * step, rtol=1e-12)
    np.testing.assert_allclose(theirs.problem.gradient_w(w, small), ours.problem.gradient_w(w, beta), rtol=1e-12)
    zero = jax.tree.map(jnp.zeros_like, (w, beta))
    assert float(ours.measures["error"](*zero)) == pytest.approx(88.03441, abs=1e-5)
    c = theirs.published
    assert c is not None
    assert (20 * c.calL_w, 20 * c.calL_beta) == pytest.approx((0.2758, 0.3154), abs=1e-4)


def test_the_papers_p_w_come_out_on_images():
    """The captions say 0.5 for MT2, 0.25 for MX2, 0.55 for APFL2."""
    expected = {"multitask": 0.5, "mixture": 0.25, "adaptive": 0.55}
    for objective, p_w in expected.items():
        chosen = dict(images.parameters(objective, 2))
        made = getattr(tw.objectives, chosen.pop("name"))(tw.losses.softmax(10), **chosen)
        clients = tw.Clients.from_list([(np.ones((2, 3)) / np.sqrt(3), np.array([0, 1]))] * 20)
        c = problems._published(objective, chosen, LossConstants(0.01, 1.0, 1.0), tw.Problem(made, clients))
        assert stepsizes.w_probability(c) == pytest.approx(p_w, abs=0.006)
        assert c.mu == pytest.approx(0.01 / 60)
        unscaled = problems._published(
            objective, chosen, LossConstants(0.01, 1.0, 1.0), tw.Problem(made, clients, rescale=False)
        )
        assert unscaled.calL_w == pytest.approx(20 * c.calL_w)
        assert (unscaled.calL_beta, unscaled.mu) == pytest.approx((c.calL_beta, c.mu))


def test_images_are_measured_both_ways(data_folder: Path):
    spec = {
        **images.problem("mnist", images.parameters("adaptive", 2), PUBLISHED),
        "clients": 4, "train": 20, "test": 30, "parts": ["test"],
    }  # fmt: skip
    setup = problems.setup(spec)
    w, beta = setup.problem.start
    assert float(setup.problem.value(w, beta)) == pytest.approx(2 * np.log(10), rel=1e-6)  # 0.0921 in units of 0.02
    rng = np.random.default_rng(0)
    w, beta = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), (w, beta))
    run = tw.solve(
        setup.problem,
        "ascd",
        rounds=1,
        start=(w, beta),
        record=setup.measures,
        constants=setup.published,
    )
    assert setup.measures == problems.EXAMS
    x, y = (np.asarray(part) for part in setup.problem.objective.test)
    assert x.shape == (4, 30, 784)

    def right(weight: np.ndarray, bias: np.ndarray) -> float:
        score = np.einsum("mnd,mdc->mnc", x, weight) + bias[:, None]
        return float(np.mean(np.argmax(score, axis=2) == y))

    blend = jax.tree.map(lambda b, s: 0.9 * np.asarray(b) + 0.1 * np.asarray(s), beta, w)  # α = 0.05·2
    alone = jax.tree.map(np.asarray, beta)
    assert run.history["accuracy"][0] == pytest.approx(right(alone["weight"], alone["bias"]))
    assert run.history["accuracy_personal"][0] == pytest.approx(right(blend["weight"], blend["bias"]))
    assert setup.provenance.startswith("mnist: 10,000 images from t10k-images-idx3-ubyte.gz")
    assert "4 clients with 20 training and 30 test rows" in setup.provenance


def test_a_ridge_is_there_by_theory_only():
    for name in ("images", "pw", "reparam", "relaxation"):
        for cell in load(name).cells:
            assert cell.problem["l2"] == (0.01 if cell.variant == THEORY else 0.0)
    assert {c.problem["rescale"] for c in reparam.EXPERIMENT.cells if c.level == "unscaled"} == {False}


def test_the_same_values_give_the_same_problem():
    assert problems.setup(mx2.problem(0.1)) is problems.setup(dict(reversed(mx2.problem(0.1).items())))
    assert problems.setup(mx2.problem(0.1)) is not problems.setup(mx2.problem(0.1, rescale=False))
