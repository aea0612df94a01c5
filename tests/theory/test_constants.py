"""Constants against true Hessians: quadratic losses of given spectra, the dense Hessian of F, its eigenvalues."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.theory import constants
from twofold.theory.constants import Constants, LossConstants, arrow_smallest_eigenvalue

D = 3


def spectrum(rng, mu, L, d=D):
    """A random symmetric matrix whose eigenvalues are spread over [μ, L] and reach both ends."""
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (q * np.linspace(mu, L, d)) @ q.T


class Quadratic:
    """f'_m(x) = ½xᵀH_m x for each client (two arguments of f' have Hessians of their own), and the F built from them.

    An objective is written down as its terms: coefficient, which Hessian, and the matrix that takes (w, β_m) to the
    argument. Everything else follows from the definition F = Σ p_m f_m(s w, β_m).
    """

    def __init__(self, rng, mus, Ls, weights, scale, terms, d_w=D, d_beta=D):
        self.M, self.p, self.s, self.d_w, self.d_beta = len(mus), np.asarray(weights), scale, d_w, d_beta
        size = {t[2].shape[0] for m in range(self.M) for t in terms(m) if t[1] != "I"}
        d = size.pop() if size else d_w
        self.of_client = []
        for m in range(self.M):
            hessian = np.zeros((d_w + d_beta,) * 2)
            for coefficient, kind, jacobian in terms(m):
                inner = np.eye(jacobian.shape[0]) if kind == "I" else spectrum(rng, mus[m], Ls[m], d)
                scaled = np.concatenate([jacobian[:, :d_w] * scale, jacobian[:, d_w:]], axis=1)
                hessian += coefficient * scaled.T @ inner @ scaled
            self.of_client.append(hessian)

    def smoothness_w(self):
        return max(np.linalg.eigvalsh(h[: self.d_w, : self.d_w])[-1] for h in self.of_client)

    def smoothness_beta(self):
        return max(
            p * np.linalg.eigvalsh(h[self.d_w :, self.d_w :])[-1] for p, h in zip(self.p, self.of_client, strict=True)
        )

    def hessian(self):
        w, b = self.d_w, self.d_beta
        full = np.zeros((w + self.M * b,) * 2)
        for m, h in enumerate(self.of_client):
            index = np.concatenate([np.arange(w), w + m * b + np.arange(b)])
            full[np.ix_(index, index)] += self.p[m] * h
        return full

    def convexity(self):
        return np.linalg.eigvalsh(self.hessian())[0]


W, B = np.eye(D, 2 * D), np.eye(D, 2 * D, D)  # (w, β) ↦ w and (w, β) ↦ β


def mixture_terms(lam):
    return lambda m: [(1.0, "loss", B), (lam, "I", W - B)]


def multitask_terms(lam, Lambda):
    return lambda m: [(Lambda, "loss", W), (1.0, "loss", B), (lam, "I", W - B)]


def adaptive_terms(alpha, Lambda):
    alpha = np.asarray(alpha)
    return lambda m: [(Lambda, "loss", W), (1.0, "loss", (1 - alpha[m]) * B + alpha[m] * W)]


def sharing_terms(m):
    return [(1.0, "loss", np.eye(2 * D))]


def objectives(M, rng):
    """Every objective as (name, its constants, its terms), on both sides of each lemma's condition."""
    alpha = rng.uniform(0.05, 0.95, M)
    return [
        ("mixture, μ' ≤ λ/2", lambda *a, **k: constants.mixture(a[0], 3.0, *a[1:], **k), mixture_terms(3.0)),
        ("mixture, μ' > λ/2", lambda *a, **k: constants.mixture(a[0], 0.05, *a[1:], **k), mixture_terms(0.05)),
        ("multitask, Λ large", lambda *a, **k: constants.multitask(a[0], 0.3, 9, *a[1:], **k), multitask_terms(0.3, 9)),
        ("multitask, Λ small", lambda *a, **k: constants.multitask(a[0], 2, 0.1, *a[1:], **k), multitask_terms(2, 0.1)),
        (
            "adaptive, Λ large",
            lambda *a, **k: constants.adaptive(a[0], alpha, 1, *a[1:], **k),
            adaptive_terms(alpha, 1),
        ),
        (
            "adaptive, Λ small",
            lambda *a, **k: constants.adaptive(a[0], alpha, 0.05, *a[1:], **k),
            adaptive_terms(alpha, 0.05),
        ),
        ("weight sharing", constants.weight_sharing, sharing_terms),
    ]


