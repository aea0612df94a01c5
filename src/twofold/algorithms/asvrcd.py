"""ASVRCD-PFL: accelerated variance-reduced block coordinate descent (Algorithm ASVRCD-PFL)."""

from __future__ import annotations

from typing import Literal

import jax
from jax.typing import ArrayLike

from twofold import tree
from twofold.algorithms import floors, rated
from twofold.algorithms.base import Algorithm, Evaluations, Facts, GradientOracle, fill
from twofold.algorithms.fields import Batch, drawn, known, settle
from twofold.algorithms.variance_reduction import Message, Plan, Triple, coins, counts, estimate, message, mix, move
from twofold.control import branch
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static

__all__ = ["ASVRCD"]


@record
class ASVRCD(Algorithm):
    """x = θ₁z + θ₂v + (1−θ₁−θ₂)y; y⁺ = x − ηg; z⁺ = νz + (1−ν)x + (γ/η)(y⁺ − x); v⁺ = y with probability ρ.

    g is (∇f̂(x) − ∇f̂(v))/p + ∇F(v) in the drawn block and ∇F(v) in the other. The new reference point is the *old* y, so all
    that an iteration sends can be computed at its start: one message with two optional parts. With reference="two" each
    block has its own reference point, v^w and v^β: see `asvrcd_two.ASVRCDTwo`.

    >>> import twofold as tw
    >>> clients = tw.Clients.from_list(tw.data.synthetic.mixture(0.3, clients=3, rows=8, features=2).clients)
    >>> problem = tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.5), clients)
    >>> result = tw.solve(problem, tw.algorithms.ASVRCD(), rounds=3, record=())
    >>> 0 < result.algorithm.theta2 < 1, result.ledger.rounds
    (True, 3)
    """

    eta: float | None = None  # η, the step of y
    theta1: float | None = None  # θ₁, the weight of z in x
    theta2: float | None = None  # θ₂, the weight of v in x
    gamma: float | None = None  # γ, the step of z
    nu: float | None = None  # ν, how much of itself z keeps in a step
    rho: float | None = None  # ρ, the probability of a new reference point, which costs a full gradient
    p_w: float | None = None  # the probability that an iteration's sample is for w
    batch: Batch = static(default="auto")  # rows in one sampled gradient; None: all rows, "auto": the cheapest number
    optimal: Literal["w", "beta"] = static(default="w")  # the block whose number of gradients theory's ρ minimises
    reference: Literal["one", "two"] = static(
        default="one"
    )  # one reference point for both blocks, or two, one for each
    name = "asvrcd"
    corrects = frozenset({"sampling"})
    rate = rated.asvrcd
    floor = floors.asvrcd

    def __post_init__(self) -> None:
        settle(self)
        if self.reference not in ("one", "two"):
            raise InputError(f'reference must be "one" or "two", got reference={self.reference!r}.')
        if self.reference == "two" and self.theta2 is not None:
            raise InputError(
                "With two reference points, θ_w and θ_β take the place of theta2: leave it out, or set them in ASVRCDTwo."
            )

    def is_complete(self) -> bool:
        """Whether nothing is left for theory to fill in; with two reference points, θ_w and θ_β always are."""
        return self.reference == "one" and super().is_complete()

    def complete(self, facts: Facts) -> tuple[Algorithm, str | None]:
        """Theorem e1's steps (ρ for the optimal number of ∇_w and rounds, or of ∇_β), or tighter ones if the noise is known."""
        if self.reference == "two":
            return self._two().complete(facts)
        values = stepsizes.asvrcd(
            facts.constants,
            facts.rows,
            self.optimal,
            p_w=self.p_w,
            rho=self.rho,
            eta=self.eta,
            batch=self.batch,
            **facts.prices,
        )
        return fill(self, values), values["note"]

    def _two(self) -> Algorithm:
        """The same method with two reference points, keeping what the user set."""
        from twofold.algorithms.asvrcd_two import ASVRCDTwo

        steps = {name: getattr(self, name) for name in ("eta", "theta1", "gamma", "nu", "p_w")}
        return ASVRCDTwo(**steps, rho_w=self.rho, rho_beta=self.rho, batch=self.batch)

    def init(self, w0: Pytree) -> Triple:
        """y = z = v = w0; the first iteration computes ∇_wF(v)."""
        return Triple(w0, w0, w0, tree.zeros(w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Triple:
        """y = z = v = β0."""
        return Triple(beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: int | jax.Array) -> Plan:
        """Toss the w-coin and the ρ-coin."""
        p_w, rho = known(self.p_w, self.rho)
        return coins(stream, k, p_w, rho)

    def client(
        self, plan: Plan, shared: Triple, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """The message, this client's own step, and its own reference point."""
        (p_w,) = known(self.p_w)
        x, now = (self._mix(shared), self._mix(private)), (shared.y, private.y)
        sent, own = message(plan, x, (shared.v, private.v), now, oracle, oracle.sample(key, drawn(self.batch)))
        y, z = self._step(private, x[1], estimate(~plan.w, own, private.full, 1 - p_w))
        v, full = branch(
            plan.refresh, lambda: (private.y, oracle.gradient_beta(*now)), lambda: (private.v, private.full)
        )
        return Triple(y, z, v, full), sent

    def server(self, plan: Plan, shared: Triple, mean: Message) -> Triple:
        """The same step on w; it uses only those parts of the message that were sent."""
        (p_w,) = known(self.p_w)
        gradient = estimate(plan.w, mean.difference, shared.full, p_w)
        y, z = self._step(shared, self._mix(shared), gradient)
        v, full = tree.select(plan.refresh, (shared.y, mean.full), (shared.v, shared.full))
        return Triple(y, z, v, full)

    def _mix(self, s: Triple) -> Pytree:
        return mix(s, *known(self.theta1, self.theta2))

    def _step(self, s: Triple, x: Pytree, gradient: Pytree) -> tuple[Pytree, Pytree]:
        return move(s, x, gradient, *known(self.eta, self.nu, self.gamma))

    def sends(self, plan: Plan) -> Message:
        """The difference with the w-coin, the full gradient with the ρ-coin."""
        return Message(plan.w, plan.refresh)

    def evaluations(self, plan: Plan, rows: ArrayLike) -> Evaluations:
        """Two batches in the drawn block, and all rows in both blocks on a refresh."""
        return counts(plan.w, plan.refresh, drawn(self.batch), rows)

    def model(self, shared: Triple) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Triple) -> Pytree:
        """The sequence y."""
        return private.y
