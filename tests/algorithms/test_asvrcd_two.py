"""Two reference points: the same trajectory in every engine, a silent v^β, and what theory promises."""

import dataclasses

import numpy as np
import pytest

import twofold as tw
from quadratics import Quadratic
from twofold import randomness
from twofold.algorithms.asvrcd_two import ASVRCDTwo
from twofold.errors import InputError
from twofold.solver import complete
from twofold.theory import rates

M, N, SPLIT, L2 = 3, 12, 2, 0.05


@pytest.fixture(scope="module")
def made(quadratic):
    return quadratic[0], quadratic[1].constants("uniform")


@pytest.fixture(scope="module")
def quadratic():
    """Weight sharing of squared losses with heavy rows, and the same as a quadratic, whose constants are eigenvalues."""
    rng = np.random.default_rng(0)
    data = []
    for _ in range(M):
        x = rng.standard_normal((N, 3)) * (rng.pareto(2.0, (N, 1)) + 0.3)
        data.append((x, x @ [1.0, -1.0, 0.5] + 0.3 * rng.standard_normal(N)))
    problem = tw.Problem(
        tw.objectives.weight_sharing(tw.losses.squared(l2=L2), split=SPLIT), tw.Clients.from_list(data)
    )
    rows, rest = np.zeros((M, N, SPLIT + M)), np.zeros((M, SPLIT + M, SPLIT + M))
    for m, (x, _) in enumerate(data):
        rows[m, :, :SPLIT], rows[m, :, SPLIT + m] = x[:, :SPLIT] * M**-0.5, x[:, SPLIT]
        rest[m] = L2 * np.diag([1 / M] * SPLIT + [float(k == m) for k in range(M)])
    return problem, Quadratic(np.full(M, 1 / M), rows, rest, SPLIT, 1)


def start(problem):
    best = problem.optimum()
    gap = float(problem.value(*problem.start)) - best.value
    beta = np.asarray(best.beta).reshape(M, -1)
    return best.value, gap, float(np.sum(np.square(np.asarray(best.w))) / problem.scale**2 + np.sum(beta**2))


@pytest.mark.parametrize(
    ("method", "algorithm", "more"),
    [
        ("asvrcd", tw.algorithms.ASVRCD(batch=4), {"batch": 4}),
        ("asvrcd", tw.algorithms.ASVRCD(reference="two"), {"reference": "two"}),
        ("svrcd", tw.algorithms.SVRCD(), {}),
    ],
)
def test_no_more_is_needed_than_predicted(made, method, algorithm, more):
    """Run for as long as predicted for 1e-6: the gap is there, and so are the rounds and gradients, to the luck of coins."""
    problem, c = made
    best, gap, distance2 = start(problem)
    eps = 1e-6 * gap if method == "asvrcd" else 1e-6 * distance2
    initial = rates.initial_error(method, c, gap, distance2, n=N, **more)
    found = rates.predict(method, c, eps, n=N, initial=initial, **more)
    k = int(np.ceil(found.iterations))
    assert k < 100_000
    algorithm = complete(problem, algorithm, c, cost=None)[0]  # the choice that is predicted for without a cost
    result = tw.solve(problem, algorithm, iterations=k, constants=c, seed=0, every=k)
    ledger = result.ledger
    reached = float(problem.value(result.w, result.beta)) - best
    assert reached <= (1e-6 * gap if method == "asvrcd" else (c.L_w + c.L_beta) / 2 * eps)
    luck = 5 * np.sqrt(k)
    assert abs(ledger.rounds - found.rounds) <= luck
    counted = (result.history["gradients_w"][-1], result.history["gradients_beta"][-1])
    for mine, theirs in zip(counted, (found.grad_w, found.grad_beta), strict=True):
        assert abs(mine - theirs) <= luck * N + 2 * N


def test_scd_without_noise_at_the_optimum(made):
    """Targets that the model fits: sampled gradients vanish at x*, and SCD reaches any accuracy when predicted."""
    problem, c = made
    data = [(np.asarray(problem.clients[m].x), np.zeros(N)) for m in range(M)]
    flat = tw.Problem(problem.objective, tw.Clients.from_list(data))
    w0, beta0 = np.ones(SPLIT), np.ones((M, 1))
    distance2 = np.sum(w0**2) / flat.scale**2 + np.sum(beta0**2)
    found = rates.predict("scd", c, 1e-6 * distance2, n=N, initial=distance2)
    method = complete(flat, "scd", c, cost=None)[0]
    result = tw.solve(
        flat, method, iterations=int(np.ceil(found.iterations)), constants=c, start=(w0, beta0), seed=0, every=10**9
    )
    left = np.sum(np.asarray(result.w) ** 2) / flat.scale**2 + np.sum(np.asarray(result.beta) ** 2)
    assert left <= 1e-6 * distance2
    assert abs(result.ledger.rounds - found.rounds) <= 5 * np.sqrt(found.iterations)