OBJECTIVES = [name for name, *_ in objectives(1, np.random.default_rng(0))]


@pytest.mark.parametrize("setting", ["paper", "unscaled", "weighted", "odd scale"])
@pytest.mark.parametrize("which", range(len(OBJECTIVES)), ids=OBJECTIVES)
@pytest.mark.parametrize("M", [1, 2, 7])
def test_constants_bound_the_true_hessian(which, setting, M):
    rng = np.random.default_rng(100 * which + M)
    for _ in range(3):
        mus = rng.uniform(0.2, 0.6, M)
        Ls, calLs = rng.uniform(1, 3, M), rng.uniform(4, 9, M)
        p = rng.dirichlet(np.ones(M)) if setting == "weighted" else np.full(M, 1 / M)
        s = {"paper": M**-0.5, "weighted": M**-0.5, "unscaled": 1.0, "odd scale": 0.37}[setting]
        _, certify, terms = objectives(M, rng)[which]
        sizes = (D, D)
        c = certify(LossConstants(mus, Ls, calLs), s, p)
        for smooth, of_w, of_beta in ((Ls, c.L_w, c.L_beta), (calLs, c.calL_w, c.calL_beta)):
            true = Quadratic(rng, mus, smooth, p, s, terms, *sizes)
            assert true.convexity() >= c.mu * (1 - 1e-9)
            assert true.smoothness_w() <= of_w * (1 + 1e-9)
            assert true.smoothness_beta() <= of_beta * (1 + 1e-9)


@pytest.mark.parametrize("setting", ["paper", "weighted", "odd scale"])
@pytest.mark.parametrize("which", range(len(OBJECTIVES)), ids=OBJECTIVES)
def test_constants_cannot_be_improved(which, setting):
    """Losses with H_m = μ'_m I attain the arrow matrix's μ, those with H_m = L'_m I attain L^w and L^β."""
    rng, M = np.random.default_rng(which), 5
    mus, Ls = rng.uniform(0.2, 0.6, M), rng.uniform(1, 3, M)
    p = rng.dirichlet(np.ones(M)) if setting == "weighted" else np.full(M, 1 / M)
    s = 0.37 if setting == "odd scale" else M**-0.5
    name, certify, terms = objectives(M, rng)[which]
    sharp = {} if name == "weight sharing" else {"sharp": True}
    c = certify(LossConstants(mus, Ls, Ls), s, p, **sharp)
    assert Quadratic(rng, mus, mus, p, s, terms).convexity() == pytest.approx(c.mu, rel=1e-9)
    flat = Quadratic(rng, Ls, Ls, p, s, terms)
    assert flat.smoothness_w() == pytest.approx(c.L_w, rel=1e-12)
    assert flat.smoothness_beta() == pytest.approx(c.L_beta, rel=1e-12)


@pytest.mark.parametrize("which", range(len(OBJECTIVES)), ids=OBJECTIVES)
def test_the_lemmas_never_exceed_the_arrow_matrix(which):
    rng, M = np.random.default_rng(which), 6
    _, certify, _ = objectives(M, rng)[which]
    if OBJECTIVES[which] != "weight sharing":
        loss = LossConstants(rng.uniform(0.2, 0.6, M), 1.0, 2.0)
        assert certify(loss).mu <= certify(loss, sharp=True).mu * (1 + 1e-12)


