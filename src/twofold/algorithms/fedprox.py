"""FedProx: local steps on f_m with a pull to the last mean (Li et al. 2020)."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.fields import known
from twofold.algorithms.lsgd import Plan
from twofold.control import repeat
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes_newer
from twofold.tree import Pytree, record, static

__all__ = ["FedProx", "Message"]


class Message(NamedTuple):
    """w_m after the local steps."""

    w: Pytree


@record
class FedProx(Algorithm):
    """τ local steps on f_m(w_m, β_m) + (ρ/2)‖w_m − w‖², as in LSGD, then w = mean of the w_m.

    w_m −= η(∇_w f_m + ρ(w_m − w)), β_m −= ηp_m∇_β f_m. With the local problem solved (τ → ∞, full gradients) and no β, a round is
    one gradient step on Σ p_m min_v f_m(v) + (ρ/2)‖v − w‖²: it ends at the w of `objectives.mixture(loss, lam=ρ)`, not at that of
    `traditional(loss)`, and comes to that only as ρ → ∞. What Li et al. prove is a decrease of F in every round, for
    ρ ≈ 6LB², as long as clients are B-dissimilar; near the optimum of unequal clients no B is enough. ρ = 0 is LSGD.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.FedProx(tau=2), rounds=3, record=())
    >>> result.ledger.rounds, result.ledger.gradients_w.tolist()
    (3, [6, 6, 6])
    """

    eta: float | None = None
    """η, the step size."""
    prox: float | None = None
    """ρ, the strength of the pull to the last mean."""
    tau: int = static(default=5)
    """τ, the local steps in one round."""
    batch: int | None = static(default=1)
    """Rows in one sampled gradient; None takes all rows."""
    name = "fedprox"
    may_skip_messages = False
    works_with_some = True

    def __post_init__(self) -> None:
        if self.tau < 1 or (self.batch is not None and self.batch < 1):
            raise InputError(f"FedProx needs tau and batch ≥ 1: {self.tau=}, {self.batch=}.")

    def complete(self, setting: Facts) -> tuple[FedProx, str | None]:
        """ρ = 6L^w and η = 1/(L + ρ), halved on sampled rows."""
        return fill(self, stepsizes_newer.fedprox(setting.constants, setting.each(), self.batch, self.prox)), None

    def init(self, w0: Pytree) -> Pytree:
        """Start at w0."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Pytree:
        """Start at β0."""
        return beta0

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """No coins."""
        return Plan(jnp.asarray(k, jnp.int32))

    def client(
        self, plan: Plan, shared: Pytree, private: Pytree, oracle: GradientOracle, key: Key
    ) -> tuple[Pytree, Message]:
        """The local steps, from the shared w and drawn to it."""
        eta, prox = known(self.eta, self.prox)

        def step(i: jax.Array, state: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
            w, beta = state
            of_w, of_beta = oracle.gradients(w, beta, oracle.sample(randomness.at(key, i), self.batch))
            w = tree.combine((1 - eta * prox, w), (eta * prox, shared), (-eta, of_w))
            return w, tree.combine((1.0, beta), (-eta, of_beta))

        w, beta = repeat(self.tau, step, (shared, private))
        return beta, Message(w)

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """w is the mean of the w_m."""
        return mean.w

    def absent(self, plan: Plan, shared: Pytree) -> Message:
        """Who does not move stays at w."""
        return Message(shared)

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        return Message(jnp.ones_like(plan.k, dtype=bool))

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """τ batches, in both blocks."""
        return Evaluations(*2 * (self.tau * size_of_batch(self.batch, rows) + jnp.zeros_like(plan.k),))

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Pytree) -> Pytree:
        """β_m."""
        return private
