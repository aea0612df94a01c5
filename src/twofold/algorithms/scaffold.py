"""Scaffold: local steps with control variates against client drift (Karimireddy et al. 2020, option II)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import NDArray

from twofold import tree
from twofold.algorithms.base import GradientOracle
from twofold.algorithms.descent import rule, steps_of, trained
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Training
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.tree import Pytree, record

__all__ = ["Scaffold"]


class Shared(NamedTuple):
    """w, and the mean c of all clients' control variates."""

    w: Pytree
    control: Pytree


class Private(NamedTuple):
    """β_m, and the client's control variate c_m."""

    beta: Pytree
    control: Pytree


class Message(NamedTuple):
    """w_m after the local steps, and the change of c_m times q_m, the client's probability of taking part."""

    w: Pytree
    control: Pytree


@record
class Scaffold(Training):
    """w_m −= lr·(∇_w f̂_m + c − c_m), β_m −= lr_beta·∇_β f̂_m; then c_m += (w − w_m)/(lr·steps) − c, and w and c are the means.

    It minimises the problem's F (on `traditional` that is mean f'(w), as for FedAvg), without FedAvg's drift towards each client's
    own optimum. A round sends both w and c, twice as much as FedAvg. If only some clients take part, c stays the mean of all c_m,
    including those of absent clients.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(
    ...     problem, tw.algorithms.Scaffold(lr=0.5, batch=None, tau=3, epochs=None), rounds=200, record="gap"
    ... )
    >>> bool(result.history["gap"][-1] < 1e-12)
    True
    """

    q: float | NDArray[np.float64] | None = None  # q_m, one for all or one each; from `participation=`
    name = "scaffold"
    needs_unbiased = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer is not None:
            raise InputError("Scaffold's control variates need plain gradient steps: give lr= and no optimizer.")
        lr: Any = self.lr
        first: Any = cast(Any, lr)(0) if callable(lr) else lr
        if first is not None and not isinstance(first, Tracer) and float(first) == 0:
            raise InputError(
                "Scaffold divides by its learning rate, so lr must be above 0 in every round, got 0 in round 0."
            )

    def among(self, chances: NDArray[np.float64] | None) -> Scaffold:
        """Store each client's probability of taking part: means over participants are divided by it, and c must not be."""
        same = chances is not None and bool(np.all(chances == chances[0]))
        return dataclasses.replace(self, q=float(chances[0]) if chances is not None and same else chances)

    def _chance(self, position: Any) -> Any:
        """q_m of one client."""
        q: Any = jnp.asarray(1.0 if self.q is None else self.q)
        return q[position] if q.ndim else q

    def init(self, w0: Pytree) -> Shared:
        """Start at w0, with c = 0."""
        return Shared(w0, tree.zeros(tree.learned(w0)))

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Private:
        """Start at β0, with c_m = 0."""
        return Private(beta0, tree.zeros(tree.learned(w0)))

    def client(
        self, plan: Plan, shared: Shared, private: Private, oracle: GradientOracle, key: Key
    ) -> tuple[Private, Message]:
        """The local steps, and the new control variate."""
        begun, rate = oracle.outward(shared.w, private.beta), rule(self, plan.k).rates[0]
        drift = tree.subtract(shared.control, private.control)

        def gradients(w: Pytree, beta: Pytree, sample: Sampled) -> tuple[Pytree, Pytree]:
            of_w, of_beta = oracle.plain_gradients(w, beta, sample)
            return tree.step(of_w, 1.0, drift), of_beta

        w, beta, _ = trained(self, plan, begun, (), oracle, key, gradients)
        moved = tree.subtract(tree.learned(begun[0]), tree.learned(w))
        change = tree.combine((1 / (rate * steps_of(self, oracle.count)), moved), (-1.0, shared.control))
        w, beta = oracle.inward(w, beta)
        control = tree.combine((1.0, private.control), (1.0, change))
        return Private(beta, control), Message(w, tree.scale(self._chance(oracle.position), change))

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """w is the mean of the w_m, c is the mean of the c_m."""
        return Shared(mean.w, tree.combine((1.0, shared.control), (1.0, mean.control)))

    def absent(self, plan: Plan, shared: Shared) -> Message:
        """An absent client counts as staying at w and keeping c_m."""
        return Message(shared.w, tree.zeros(shared.control))

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        yes = jnp.ones_like(plan.k, dtype=bool)
        return Message(yes, yes)

    def model(self, shared: Shared) -> Pytree:
        """w."""
        return shared.w