def test_the_recursion_of_the_page(quadratic):
    """All rows, 25 iterations with the library's own coins: docs/two-references.md in five lines of NumPy."""
    problem, q = quadratic
    steps = {"eta": 0.03, "theta1": 0.2, "theta_w": 0.3, "theta_beta": 0.1, "gamma": 0.05, "nu": 0.9}
    algorithm = ASVRCDTwo(**steps, p_w=0.4, rho_w=0.3, rho_beta=0.5, batch=None)
    result = tw.solve(problem, algorithm, iterations=25, seed=4)
    best, of_w, H = problem.optimum(), np.arange(q.dim) < SPLIT, q.hessian
    y = z = v_w = v_b = -np.concatenate([np.asarray(best.w) / problem.scale, np.asarray(best.beta).ravel()])  # less x*
    stream = randomness.common(randomness.root(4))
    full = np.zeros(q.dim)  # before the first iteration nobody knows a gradient, and its step is empty
    for k in range(25):
        plan = [bool(coin) for coin in algorithm.plan(stream, k)]
        x = 0.2 * z + 0.3 * v_w + 0.1 * v_b + 0.4 * y
        g = full + np.where(of_w, (H @ (x - v_w)) / 0.4 if plan[0] else 0, 0 if plan[0] else (H @ (x - v_b)) / 0.6)
        v_w, v_b = (y if plan[1] else v_w), (y if plan[2] else v_b)
        y, z = x - 0.03 * g, 0.9 * z + 0.1 * x - 0.05 * g
        full = np.where(of_w, H @ v_w, H @ v_b)
    mine = np.concatenate([np.asarray(result.w - best.w) / problem.scale, np.asarray(result.beta - best.beta).ravel()])
    assert mine == pytest.approx(y, abs=1e-12)


def test_engines_agree(made):
    problem, c = made
    one, other = (
        tw.solve(problem, tw.algorithms.ASVRCD(reference="two"), iterations=12, constants=c, seed=1, engine=engine)
        for engine in ("simulate", "messages")
    )
    assert np.asarray(other.w) == pytest.approx(np.asarray(one.w), abs=1e-10)
    assert np.asarray(other.beta) == pytest.approx(np.asarray(one.beta), abs=1e-10)
    assert other.ledger.rounds == one.ledger.rounds


def test_a_new_reference_point_of_beta_is_silent(made):
    problem, c = made
    quiet = complete(problem, tw.algorithms.ASVRCD(reference="two"), c)[0]
    assert isinstance(quiet, ASVRCDTwo)
    steps = {"p_w": 1e-9, "rho_w": 1e-9, "rho_beta": 1.0}
    quiet = dataclasses.replace(quiet, **steps)
    result = tw.solve(problem, quiet, iterations=30, constants=c, seed=0)
    assert result.ledger.rounds == 1  # the start: ∇_wF(v^w)
    assert result.history["gradients_beta"][-1] >= 30 * N


def test_equal_coins_and_equal_points_are_one_reference_point(made):
    """With ρ = 1 both points are y of the iteration before, and two references are one."""
    problem, c = made
    one = complete(problem, tw.algorithms.ASVRCD(p_w=0.4, rho=1.0), c)[0]
    steps = {name: getattr(one, name) for name in ("eta", "theta1", "gamma", "nu", "p_w")}
    half = {"theta_w": one.theta2 / 2, "theta_beta": one.theta2 / 2, "rho_w": 1.0, "rho_beta": 1.0}
    two = ASVRCDTwo(**steps, **half, batch=one.batch)
    a, b = (tw.solve(problem, algorithm, iterations=50, constants=c, seed=2) for algorithm in (one, two))
    assert np.asarray(b.w) == pytest.approx(np.asarray(a.w), abs=1e-12)
    assert np.asarray(b.beta) == pytest.approx(np.asarray(a.beta), abs=1e-12)


def test_fields_of_the_user_win(made):
    problem, c = made
    found = complete(problem, tw.algorithms.ASVRCD(reference="two", p_w=0.3, rho=0.2, eta=1e-3, gamma=0.01), c)[0]
    assert (found.p_w, found.rho_w, found.rho_beta, found.eta, found.gamma) == (0.3, 0.2, 0.2, 1e-3, 0.01)
    alone = complete(problem, ASVRCDTwo(rho_beta=0.7), c)[0]
    assert alone.rho_beta == 0.7
    plain = complete(problem, tw.algorithms.ASVRCD(reference="two"))[
        0
    ]  # the problem's own constants, with or without noise
    assert plain.is_complete()
    for wrong in ({"reference": "three"}, {"reference": "two", "theta2": 0.5}):
        with pytest.raises(InputError):
            tw.algorithms.ASVRCD(**wrong)