def test_traditional_and_local_bound_the_true_hessian():
    rng, M = np.random.default_rng(0), 4
    mus, Ls, p = rng.uniform(0.2, 0.6, M), rng.uniform(1, 3, M), rng.dirichlet(np.ones(M))
    hessians = [spectrum(rng, mu, L) for mu, L in zip(mus, Ls, strict=True)]
    loss = LossConstants(mus, Ls, 2 * Ls)
    c = constants.traditional(loss)
    mean = np.linalg.eigvalsh(np.tensordot(p, hessians, 1))
    assert mean[0] >= c.mu
    assert mean[-1] <= c.L_w == max(Ls)
    c = constants.local(loss, p)
    ends = np.array([q * np.linalg.eigvalsh(h)[[0, -1]] for q, h in zip(p, hessians, strict=True)])
    assert (c.mu, c.L_beta) == pytest.approx((ends[:, 0].min(), ends[:, 1].max()))
    assert (c.L_w, c.calL_w, c.calL_beta) == (0, 0, pytest.approx(2 * c.L_beta))


# --- the table of notes.md, by hand -----------------------------------------------------------------------------------

M4 = LossConstants(mu=np.array([0.4, 0.2, 0.3, 0.9]), L=np.array([1.0, 2.0, 3.0, 1.5]), calL=np.array([4.0, 9, 8, 5]))


@pytest.mark.parametrize(
    ("c", "expected"),
    [
        (constants.traditional(M4), (0.2, 3.0, 0.0, 9.0, 0.0)),
        (constants.local(M4), (0.05, 0.0, 0.75, 0.0, 2.25)),
        (constants.mixture(M4, 1.0), (0.2 / 12, 0.25, 1.0, 0.25, 2.5)),
        (constants.multitask(M4, 0.5, 4.0), (0.0625, 3.125, 0.875, 9.125, 2.375)),
        (
            constants.adaptive(M4, 0.25, 1.0),
            (0.2 * 0.5625 / 8, 1.0625 * 0.75, 0.5625 * 0.75, 1.0625 * 2.25, 0.5625 * 2.25),
        ),
        (constants.weight_sharing(M4), (0.05, 0.75, 0.75, 2.25, 2.25)),
    ],
    ids=["traditional", "local", "MX2", "MT2", "APFL2", "WS2"],
)
def test_the_table_of_the_notes(c, expected):
    assert (c.mu, c.L_w, c.L_beta, c.calL_w, c.calL_beta) == pytest.approx(expected, rel=1e-14)


def test_apfl_uses_the_largest_and_smallest_alpha():
    c = constants.adaptive(LossConstants(0.2, 3.0, 9.0), np.array([0.1, 0.25, 0.2, 0.15]), 1.0)
    expected = (0.2 * 0.75**2 / 8, 1.0625 * 0.75, 0.81 * 0.75, 1.0625 * 2.25, 0.81 * 2.25)
    assert (c.mu, c.L_w, c.L_beta, c.calL_w, c.calL_beta) == pytest.approx(expected, rel=1e-14)


def test_lemmas_at_the_edge_of_their_conditions():
    loss = LossConstants(0.2, 1.0, 1.0)
    assert "Lemma mixture" in constants.mixture(loss, 0.4, clients=3).why["mu"]
    assert "arrow" in constants.mixture(loss, 0.399, clients=3).why["mu"]
    assert "Lemma smooth_sc_multitaks" in constants.multitask(loss, 0.4, 3.0000001, clients=3).why["mu"]
    assert "arrow" in constants.multitask(loss, 0.4, 2.999, clients=3).why["mu"]
    assert "Lemma apfl" in constants.adaptive(loss, 0.5, 0.375, clients=3).why["mu"]
    assert "arrow" in constants.adaptive(loss, 0.5, 0.374, clients=3).why["mu"]
    assert "scale" in constants.mixture(loss, 0.4, 1.0, clients=3).why["mu"]
    assert "weights" in constants.mixture(loss, 0.4, None, [0.2, 0.3, 0.5]).why["mu"]


