"""pFedMe: personalised federated learning with Moreau envelopes (Dinh et al. 2020, Algorithm 1)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from twofold import randomness, tree
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill, size_of_batch
from twofold.algorithms.descent import local_steps, rows_of
from twofold.algorithms.fields import known
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import check_rate, check_whole
from twofold.control import repeat
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["Message", "PFedMe"]

_Models: TypeAlias = tuple[Pytree, Pytree]  # w_m and θ_m


class Message(NamedTuple):
    """w_m after the local rounds."""

    w: Pytree


@record
class PFedMe(Algorithm):
    """R local rounds: θ ≈ argmin f̂_m(θ) + (λ/2)‖θ − w_m‖² by K gradient steps, w_m −= ηλ(w_m − θ); then w ← mean.

    It solves the mixture only (through its Moreau envelope in w). The server keeps (1−δ)w + δ·mean, where δ is the paper's β.
    With R = 1, all rows and many inner steps it is gradient descent on the envelope. Otherwise it stops short of the optimum,
    because of inexact inner steps, sampling and local drift.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.PFedMe(local_rounds=2), rounds=3, record=())
    >>> round(result.algorithm.eta, 3), result.ledger.rounds
    (1.0, 3)
    """

    eta: float | None = None  # η, the step of w_m
    inner_eta: float | None = None  # the step of θ
    lam: float | None = None  # λ, the strength of the mixture's penalty
    delta: float = 1.0  # δ, how far the server moves towards the mean of the w_m
    local_rounds: int = static(default=20)  # R, the local rounds in one round of communication
    inner_steps: int = static(default=5)  # K, the gradient steps on θ in one local round
    batch: int | None = static(default=20)  # rows in one sampled gradient; None takes all rows
    epochs: int | None = static(default=None)  # reshuffled passes, with a local round for each batch, instead of R
    drop_last: bool = static(default=False)  # leave out the last batch of an epoch if it is shorter
    name = "pfedme"
    corrects = frozenset[str]()
    may_skip_messages = False
    works_with_some = True
    needs = "mixture"

    def __post_init__(self) -> None:
        check_whole(self, "local_rounds", "inner_steps", "epochs")
        for name in ("eta", "inner_eta"):
            if callable(getattr(self, name)):  # numbers are looked at where theory has filled them in
                check_rate("pFedMe", name, getattr(self, name), schedule=False)

    @property
    def carries_state(self) -> bool:
        """Always: a net's state is kept in θ."""
        return True

    def complete(self, facts: Facts) -> tuple[PFedMe, str | None]:
        """η = 1/(λR), and the inner step 1/(𝓛'+λ)."""
        if facts.lam is None or facts.loss is None:
            raise InputError("pFedMe's steps need λ and the loss's constants: it solves the mixture objective only.")
        values = stepsizes.pfedme(facts.lam, facts.loss, self.local_rounds)
        return fill(self, {**values, "lam": facts.lam}), None

    def init(self, w0: Pytree) -> Pytree:
        """Start at w0."""
        return w0

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Pytree:
        """θ = β0."""
        return beta0

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """There are no coins, only the round number."""
        return Plan(jnp.asarray(k, jnp.int32))

    def client(
        self, plan: Plan, shared: Pytree, private: Pytree, oracle: GradientOracle, key: Key
    ) -> tuple[Pytree, Message]:
        """The local rounds, from the shared w and the client's own θ."""
        eta, inner_eta, lam = known(self.eta, self.inner_eta, self.lam)

        def local_round(sample: Sampled, state: _Models) -> _Models:
            w, theta = state

            def inner(_: jax.Array, theta: Pytree) -> Pytree:
                # The oracle's gradient has the factor p_m; the inner problem does not.
                gradient = tree.unscale(oracle.weight, oracle.gradient_beta(w, theta, sample))
                return tree.move(theta, tree.scale(-inner_eta, tree.learned(gradient)), gradient)

            theta = repeat(self.inner_steps, inner, theta)
            pull = tree.subtract(w, tree.unscale(oracle.scale, theta))
            return tree.combine((1.0, w), (-eta * lam, pull)), theta

        def with_draw(r: jax.Array, state: _Models) -> _Models:
            drawn = oracle.sample(randomness.at(key, r), self.batch, uniform=True)
            return local_round(oracle.trained_on(drawn, randomness.at(randomness.at(key, r), 0)), state)

        if self.epochs is None:
            w, theta = repeat(self.local_rounds, with_draw, (shared, private))
        else:
            w, theta = local_steps(self, oracle, key, local_round, (shared, private))
        return theta, Message(w)

    def server(self, plan: Plan, shared: Pytree, mean: Message) -> Pytree:
        """(1−δ)w + δ·mean."""
        return tree.combine((1 - self.delta, shared), (self.delta, mean.w))

    def absent(self, plan: Plan, shared: Pytree) -> Message:
        """An absent client counts as staying at w."""
        return Message(shared)

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        return Message(jnp.ones_like(plan.k, dtype=bool))

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """R·K batches in β; the step on w needs no data."""
        rows = self.local_rounds * size_of_batch(self.batch, rows) if self.epochs is None else rows_of(self, rows)
        each = jnp.asarray(self.inner_steps * rows) + jnp.zeros_like(plan.k)
        return Evaluations(jnp.zeros_like(each), each)

    def model(self, shared: Pytree) -> Pytree:
        """w."""
        return shared

    def personal(self, private: Pytree) -> Pytree:
        """θ_m."""
        return private
