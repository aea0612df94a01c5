"""Scaffold: local steps with control variates against client drift (Karimireddy et al. 2020, option II)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from twofold import tree
from twofold.algorithms.base import GradientOracle
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Training, rule, steps_of, trained
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.tree import Pytree, record

__all__ = ["Scaffold"]


class Shared(NamedTuple):
    """w, and the mean c of everyone's control variates."""

    w: Pytree
    control: Pytree


class Private(NamedTuple):
    """β_m, and the client's control variate c_m."""

    beta: Pytree
    control: Pytree


class Message(NamedTuple):
    """w_m after the local steps, and by how much c_m has changed."""

    w: Pytree
    control: Pytree


@record
class Scaffold(Training):
    """w_m −= lr·(∇_w f̂_m + c − c_m), β_m −= lr_beta·∇_β f̂_m; then c_m += (w − w_m)/(lr·steps) − c, w and c are the means.

    It minimises the problem's own F (of `traditional`: mean f'(w), as FedAvg does), without FedAvg's drift towards each client's own
    optimum. A round sends w and c: twice as much.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(
    ...     problem, tw.algorithms.Scaffold(lr=0.5, batch=None, tau=3, epochs=None), rounds=200, record="gap"
    ... )
    >>> bool(result.history["gap"][-1] < 1e-12)
    True
    """

    name = "scaffold"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer is not None:
            raise InputError("Scaffold's control variates are made of plain steps: give lr= and no optimizer.")

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
        return Private(beta, tree.combine((1.0, private.control), (1.0, change))), Message(w, change)

    def server(self, plan: Plan, shared: Shared, mean: Message) -> Shared:
        """w is the mean of the w_m, c that of the c_m."""
        return Shared(mean.w, tree.combine((1.0, shared.control), (1.0, mean.control)))

    def absent(self, plan: Plan, shared: Shared) -> Message:
        """Who does not move stays at w and keeps c_m."""
        return Message(shared.w, tree.zeros(shared.control))

    def sends(self, plan: Plan) -> Message:
        """Every round sends."""
        return Message(*2 * (jnp.ones_like(plan.k, dtype=bool),))

    def model(self, shared: Shared) -> Pytree:
        """w."""
        return shared.w