def test_without_strong_convexity_of_the_loss():
    flat = LossConstants(0.0, 1.0, 2.0)
    for weights in (None, [0.2, 0.3, 0.5]):
        arguments = {"weights": weights, "clients": 3}
        assert constants.local(flat, **arguments).mu == 0
        assert constants.mixture(flat, 1.0, **arguments).mu == 0
        assert constants.multitask(flat, 1.0, 2.0, **arguments).mu == 0
        assert constants.adaptive(flat, 0.3, 1.0, **arguments).mu == 0
        assert constants.weight_sharing(flat, **arguments).mu == 0
    some = LossConstants(np.array([0.0, 0.5, 0.5]), 1.0, 2.0)  # one flat client: the penalty ties it to the others
    assert constants.mixture(some, 1.0, None, [0.2, 0.3, 0.5]).mu > 0


def test_without_a_penalty():
    loss = LossConstants(0.5, 1.0, 2.0)
    assert constants.mixture(loss, 0.0, clients=2).mu == 0  # nothing depends on w
    assert constants.multitask(loss, 0.0, 3.0, clients=2).mu == pytest.approx(0.25)  # the lemma's λ/(2M) would be 0
    assert constants.multitask(loss, 0.0, 0.0, clients=2).mu == 0
    assert constants.adaptive(loss, 0.3, 0.0, clients=2).mu == pytest.approx(0, abs=1e-15)
    assert constants.adaptive(loss, 1.0, 0.1, clients=2).mu == 0  # β has no effect


def test_a_tiny_mu_keeps_its_precision():
    for mu in (1e-6, 1e-12, 1e-20):
        c = constants.mixture(LossConstants(mu, 1.0, 1.0), 1.0, clients=5, sharp=True)
        exact = mu / (
            5 * ((2 + mu) / 2 + np.sqrt(1 + mu**2 / 4))
        )  # det/(the larger eigenvalue) of [[1, −1], [−1, 1+μ]]/5
        assert c.mu == pytest.approx(exact, rel=1e-14)


# --- slips of the paper, each violated on an instance -----------------------------------------------------------------


def test_slip_apfl2_printed_mu_without_the_half():
    M, alpha, Lambda = 50, 0.95, 3 * 0.95**2 + 0.05**2 / 2
    true = Quadratic(
        np.random.default_rng(0),
        np.ones(M),
        np.ones(M),
        np.full(M, 1 / M),
        M**-0.5,
        adaptive_terms([alpha] * M, Lambda),
    )
    printed = (1 - alpha) ** 2 / M
    ours = constants.adaptive(LossConstants(1.0, 1.0, 1.0), alpha, Lambda, clients=M)
    assert ours.mu <= true.convexity() < 0.8 * printed
    # With the smaller Λ that already suffices, half of the printed μ is attained.
    Lambda = alpha**2 + (1 - alpha) ** 2 / 2
    true = Quadratic(
        np.random.default_rng(0),
        np.ones(M),
        np.ones(M),
        np.full(M, 1 / M),
        M**-0.5,
        adaptive_terms([alpha] * M, Lambda),
    )
    assert true.convexity() == pytest.approx(printed / 2, rel=2e-3)
    ours = constants.adaptive(LossConstants(1.0, 1.0, 1.0), alpha, Lambda * (1 + 1e-12), clients=M)
    assert "Lemma apfl" in ours.why["mu"]
    assert ours.mu <= true.convexity() * (1 + 1e-9)


def test_slip_ws2_printed_mu_and_smoothness_without_the_mean():
    M = 4
    true = Quadratic(np.random.default_rng(0), np.ones(M), np.ones(M), np.full(M, 1 / M), M**-0.5, sharing_terms)
    assert true.convexity() == pytest.approx(1 / M)  # printed: 1
    assert true.smoothness_beta() == pytest.approx(1 / M)  # printed: 1


