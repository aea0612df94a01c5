"""APFL with a learned blend of the shared model and a private one (Deng et al. 2020, Algorithm 1)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from twofold import tree
from twofold.algorithms.base import GradientOracle
from twofold.algorithms.descent import at_round, local_steps, rule
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Message, Personal, Rate, Training
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.tree import Pytree, blend, record

__all__ = ["APFL"]


@record
class APFL(Training):
    """w_m −= lr·∇f'(w_m), v_m −= lr·∇_v f'(b_m) with the blend b_m = (1−α_m)v_m + α_m w_m; then w = mean of the w_m.

    Both steps use the same batch. α_m changes once a round, with the first batch: α_m −= lr_alpha·⟨∇f'(b_m), w_m − v_m⟩, clipped
    to [0, 1], with lr_alpha = lr_beta = lr by default. An optimizer steps w_m and v_m only: α's step stays plain, so lr_alpha must then
    be given. It runs on `objectives.blended`, whose β is (v, α): F = Λ·mean f'(w) + mean f'(blend). It is not a descent method for F,
    because the step on w ignores the blend. (The APFL paper's α is 1 − α here.)

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.blended(tw.losses.logistic()), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.APFL(lr=0.5, batch=4), rounds=3, record=())
    >>> result.beta["model"].shape, bool((result.beta["alpha"] != 0.5).all())
    ((3, 2), True)
    """

    lr_alpha: Rate | None = None  # of α, if it differs; needed beside an optimizer, which does not step α
    name = "apfl"
    needs = "blended"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer is not None and self.lr_alpha is None:
            raise InputError(
                "APFL's optimizer steps the two models, but not α, whose steps are plain: give their rate too, as in lr_alpha=0.005."
            )

    def init_private(self, w0: Pytree, beta0: Pytree, oracle: GradientOracle) -> Personal:
        """Start at β0, with the optimiser's initial state for both models, but not for α, if it is kept."""
        w, beta = oracle.outward(w0, beta0)
        return Personal(beta0, rule(self, 0).begin(w, beta["model"]) if self.keep else ())

    def client(
        self, plan: Plan, shared: Pytree, private: Personal, oracle: GradientOracle, key: Key
    ) -> tuple[Personal, Message]:
        """The local steps of both models."""
        (w, beta), found = oracle.outward(shared, private.beta), rule(self, plan.k)
        memory = private.memory if self.keep else found.begin(w, beta["model"])
        of_alpha = found.rates[1] if self.lr_alpha is None else at_round(self.lr_alpha, plan.k)

        def step(sample: Sampled, state: Pytree) -> Pytree:
            (w, v), alpha, memory, first = state
            slope = oracle.loss_gradient(blend(alpha, v, w), sample, "beta")
            apart = tree.subtract(tree.learned(w), tree.learned(v))
            slant = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, tree.learned(slope), apart)), jnp.zeros(()))
            gradients = oracle.loss_gradient(w, sample, "w"), tree.scale_learned(1 - alpha, slope)
            new, memory = found.step((w, v), gradients, memory)
            return (
                new,
                jnp.where(first, jnp.clip(alpha - of_alpha * slant, 0.0, 1.0), alpha),
                memory,
                jnp.zeros((), bool),
            )

        begun = (w, beta["model"]), beta["alpha"], memory, jnp.ones((), bool)
        (w, v), alpha, memory, _ = local_steps(self, oracle, key, step, begun)
        w, beta = oracle.inward(w, {**beta, "model": v, "alpha": alpha})
        return Personal(beta, memory if self.keep else ()), Message(w)
