"""The meaning of keys that are arguments of losses, objectives, algorithms and partitioners.

A key without an entry works just as well. A text in the signature takes precedence: `Annotated[float, "text"]`.
"""

from __future__ import annotations

__all__ = ["MEANINGS"]

MEANINGS = {
    "Lambda": "Λ, the weight of the shared model's own loss; inf for the original two-stage problem",
    "adaptive.alpha": "α, the share of the shared model in the blend: one number, or one for each client",
    "flix.alpha": "α, the share of the shared model in the blend: one number, or one for each client",
    "alone": "each client's own minimiser, with a leading client axis; computed first if not given",
    "maml.alpha": "α, the step from the shared starting point to a client's model",
    "dirichlet.alpha": "α, the concentration: small gives each label to few clients",
    "average": "report the weighted average of iterates",
    "batch": "rows in a sampled gradient",
    "classes": "the number of classes; taken from the data if not given",
    "clients": "the number of clients",
    "delta": "the server keeps (1−δ)w + δ·mean",
    "epochs": "passes over each client's rows in a round, instead of tau",
    "eta": "η, the step size",
    "exponent": "client r gets a share proportional to r^−exponent",
    "gamma": "γ, the step of z",
    "inner_eta": "the step size of the inner problem",
    "inner": "local steps on β each time a client takes part",
    "inner_steps": "steps on the inner problem",
    "intercept": "add a constant feature",
    "l2": "the ridge (l2/2)‖·‖², which makes logistic and softmax strongly convex",
    "labels_per_client": "how many labels each client has",
    "lam": "λ, the penalty towards the shared model",
    "level": "a client that has reached an equal share of all rows gets no rows of the remaining labels",
    "local_rounds": "local rounds in a round of communication",
    "min_rows": "the fewest rows of a client",
    "mu": "μ, the strong convexity",
    "nu": "ν, the momentum",
    "optimal": "which number ρ minimises: that of ∇w (and rounds), or that of ∇β",
    "p_w": "the probability of an iteration in w, which communicates",
    "prox": "ρ, the pull of a client's model towards the last mean",
    "private": "columns of the private predictor; all if not given",
    "rho": "ρ, the probability of a new reference point",
    "shared": "columns of the shared predictor; all if not given",
    "split": "which weights are shared: the first k rows, or the names of parts of the model (weight, bias)",
    "tau": "τ, local steps in a round",
    "test": "the share of each client's rows that is held out",
    "by_labels.test": "test rows of each client",
    "theta": "θ, the momentum",
    "train": "training rows of each client",
    "tries": "how often to redraw when a client has too few rows",
}
"""By key, or by "kind.key" if a key means different things in different kinds."""