def test_slip_mt2_table_has_an_extra_half_in_the_smoothness():
    M, lam, Lambda = 4, 1.0, 2.0
    ones = np.ones(M)
    true = Quadratic(np.random.default_rng(0), ones, ones, ones / M, M**-0.5, multitask_terms(lam, Lambda))
    printed_w, printed_beta = (Lambda + lam) / (2 * M), (1 + lam) / (2 * M)
    assert true.smoothness_w() == pytest.approx(2 * printed_w)
    assert true.smoothness_beta() == pytest.approx(2 * printed_beta)


def test_mx2_lemma_holds_up_to_three_halves_of_lambda():
    """Not a slip but a gift: (λ−μ/3)(λ+2μ/3) ≥ λ² holds for μ' ≤ 3λ/2, not only for μ' ≤ λ/2."""
    lam, M = 1.0, 3
    for mu, holds in ((0.5, True), (1.49, True), (1.51, False)):
        assert (constants.mixture(LossConstants(mu, 2.0, 2.0), lam, clients=M, sharp=True).mu >= mu / (3 * M)) == holds


# --- the arrow matrix -------------------------------------------------------------------------------------------------


def dense(a, b, c):
    full = np.diag(np.concatenate([[a], c]))
    full[0, 1:] = full[1:, 0] = b
    return np.linalg.eigvalsh(full)[0]


entries = st.one_of(st.just(0.0), st.just(1.0), st.floats(-3, 3), st.floats(-1e-9, 1e-9))


@settings(max_examples=300, deadline=None, database=None)
@given(st.floats(-5, 5), st.lists(st.tuples(entries, entries), min_size=1, max_size=8), st.integers(-40, 40))
def test_arrow_agrees_with_dense_eigenvalues(a, pairs, power):
    b, c = (np.array(x) * 10.0**power for x in zip(*pairs, strict=True))
    a *= 10.0**power
    size = max(abs(a), np.abs(b).max(), np.abs(c).max())
    assert arrow_smallest_eigenvalue(a, b, c) == pytest.approx(dense(a, b, c), rel=1e-12, abs=1e-13 * size)


@settings(max_examples=200, deadline=None, database=None)
@given(st.floats(0, 5), st.lists(st.tuples(st.floats(-2, 2), st.floats(0.01, 3)), min_size=1, max_size=8))
def test_arrow_with_a_schur_complement(schur, pairs):
    b, c = map(np.array, zip(*pairs, strict=True))
    a = schur + np.sum(b * b / c)
    ours = arrow_smallest_eigenvalue(a, b, c, schur=schur)
    assert ours == pytest.approx(dense(a, b, c), rel=1e-9, abs=1e-12 * max(a, c.max(), abs(b).max()))
    assert ours >= 0


def test_arrow_special_cases():
    assert arrow_smallest_eigenvalue(0, [0, 0], [0, 0]) == 0
    assert arrow_smallest_eigenvalue(2, [0, 0], [3, 1]) == 1
    assert arrow_smallest_eigenvalue(-2, [0, 0], [3, 1]) == -2
    assert arrow_smallest_eigenvalue(1, [1, 1], [1, 1]) == pytest.approx(1 - np.sqrt(2))
    assert arrow_smallest_eigenvalue(5, [1e-200, 1], [1, 4]) == pytest.approx(1)
    assert arrow_smallest_eigenvalue(1, [0, 2], [-7, 1]) == -7
    with pytest.raises(ValueError, match="finite"):
        arrow_smallest_eigenvalue(1, [np.nan], [1])


def test_arrow_of_a_million_clients():
    rng, M = np.random.default_rng(0), 10**6
    mu, p = rng.uniform(0.5, 2, M), rng.dirichlet(np.ones(M))
    c = constants.mixture(LossConstants(mu, 2.0, 2.0), 1.0, weights=p)
    # A test vector gives an upper bound; smallest p_m (μ'_m + λ) is another.
    assert 0 < c.mu <= np.min(p * (mu + 1))


