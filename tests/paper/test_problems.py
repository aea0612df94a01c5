"""What the cells solve: the constants of the published runs, the measures, and the published slip that is run on purpose."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import twofold as tw
from twofold import randomness
from twofold.data import synthetic
from twofold.paper import faults, load, problems
from twofold.paper.base import PUBLISHED, THEORY
from twofold.paper.studies import ews, images, mx2, reparam
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
        chosen.pop("name")
        c = problems.assumed_constants(objective, chosen, LossConstants(0.01, 1.0, 1.0), 20, 20**-0.5)
        assert stepsizes.w_probability(c) == pytest.approx(p_w, abs=0.006)
        assert c.mu == pytest.approx(0.01 / 60)
        unscaled = problems.assumed_constants(objective, chosen, LossConstants(0.01, 1.0, 1.0), 20, 1.0)
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
    assert set(setup.measures) == {"accuracy", "accuracy_personal"}
    x, y = (np.asarray(part) for part in setup.measures["accuracy"].args[1:])
    assert x.shape == (4, 30, 784)

    def right(weight: np.ndarray, bias: np.ndarray) -> float:
        score = np.einsum("mnd,mdc->mnc", x, weight) + bias[:, None]
        return float(np.mean(np.argmax(score, axis=2) == y))

    blend = jax.tree.map(lambda b, s: 0.9 * np.asarray(b) + 0.1 * np.asarray(s), beta, w)  # α = 0.05·2
    alone = jax.tree.map(np.asarray, beta)
    found = {name: float(jax.jit(measure)(w, beta)) for name, measure in setup.measures.items()}
    assert found["accuracy"] == pytest.approx(right(alone["weight"], alone["bias"]))
    assert found["accuracy_personal"] == pytest.approx(right(blend["weight"], blend["bias"]))
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


# --- the slips of the published image runs ----------------------------------------------------------------------------


def test_devices_that_scan_the_same_file_share_images():
    y = np.random.default_rng(0).integers(0, 10, 2000)
    split = faults.scanned(y, clients=6, labels=8, train=40, test=60, seed=3)
    for train, test, labels in zip(split.train, split.test, split.labels, strict=True):
        mine = np.flatnonzero(np.isin(y, labels))
        assert train.tolist() == mine[:40].tolist()
        assert test.tolist() == mine[40:100].tolist()
    assert min(map(len, split.labels)) < 8  # drawn with replacement
    everyone = set(np.concatenate(split.train).tolist())
    assert everyone & set(np.concatenate(split.test).tolist())  # somebody tests on another's training images


def test_only_the_full_gradient_is_too_small(small_problem):
    problem, w, b = small_problem
    right = problem.program().oracle(problem.member(0))
    wrong, sample = faults.Shrunk(right), right.sample(randomness.of(randomness.private(randomness.root(0), 0), 0), 2)
    for name in ("gradient_w", "gradient_beta"):
        of_right, of_wrong = (jax.jit(getattr(oracle, name)) for oracle in (right, wrong))
        np.testing.assert_allclose(of_wrong(w, b), 0.02 * of_right(w, b), rtol=1e-14)
        np.testing.assert_array_equal(of_wrong(w, b, sample), of_right(w, b, sample))
    assert wrong.count == right.count


def test_the_faulty_asvrcd_is_slower_and_a_partial_is_recorded(small_problem):
    problem, _, _ = small_problem
    record = {"loss": "loss", "norm": Partial(lambda factor, w, beta: factor * jnp.sum(jnp.square(beta)), 2.0)}
    wrong, right = (
        tw.solve(problem, make(batch=1), rounds=60, every=30, seed=0, record=record)
        for make in (faults.ASVRCDAsRun, tw.algorithms.ASVRCD)
    )
    gains = [run.history["loss"][0] - run.history["loss"][-1] for run in (wrong, right)]
    assert gains[0] < 0.8 * gains[1]
    for run in (wrong, right):
        assert run.history["norm"][-1] == pytest.approx(2 * np.sum(np.square(run.beta)))


@pytest.fixture(name="small_problem")
def _small_problem():
    random = np.random.default_rng(1)
    pairs = [(random.normal(size=(30, 3)), random.integers(0, 2, 30)) for _ in range(4)]
    problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), 0.3), tw.Clients.from_list(pairs))
    return problem, jnp.asarray(random.normal(size=3)), jnp.asarray(random.normal(size=3))
