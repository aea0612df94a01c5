"""The paper's synthetic data, number for number, from NumPy's legacy generator with the published seed.

The recipes are those of the published runs, which differ from the paper's text in two places: labels are 1 with
probability 1 / (1 + exp(-βᵀx)), and the mixture's penalty is λ = 10⁻²/σ_h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twofold.errors import InputError

__all__ = [
    "MIXTURE_SIGMAS", "PAPER_SEED", "WEIGHT_SHARING_SIGMAS", "PaperConstants", "SyntheticData", "mixture",
    "paper_constants", "weight_sharing",
]  # fmt: skip

PAPER_SEED = 111
MIXTURE_SIGMAS = (0.1, 0.3, 1.0)
WEIGHT_SHARING_SIGMAS = (5.0, 10.0, 15.0)


@dataclass(frozen=True, eq=False)
class SyntheticData:
    """Generated clients together with the true parameters that they were generated from.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.weight_sharing(5.0, clients=3, rows=4, shared_features=2, own_features=1)
    >>> made.parameters.shape, made.kind
    ((3, 3), 'weight_sharing')
    """

    clients: list[tuple[NDArray[np.float64], NDArray[np.int32]]]  # (X, y) with labels 0 and 1
    w_star: NDArray[np.float64]
    beta_star: NDArray[np.float64]  # (clients, features of β)
    lam: float  # the penalty λ that the paper uses with this data
    sigma_h: float  # the heterogeneity σ_h
    kind: Literal["mixture", "weight_sharing"] = "mixture"

    @property
    def parameters(self) -> NDArray[np.float64]:
        """Each client's true coefficients, one row per client: β*_m, or (w*, β*_m) for weight sharing."""
        if self.kind == "mixture":
            return self.beta_star
        return np.hstack([np.tile(self.w_star, (len(self.beta_star), 1)), self.beta_star])


@dataclass(frozen=True)
class PaperConstants:
    """The constants of one client's loss from which the paper's step sizes were computed.

    >>> from twofold.data.synthetic import PaperConstants
    >>> PaperConstants(mu=0.01, smoothness=0.25).mu
    0.01
    """

    mu: float  # μ', the strong convexity
    smoothness: float  # 𝓛', of a single sample


def mixture(
    sigma_h: float, clients: int = 20, rows: int = 1000, features: int = 15, seed: int = PAPER_SEED
) -> SyntheticData:
    """Data for the mixture objective (the paper's section on multi-task FL and implicit MAML, with synthetic data).

    w* ~ U[0.49, 0.51]; β*_m = w* + U[μ_m − 0.01, μ_m + 0.01] with μ_m ~ N(0, σ_h²); x ~ U[0.2, 0.5]. The paper has
    σ_h = 0.1, 0.3 and 1.0. The true w* is the same for all σ_h, and so are the generator's draws up to scale.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=1.0, clients=3, rows=8, features=2)
    >>> len(made.clients), made.clients[0][0].shape, made.lam
    (3, (8, 2), 0.01)
    """
    _check(sigma_h, clients, rows, features=features)
    w_star = np.random.RandomState(seed).uniform(0.49, 0.51, features)
    random = np.random.RandomState(seed)  # the published runs reset the seed before they draw the clients
    means = random.normal(0.0, sigma_h, clients)
    beta_star = np.stack([w_star + random.uniform(mean - 0.01, mean + 0.01, features) for mean in means])
    data = [_labelled(random, 0.2, 0.5, rows, beta) for beta in beta_star]
    return SyntheticData(data, w_star, beta_star, 1e-2 / sigma_h, sigma_h, "mixture")


def weight_sharing(
    sigma_h: float,
    clients: int = 20,
    rows: int = 1000,
    shared_features: int = 10,
    own_features: int = 5,
    seed: int = PAPER_SEED,
) -> SyntheticData:
    """Data for the weight sharing objective (the paper's section on explicit weight sharing, with synthetic data).

    w* ~ N(0, 1) multiplies the first `shared_features` columns, and β*_m ~ U[μ_m − 0.01, μ_m + 0.01] with μ_m ~ N(0, σ_h²) the
    `own_features` after them; x ~ U[0, 0.1]. The paper has σ_h = 5, 10 and 15. There is no penalty, so λ = 0.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.weight_sharing(5.0, clients=3, rows=4, shared_features=2, own_features=1)
    >>> made.w_star.shape, made.beta_star.shape
    ((2,), (3, 1))
    """
    _check(sigma_h, clients, rows, shared_features=shared_features, own_features=own_features)
    w_star = np.random.RandomState(seed).normal(0.0, 1.0, shared_features)
    random = np.random.RandomState(seed)  # the published runs reset the seed before they draw the clients
    means = random.normal(0.0, sigma_h, clients)
    beta_star = np.stack([random.uniform(mean - 0.01, mean + 0.01, own_features) for mean in means])
    data = [_labelled(random, 0.0, 0.1, rows, np.concatenate([w_star, beta])) for beta in beta_star]
    return SyntheticData(data, w_star, beta_star, 0.0, sigma_h, "weight_sharing")


def paper_constants(data: SyntheticData) -> PaperConstants:
    """Compute the μ' and 𝓛' that the published runs used on this data; they reproduce the curves but guarantee nothing.

    μ' is the smallest eigenvalue of 1/(nM) Σ_m Σ_i σ(1−σ) x xᵀ, the curvature of the logistic loss at the true parameters, pooled
    over clients. It is not a bound at other parameters, nor for single clients. The paper states it for the mixture only; for
    weight sharing, this function uses the same formula at (w*, β*_m).

    𝓛' is max‖x‖/4 for the mixture and max‖x‖ for weight sharing, over all rows of all clients. Neither is the smoothness of the
    logistic loss, which is max‖x‖²/4. (For weight sharing the published runs are said to have used "about 0.29". That is the
    largest row norm of the first client alone, 0.2914; over all clients it is 0.3154.)

    >>> import twofold as tw
    >>> found = tw.data.synthetic.paper_constants(
    ...     tw.data.synthetic.mixture(sigma_h=0.1, clients=2, rows=50, features=2)
    ... )
    >>> 0 < found.mu < found.smoothness < 0.2
    True
    """
    hessian = np.zeros((data.parameters.shape[1],) * 2)
    largest = 0.0
    total = sum(len(y) for _, y in data.clients)
    for (x, _), truth in zip(data.clients, data.parameters, strict=True):
        probability = _sigmoid(x @ truth)
        hessian += (x * (probability * (1 - probability))[:, None]).T @ x / total
        largest = max(largest, float(np.sqrt(np.max(np.sum(x * x, axis=1)))))
    mu = float(np.linalg.eigvalsh(hessian)[0])
    return PaperConstants(mu, largest / 4 if data.kind == "mixture" else largest)


def _labelled(
    random: np.random.RandomState, low: float, high: float, rows: int, truth: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    x = random.uniform(low, high, (rows, len(truth)))
    return x, random.binomial(1, _sigmoid(x @ truth)).astype(np.int32)


def _sigmoid(t: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # exp of a large number overflows to infinity, and the sigmoid is then correctly 0
        return 1.0 / (1.0 + np.exp(-t))


def _check(sigma_h: float, clients: int, rows: int, **features: int) -> None:
    if not (np.isfinite(sigma_h) and sigma_h > 0):
        raise InputError(f"the heterogeneity sigma_h must be positive, but is {sigma_h=}")
    for name, value in {"clients": clients, "rows": rows, **features}.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, but is {value}")