# --- the classes ------------------------------------------------------------------------------------------------------


def test_constants_speak_when_they_are_wrong():
    with pytest.raises(ValueError, match=r"L\^β must be a finite number ≥ 0, got L_beta=-1"):
        Constants(1, 1, -1, 1, 1)
    with pytest.raises(ValueError, match="μ must be"):
        Constants(float("nan"), 1, 1, 1, 1)
    with pytest.raises(ValueError, match="certified, local, given"):
        Constants(1, 1, 1, 1, 1, how={"mu": "guessed"})
    with pytest.raises(ValueError, match="no constant 'L'"):
        Constants(1, 1, 1, 1, 1, why={"L": "?"})
    with pytest.raises(ValueError, match="L' of client 1 must be"):
        LossConstants(1.0, np.array([1.0, -2.0]), 1.0)
    with pytest.raises(ValueError, match=r"\[2, 3\] entries"):
        LossConstants(np.ones(2), np.ones(3), 1.0)
    loss = LossConstants(1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="number of clients is unknown"):
        constants.mixture(loss, 1.0)
    with pytest.raises(ValueError, match=r"disagree on the number of clients: \[2, 3\]"):
        constants.adaptive(loss, np.array([0.1, 0.2]), 1.0, clients=3)
    with pytest.raises(ValueError, match="sum to one"):
        constants.local(loss, [0.5, 0.6])
    with pytest.raises(ValueError, match="lam must be"):
        constants.mixture(loss, -1.0, clients=2)
    with pytest.raises(ValueError, match="alpha must be"):
        constants.adaptive(loss, 1.5, 1.0, clients=2)
    with pytest.raises(ValueError, match="scale of w"):
        constants.mixture(loss, 1.0, 0.0, clients=2)
    Constants(9, 1, 1, 0.1, 0.1)  # local estimates may be in any order


def test_replace_marks_what_was_given():
    c = constants.mixture(LossConstants(0.1, 1.0, 2.0, dict.fromkeys(("mu", "L", "calL"), "certified")), 1.0, clients=2)
    assert set(c.how.values()) == {"certified"}
    new = c.replace(mu=0.5)
    assert new.mu == 0.5
    assert new.how["mu"] == "given"
    assert new.how["L_w"] == "certified"
    assert c.mu != 0.5
    with pytest.raises(TypeError, match="no constant 'L'"):
        c.replace(L=1.0)
    with pytest.raises(ValueError, match="μ must be"):
        c.replace(mu=-1.0)


def test_how_follows_the_ingredients():
    loss = LossConstants(0.1, 1.0, 2.0, {"mu": "given", "L": "given", "calL": "local"})
    how = constants.mixture(loss, 1.0, clients=2).how
    # λ/M has no loss in it, whatever is known of the loss
    assert how == {"mu": "given", "L_w": "certified", "L_beta": "given", "calL_w": "certified", "calL_beta": "local"}
    assert constants.weight_sharing(loss, clients=2).how["calL_w"] == "local"
    assert LossConstants(0.1, 1.0, 2.0).how == dict.fromkeys(("mu", "L", "calL"), "given")


def test_constants_print_as_a_table_and_survive_a_trip():
    c = constants.mixture(M4, 1.0)
    lines = str(c).splitlines()
    assert len(lines) == 6
    assert lines[0].split() == ["name", "value", "how", "why"]
    assert lines[1].startswith("μ")
    assert "0.0166667" in lines[1]
    assert "Lemma mixture" in lines[1]
    assert pickle.loads(pickle.dumps(c)) == c
    assert hash(c) == hash(dataclasses.replace(c))
    assert (M4.mu_min, M4.L_max, M4.calL_max, M4.clients) == (0.2, 3.0, 9.0, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.mu = 1.0  # type: ignore[misc]
