"""# An algorithm of your own

An algorithm is a few pure functions around one message: what leaves a client is what `client` returns, and nothing else. This
one is gradient descent on both blocks at once. These lines are enough to run it in every engine and with many seeds, with an
exact ledger, and to plot it beside every other method.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

import twofold as tw
from twofold import tree
from twofold.algorithms.base import Algorithm, Evaluations, fill


class Plan(NamedTuple):
    k: Any  # coins that all share would go here


class Message(NamedTuple):
    gradient: Any  # this leaves a client, and nothing else


@tw.register
@tree.record
class GradientDescent(Algorithm):
    """w −= η mean ∇w f_m, β_m −= η p_m ∇β f_m."""

    eta: float | None = None  # None: theory decides, in `complete`
    name = "gradient_descent"

    def complete(self, facts):
        return fill(self, {"eta": 1 / (facts.constants.L_w + facts.constants.L_beta)}), None

    def init(self, w0):  # what everyone knows
        return w0

    def init_private(self, w0, beta0, oracle):  # what one client alone knows
        return beta0

    def plan(self, stream, k):
        return Plan(jnp.asarray(k, jnp.int32))

    def client(self, plan, shared, private, oracle, key):
        of_w, of_beta = oracle.gradients(shared, private)  # of_beta carries its p_m already
        return tree.combine((1.0, private), (-self.eta, of_beta)), Message(of_w)

    def server(self, plan, shared, mean):
        return tree.combine((1.0, shared), (-self.eta, mean.gradient))

    def sends(self, plan):  # drives the ledger: every iteration sends its gradient
        return Message(jnp.ones_like(plan.k, dtype=bool))

    def evaluations(self, plan, rows):  # single-row gradients in w and in β
        return Evaluations(rows, rows)

    def model(self, shared):
        return shared

    def personal(self, private):
        return private


made = tw.data.synthetic.mixture(sigma_h=0.3, clients=6, rows=30, features=4)
objective = tw.objectives.mixture(tw.losses.logistic(l2=0.05), lam=0.2)
problem = tw.Problem(objective, tw.Clients.from_list(made.clients))
runs = {name: tw.solve(problem, name, rounds=60) for name in ("gradient_descent", "acd")}
slow = tw.solve(problem, "gradient_descent", rounds=60, engine="messages")  # client by client, nothing but messages
print("sent by each client:", runs["gradient_descent"].ledger.bytes_up, "bytes")
print("the two engines differ by", abs(runs["gradient_descent"].history["loss"][-1] - slow.history["loss"][-1]))
figure = tw.plot(runs, problem, title="Plain and accelerated")
