"""FedProx: local steps on f_m with a pull towards the last mean (Li et al. 2020)."""
# JAX leaves parts of jax.numpy's signatures (`device=`) untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from twofold import tree
from twofold.algorithms.base import Facts, GradientOracle, fill
from twofold.algorithms.descent import local_steps, pulled, trained
from twofold.algorithms.fields import known
from twofold.algorithms.local import Plan
from twofold.algorithms.oracle import Sampled
from twofold.algorithms.training import Message, Personal, Training, refuse_both
from twofold.errors import InputError
from twofold.randomness import Key
from twofold.theory import stepsizes_newer
from twofold.tree import Pytree, record, static

__all__ = ["FedProx", "Message"]


@record
class FedProx(Training):
    """τ local steps on f_m(w_m, β_m) + (ρ/2)‖w_m − w‖², as in LSGD, then w = mean of the w_m.

    w_m −= η(∇_w f_m + ρ(w_m − w)), β_m −= ηp_m∇_β f_m. With the local problem solved exactly (τ → ∞, full gradients) and no β, a
    round is one gradient step on Σ p_m min_v f_m(v) + (ρ/2)‖v − w‖². So it converges to the w of `objectives.mixture(loss, lam=ρ)`,
    which approaches that of `traditional(loss)` only as ρ → ∞. Li et al. prove that F decreases in every round, for ρ ≈ 6LB², as
    long as clients are B-dissimilar; near the optimum of unequal clients no B is large enough. ρ = 0 is LSGD.

    With a learning rate, `FedProx(lr=0.005, prox=0.001)`, steps are plain gradient steps on real parameters, as in LSGD.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=8, features=2)
    >>> problem = tw.Problem(tw.objectives.traditional(tw.losses.logistic(l2=0.1)), tw.Clients.from_list(made.clients))
    >>> result = tw.solve(problem, tw.algorithms.FedProx(tau=2), rounds=3, record=())
    >>> result.ledger.rounds, result.ledger.gradients_w.tolist()
    (3, [6, 6, 6])
    """

    eta: float | None = None
    """η, the step size."""
    prox: float | None = None
    """ρ, the strength of the pull towards the last mean."""
    tau: int = static(default=5)
    """τ, the local steps in one round."""
    batch: int | None = static(default=1)
    """Rows in one sampled gradient; None takes all rows."""
    epochs: int | None = static(default=None)
    """Reshuffled passes over each client's own rows, instead of τ steps."""
    name = "fedprox"
    corrects = frozenset[str]()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_both(self, self.eta is not None)
        if self.is_plain and self.prox is None:
            raise InputError(
                "FedProx with a learning rate also needs the strength of its pull: give prox=, as in prox=0.001."
            )

    def is_complete(self) -> bool:
        """Whether ρ is set, and a step size or a learning rate."""
        return self.prox is not None and (self.is_plain or self.eta is not None)

    def complete(self, facts: Facts) -> tuple[FedProx, str | None]:
        """ρ = 6L^w and η = 1/(L + ρ), shorter on sampled rows."""
        c = facts.constants if self.epochs is None else facts.constants.reshuffled
        return fill(self, stepsizes_newer.fedprox(c, facts.each(), self.batch, self.prox)), None

    def client(
        self, plan: Plan, shared: Pytree, private: Personal, oracle: GradientOracle, key: Key
    ) -> tuple[Personal, Message]:
        """The local steps, from the shared w and pulled towards it."""
        if self.is_plain:
            return self._train(plan, shared, private, oracle, key)
        eta, prox = known(self.eta, self.prox)

        def step(sample: Sampled, state: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
            w, beta = state
            of_w, of_beta = oracle.gradients(w, beta, sample)
            w = tree.combine((1 - eta * prox, w), (eta * prox, shared), (-eta, of_w))
            return w, tree.combine((1.0, beta), (-eta, of_beta))

        w, beta = local_steps(self, oracle, key, step, (shared, private.beta))
        return Personal(beta, ()), Message(w)

    def _train(
        self, plan: Plan, shared: Pytree, private: Personal, oracle: GradientOracle, key: Key
    ) -> tuple[Personal, Message]:
        """The local steps with a learning rate."""
        begun = oracle.outward(shared, private.beta)
        prox = known(self.prox)[0]

        def gradients(w: Pytree, beta: Pytree, sample: Sampled) -> tuple[Pytree, Pytree]:
            of_w, of_beta = oracle.plain_gradients(w, beta, sample)
            return pulled(of_w, prox, w, begun[0]), of_beta

        w, beta, memory = trained(self, plan, begun, private.memory, oracle, key, gradients)
        w, beta = oracle.inward(w, beta)
        return Personal(beta, memory), Message(w)
