"""ASVRCD-PFL: accelerated variance-reduced block coordinate descent (Algorithm ASVRCD-PFL)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import jax

from twofold import tree
from twofold.algorithms.base import Algorithm, Evaluations, GradientOracle, Open, Setting, fill
from twofold.algorithms.svrcd import Message, Plan, coins, counts, estimate, message
from twofold.control import branch
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes
from twofold.tree import Pytree, record, static


class Triple(NamedTuple):
    """One block's sequences y and z, reference point v, and ∇F(v) in that block."""

    y: Pytree
    z: Pytree
    v: Pytree
    full: Pytree


@record
class ASVRCD(Algorithm):
    """x = θ₁z + θ₂v + (1−θ₁−θ₂)y; y⁺ = x − ηg; z⁺ = νz + (1−ν)x + (γ/η)(y⁺ − x); v⁺ = y with probability ρ.

    g is (∇f̂(x) − ∇f̂(v))/p + ∇F(v) in the drawn block and ∇F(v) in the other. The new reference point is the *old* y, so
    everything that has to be sent in an iteration is known at its start: one message with two optional parts.
    With reference="two" each block has a reference point of its own, v^w and v^β: see `asvrcd_two.ASVRCDTwo`.
    """

    eta: Open = None
    theta1: Open = None
    theta2: Open = None
    gamma: Open = None
    nu: Open = None
    rho: Open = None
    p_w: Open = None
    batch: int | None = static(default=1)
    optimal: Literal["w", "beta"] = static(default="w")
    reference: Literal["one", "two"] = static(default="one")
    name = "asvrcd"

    def __post_init__(self) -> None:
        if self.reference not in ("one", "two"):
            raise InputError(f'reference must be "one" or "two", got reference={self.reference!r}.')
        if self.reference == "two" and self.theta2 is not None:
            raise InputError(
                "With two reference points there is θ_w and θ_β: set them in ASVRCDTwo, and leave theta2 open."
            )

    def is_complete(self) -> bool:
        """Whether nothing is left for theory; with two reference points it always has θ_w and θ_β to find."""
        return self.reference == "one" and super().is_complete()

    def complete(self, setting: Setting) -> tuple[Algorithm, str | None]:
        """Theorem e1 (ρ for the optimal number of ∇_w and rounds, or of ∇_β), or tighter, where the noise is known."""
        if self.reference == "two":
            return self._two().complete(setting)
        given = {"optimal": self.optimal, "p_w": self.p_w, "rho": self.rho, "eta": self.eta, "batch": self.batch}
        values = stepsizes.asvrcd(setting.constants, setting.rows, **cast(Any, given))
        return fill(self, values), values["note"]

    def _two(self) -> Algorithm:
        """The same method with two reference points, and what the user set."""
        from twofold.algorithms.asvrcd_two import ASVRCDTwo

        steps = {name: getattr(self, name) for name in ("eta", "theta1", "gamma", "nu", "p_w")}
        return ASVRCDTwo(**steps, rho_w=self.rho, rho_beta=self.rho, batch=self.batch)

    def init(self, w0: Pytree) -> Triple:
        """y = z = v = w0; the first iteration brings ∇_wF(v)."""
        return Triple(w0, w0, w0, tree.zeros(w0))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Triple:
        """y = z = v = β0."""
        return Triple(beta0, beta0, beta0, tree.zeros(beta0))

    def plan(self, stream: jax.Array, k: Any) -> Plan:
        """The w-coin and the ρ-coin."""
        return coins(stream, k, self.p_w, self.rho)

    def client(
        self, plan: Plan, shared: Triple, private: Triple, oracle: GradientOracle, key: Key
    ) -> tuple[Triple, Message]:
        """The message, this client's own step, and its own reference point."""
        x, now = (self._mix(shared), self._mix(private)), (shared.y, private.y)
        sent, own = message(plan, x, (shared.v, private.v), now, oracle, oracle.sample(key, self.batch))
        y, z = self._step(private, x[1], estimate(~plan.w, own, private.full, 1 - self.p_w))
        v, full = branch(
            plan.refresh, lambda: (private.y, oracle.gradient_beta(*now)), lambda: (private.v, private.full)
        )
        return Triple(y, z, v, full), sent

    def server(self, plan: Plan, shared: Triple, mean: Message) -> Triple:
        """The same step on w; on a silent iteration it uses nothing of the message."""
        gradient = estimate(plan.w, mean.difference, shared.full, self.p_w)
        y, z = self._step(shared, self._mix(shared), gradient)
        v, full = tree.select(plan.refresh, (shared.y, mean.full), (shared.v, shared.full))
        return Triple(y, z, v, full)

    def _mix(self, s: Triple) -> Pytree:
        rest = 1 - self.theta1 - self.theta2
        return tree.combine((self.theta1, s.z), (self.theta2, s.v), (rest, s.y))

    def _step(self, s: Triple, x: Pytree, gradient: Pytree) -> tuple[Pytree, Pytree]:
        y = tree.combine((1.0, x), (-self.eta, gradient))
        # (γ/η)(y⁺ − x) = −γg, written without the cancellation.
        z = tree.combine((self.nu, s.z), (1 - self.nu, x), (-self.gamma, gradient))
        return y, z

    def sends(self, plan: Plan) -> Message:
        """The difference with the w-coin, the full gradient with the ρ-coin."""
        return Message(plan.w, plan.refresh)

    def evaluations(self, plan: Plan, rows: Any) -> Evaluations:
        """Two batches in the drawn block, and all rows of both blocks on a refresh."""
        return counts(plan, self.batch, rows)

    def model(self, shared: Triple) -> Pytree:
        """The sequence y."""
        return shared.y

    def personal(self, private: Triple) -> Pytree:
        """The sequence y."""
        return private.y
