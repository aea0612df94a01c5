"""The rates of the built-in methods, as `Algorithm.rate`: what theory predicts for a method with its actual steps.

Each is a function of a completed algorithm, the facts about the problem, and the fraction `eps` of the first error that is to be
left. Your own algorithm defines its own `rate` method, most often `return Rate(kappa)`.
"""
# pyright: standard

from __future__ import annotations

from typing import Any

import numpy as np

from twofold.theory import rates, stepsizes_newer, tight
from twofold.theory.rates import Prediction, Rate

__all__: list[str] = []  # only the built-in methods' files import these; users call `Algorithm.rate`

Said = Prediction | Rate | str


def needs_mu(name: str) -> str:
    return f"{name} has a rate only for μ > 0."


def same(method: Any, name: str, value: Any) -> str | None:
    """None if the method's field has theory's value; else a sentence that no rate is proven for it."""
    mine = getattr(method, name)
    if np.shape(mine) == np.shape(value) and np.allclose(mine, value, rtol=1e-6, atol=0):
        return None
    return f"no rate is proven for {'an' if name[0] in 'aeiou' else 'a'} {name} of your own."


def acd(self: Any, facts: Any, eps: float) -> Said:
    """The rate from the method's own θ and p_w, which may differ from those of the constants alone."""
    if not facts.constants.mu > 0:
        return needs_mu("acd")
    return rates.predict_acd(float(self.theta), float(self.p_w), facts.rows, eps)


def _by_table(self: Any, facts: Any, eps: float, **own: Any) -> Said:
    """The rate from Table 1, for this method's own coins and batch."""
    found = rates.predict(self.name, facts.constants, eps, n=facts.rows, batch=self.batch, M=facts.M, **own)
    other = None if found.eta is None or not hasattr(self, "eta") else same(self, "eta", found.eta)
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
        return needs_mu("asvrcd")
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
        if (other := same(self, name, value)) is not None:
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


def al2sgd_plus(self: Any, facts: Any, eps: float) -> Said:
    """L-Katyusha's rate."""
    loss, lam = facts.loss, facts.lam
    if loss is None or lam is None or not np.all(np.asarray(loss.mu) > 0):
        return "al2sgd_plus has a rate only for μ' > 0."
    of_rows = {"batch": self.batch, "noise": facts.constants.noise_beta}
    found = stepsizes_newer.al2sgd_plus(loss, facts.each().weights, lam, self.p_w, self.rho, **of_rows)
    others = (same(self, name, found[name]) for name in ("eta", "theta1", "gamma"))
    return next((other for other in others if other is not None), None) or Rate(found["kappa"], criterion="F − F*")
