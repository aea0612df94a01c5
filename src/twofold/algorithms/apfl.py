"""APFL with a learned blend of the shared model and a private one (Deng et al. 2020, Algorithm 1)."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from twofold import tree
from twofold.algorithms.base import GradientOracle
from twofold.algorithms.descent import local_steps, rule
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Message, Personal, Training
from twofold.randomness import Key
from twofold.tree import Pytree, blend, record

__all__ = ["APFL"]


@record
class APFL(Training):
    """w_m −= lr·∇f'(w_m), v_m −= lr·∇_v f'(b_m) with the blend b_m = (1−α_m)v_m + α_m w_m; then w = mean of the w_m.

    Both steps use the same batch. α_m changes once a round, with the first batch: α_m −= lr·⟨∇f'(b_m), w_m − v_m⟩, clipped to
    [0, 1]. It runs on `objectives.blended`, whose β is (v, α): F = Λ·mean f'(w) + mean f'(blend). It is not a descent method for F,
    because the step on w ignores the blend. (The APFL paper's α is 1 − α here.)

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.blended(tw.losses.logistic()), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.APFL(lr=0.5, batch=4), rounds=3, record=())
    >>> result.beta["model"].shape, bool((result.beta["alpha"] != 0.5).all())
    ((3, 2), True)
    """

    name = "apfl"
    needs = "blended"

    def client(
        self, plan: Plan, shared: Pytree, private: Personal, oracle: GradientOracle, key: Key
    ) -> tuple[Personal, Message]:
        """The local steps of both models."""
        (w, beta), found = oracle.outward(shared, private.beta), rule(self, plan.k)
        memory = private.memory if self.keep else found.begin(w, beta)

        def step(sample: Sampled, state: Pytree) -> Pytree:
            (w, beta), memory, first = state
            v, alpha = beta["model"], beta["alpha"]
            slope = oracle.loss_gradient(blend(alpha, v, w), sample, "beta")
            apart = tree.subtract(tree.learned(w), tree.learned(v))
            of_alpha = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, tree.learned(slope), apart)), jnp.zeros(()))
            of_beta = {"model": tree.scale_learned(1 - alpha, slope), "alpha": jnp.where(first, of_alpha, 0.0)}
            (w, beta), memory = found.step((w, beta), (oracle.loss_gradient(w, sample, "w"), of_beta), memory)
            beta = {**beta, "alpha": jnp.clip(beta["alpha"], 0.0, 1.0)}
            return (w, beta), memory, jnp.zeros((), bool)

        (w, beta), memory, _ = local_steps(self, oracle, key, step, ((w, beta), memory, jnp.ones((), bool)))
        w, beta = oracle.inward(w, beta)
        return Personal(beta, memory if self.keep else ()), Message(w)
