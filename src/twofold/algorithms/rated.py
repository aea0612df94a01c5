"""The rates of the built-in methods, as `Algorithm.rate`: what theory predicts for a method with its actual steps.

Each is a function of a completed algorithm, the facts about the problem, and the fraction `eps` of the first error that is to be
left. Your own algorithm defines its own `rate` method, most often `return Rate(kappa)`.
"""
# pyright: standard

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from twofold.theory import rates, stepsizes, stepsizes_newer, tight
from twofold.theory.rates import Prediction, Rate

__all__: list[str] = []  # only the built-in methods' files import these; users call `Algorithm.rate`

QUADRATIC, NEWTON, PER_DECADE = 2.0, 5.0, 2.0
"""Typical rounds of `profile`, which has no rate: for a quadratic, by Newton's method, and by L-BFGS per factor of ten. `twofold
reproduce realdata` measures 2; 3 to 5; and 1 to 4.9 (median 1.5, mean 2.4). None of them is a theorem."""
MEASURED = "measured on other problems (docs/realdata.md): it has no proven rate."
UNKNOWN = (
    "{} has a rate only where every client's own curvature is known: not in a metric (precondition=), and not with "
    "constants= of your own."
)
Said = Prediction | Rate | str


def _needs_mu(name: str) -> str:
    return f"{name} has a rate only for μ > 0."


def _same(method: Any, name: str, value: Any) -> str | None:
    """None if the method's field has theory's value; else a sentence that no rate is proven for it."""
    mine = getattr(method, name)
    if np.shape(mine) == np.shape(value) and np.allclose(mine, value, rtol=1e-6, atol=0):
        return None
    return f"no rate is proven for {'an' if name[0] in 'aeiou' else 'a'} {name} of your own."


def acd(self: Any, facts: Any, eps: float) -> Said:
    """The rate from the method's own θ and p_w, which may differ from those of the constants alone."""
    if not facts.constants.mu > 0:
        return _needs_mu("acd")
    return rates.predict_acd(float(self.theta), float(self.p_w), facts.rows, eps)


def _by_table(self: Any, facts: Any, eps: float, **own: Any) -> Said:
    """The rate from Table 1, for this method's own coins and batch."""
    found = rates.predict(self.name, facts.constants, eps, n=facts.rows, batch=self.batch, M=facts.M, **own)
    other = None if found.eta is None or not hasattr(self, "eta") else _same(self, "eta", found.eta)
    return other or found


def scd(self: Any, facts: Any, eps: float) -> Said:
    """A linear rate to a neighbourhood of the optimum."""
    return _by_table(self, facts, eps, p_w=self.p_w)


def svrcd(self: Any, facts: Any, eps: float) -> Said:
    """The rate max{1−ημ, 1−ρ/2}."""
    return _by_table(self, facts, eps, p_w=self.p_w, rho=self.rho)


def ascd(self: Any, facts: Any, eps: float) -> Said:
    """No rate is known."""
    return "ascd has no convergence theorem for this problem."


def asvrcd(self: Any, facts: Any, eps: float) -> Said:
    """The rate κ of the method's actual steps, with one reference point or two."""
    c = facts.constants
    if not c.mu > 0:
        return _needs_mu("asvrcd")
    two = hasattr(self, "rho_w")
    if c.noise_w is None and not two:
        return _by_table(self, facts, eps, p_w=self.p_w, rho=self.rho, optimal=self.optimal)
    rho = (self.rho_w, self.rho_beta) if two else (self.rho, self.rho)
    sigma = tight.variance(c, self.p_w, self.batch)
    h = tight.steps(sigma, rho, c.L_w + c.L_beta, c.mu, float(self.eta))
    if not h.kappa > 0:
        return "no rate is proven for an eta of your own."
    of_v = {"theta_w": h.theta_w, "theta_beta": h.theta_beta} if two else {"theta2": h.theta_w + h.theta_beta}
    for name, value in {"theta1": h.theta1, "gamma": h.gamma, "nu": h.nu, **of_v}.items():
        if (other := _same(self, name, value)) is not None:
            return other
    hyper = {"p_w": self.p_w, "rho_w": rho[0], "rho_beta": rho[1], "eta": self.eta}
    return rates.predict_anchored(c, h.kappa, hyper, facts.rows, self.batch, eps)


def lsgd(self: Any, facts: Any, eps: float) -> Said:
    """The theorem's rate, ignoring noise and drift."""
    c = facts.constants
    batch = self.batch if c.noise_w is not None or self.batch is not None else facts.rows
    return rates.predict("lsgd", c, eps, n=facts.rows, M=facts.M, tau=self.tau, batch=batch)


def l2sgd_plus(self: Any, facts: Any, eps: float) -> Said:
    """A rate limited by the table of the client with the most rows."""
    rows = facts.rows if facts.most_rows is None else facts.most_rows
    return rates.predict("l2sgd_plus", facts.constants, eps, n=rows, M=facts.M, batch=self.batch)


def rounds_of_clients(theory: Callable[..., stepsizes.Hyper], *steps: str) -> Any:
    """The rate of Scaffnew or Scafflix: min{η_m μ_m, p²}, if every client's own function is strongly convex."""

    def rate(self: Any, facts: Any, eps: float) -> Said:
        if facts.curvature is None or facts.curvature() is None:  # F's μ is no client's μ_m
            return UNKNOWN.format(self.name)
        each = facts.each()
        if not np.all(each.mu > 0):
            flat = int(np.argmin(each.mu))
            return f"{self.name} has a rate only if every client's own function is strongly convex; client {flat}'s may not be so."
        found = theory(facts.constants, each, self.batch, self.p_w)
        for name in steps:
            if (other := _same(self, name, found[name])) is not None:
                return other
        noise = "" if self.batch is None else "this prediction ignores sampling noise, which is unknown before a run."
        return Rate(found["kappa"], note=noise)

    return rate


def al2sgd_plus(self: Any, facts: Any, eps: float) -> Said:
    """L-Katyusha's rate."""
    loss, lam = facts.loss, facts.lam
    if loss is None or lam is None or not np.all(np.asarray(loss.mu) > 0):
        return "al2sgd_plus has a rate only for μ' > 0."
    found = stepsizes_newer.al2sgd_plus(loss, facts.each().weights, lam, self.p_w, self.rho)
    others = (_same(self, name, found[name]) for name in ("eta", "theta1", "gamma"))
    return next((other for other in others if other is not None), None) or Rate(found["kappa"], criterion="F − F*")


def saga(self: Any, facts: Any, eps: float) -> Said:
    """The rate min{ημ, min q_m/2}, for the run's own q_m."""
    each = facts.each()
    if not facts.constants.mu > 0:
        return _needs_mu("saga")
    found = stepsizes_newer.saga(facts.constants, each, 1.0 if self.q is None else self.q)
    if (other := _same(self, "eta", found["eta"])) is not None:
        return other
    if not np.any(each.L_beta > 0):
        return Rate(found["kappa"], criterion="‖w − w*‖²")
    note = (
        "not proven: the theorem is for participants that minimise over their β_m exactly, and these take a few steps."
    )
    return Rate(found["kappa"], "‖w − w*‖²", "unproven", note)


def profile(self: Any, facts: Any, eps: float) -> Said:
    """The typical number of rounds, measured on other problems."""
    k = NEWTON if self.outer == "newton" else max(PER_DECADE * -math.log10(eps), 1.0)
    if facts.quadratic:
        k = QUADRATIC
    of_w, of_beta = (float(each) / facts.rows for each in self.evaluations(self.plan(None, 0), facts.rows))
    return Prediction(k, k, k * of_w, k * of_beta, facts.rows, certainty="measured", note=MEASURED)
