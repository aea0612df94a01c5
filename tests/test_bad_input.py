"""Bad input gets a sentence at once: it names what is wrong and what to do, and nothing hangs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twofold as tw
from twofold import algorithms, losses, objectives
from twofold.solver import TheoryWarning
from twofold.tree import record


def clients(scale: float | np.ndarray = 1.0, features: int = 3) -> tw.Clients:
    rng = np.random.default_rng(0)
    return tw.Clients.from_list([(scale * rng.normal(size=(6, features)), rng.integers(0, 2, 6)) for _ in range(3)])


def problem(
    data: tw.Clients | None = None, *, l2: float = 0.1, lam: float = 0.1, rescale: bool | float = True
) -> tw.Problem:
    loss = losses.logistic(l2=l2)
    return tw.Problem(objectives.mixture(loss, lam=lam), data or clients(), rescale=rescale)


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    """Compilation on a busy machine included; what hung went on for minutes."""
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began < 60


# --- rounds that never come -------------------------------------------------------------------------------------------

ENDLESS: dict[str, Callable[[], tw.Problem]] = {
    "a tiny penalty": lambda: problem(lam=1e-300),
    "a huge ridge": lambda: problem(l2=1e38),
    "huge features": lambda: problem(clients(1e40)),
    "a huge column": lambda: problem(clients(np.array([1.0, 1e4, 1.0]))),
}
SENTENCE = (
    r"A round of communication hardly ever comes with {name} here .w is drawn with p_w = .*: 5 of them would take .*iterations\."
    r".*scale the features, choose a larger λ, or set p_w yourself, as in \w+.p_w=0.5.*iterations="
)


@pytest.mark.filterwarnings("ignore::twofold.solver.TheoryWarning")
@pytest.mark.parametrize("method", ["acd", "scd", "asvrcd"])
@pytest.mark.parametrize("case", ENDLESS)
def test_a_run_ends_soon_or_is_refused(case: str, method: str) -> None:
    try:
        found = tw.solve(ENDLESS[case](), method, rounds=5, record=())
    except tw.errors.InputError as mistake:
        assert re.search(SENTENCE.format(name=method), str(mistake))
    else:
        assert found.ledger.rounds == 5 or found.status == "diverged"


@pytest.mark.parametrize(
    "method", [algorithms.ACD(p_w=1e-12), algorithms.SCD(p_w=1e-12), algorithms.ASVRCD(p_w=1e-12, rho=1e-12)]
)
def test_a_run_whose_rounds_never_come_is_refused(method: tw.algorithms.Algorithm) -> None:
    with pytest.raises(tw.errors.InputError, match=SENTENCE.format(name=method.name)):
        tw.solve(problem(), method, rounds=5)


@record
class Never(algorithms.LSGD):
    """Has no p_w, and never sends."""

    name = "never"
    may_skip_messages = True

    def sends(self, plan: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, super().sends(plan))


def test_a_method_without_a_coin_is_not_told_to_set_one() -> None:
    sentence = r"^A round of communication hardly ever comes with never here: 5 of them would take far more than 65,536 iterations\. "
    sentence += r"Let Never\.sends be true more often, or say how many iterations= you want\.$"
    with pytest.raises(tw.errors.InputError, match=sentence):
        tw.solve(problem(), Never(eta=0.1), rounds=5)


def test_a_run_whose_rounds_come_slowly_is_foreseen() -> None:
    with pytest.warns(TheoryWarning, match=r"hardly ever comes with acd .*about [\d,]+ iterations"):
        found = tw.solve(problem(), algorithms.ACD(p_w=5e-5), rounds=2, record=())
    assert found.ledger.rounds == 2


def test_the_first_message_of_a_method_is_not_taken_for_the_rate_of_the_others() -> None:
    # It always comes in iteration 0; where one round is all that is asked for, the run is over with it.
    method = algorithms.ASVRCD(p_w=1e-12, rho=1e-12)
    assert tw.solve(problem(), method, rounds=1, record=()).ledger.iterations == 1


# --- numbers that do not fit ------------------------------------------------------------------------------------------


def test_features_whose_squares_overflow_name_the_client() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 2))
    data = tw.Clients.from_list([(x, [0, 1, 0, 1]), (x * [1.0, 1e200], [0, 1, 0, 1])], names=["a", "b"])
    sentence = (
        r"^Client 'b' has a feature of size \d.*e\+(199|200), whose square overflows in float64: scale the features"
    )
    for loss in (losses.logistic(), losses.softmax(2), losses.squared(intercept=True)):
        with pytest.raises(tw.errors.InputError, match=sentence):
            tw.Problem(objectives.mixture(loss, lam=0.1), data)
    with (
        jax.enable_x64(False),
        pytest.raises(tw.errors.InputError, match=r"overflows in float32: .* or compute in float64"),
    ):
        problem(clients(1e40))
    with jax.enable_x64(False), pytest.raises(tw.errors.InputError, match=r"overflows in float32: .*standardise\.$"):
        problem(clients(1e200))  # whose squares float64 cannot hold either


@pytest.mark.parametrize("rescale", [1e-300, 1e300])
def test_a_scale_whose_square_is_no_number(rescale: float) -> None:
    with pytest.raises(tw.errors.InputError, match=r"^rescale=1e[+-]300 is out of range.*Leave it at True"):
        problem(rescale=rescale)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("method", ["pfedme", "saga"])
def test_a_penalty_that_makes_a_step_overflow_is_what_is_blamed(method: str, x64: bool) -> None:
    with jax.enable_x64(x64):
        whole = problem(lam=1e-311 if x64 else 1e-300)
        sentence = rf"^Theory's eta for {method} is .* here because λ = 1e-3[01]\d hardly ties .* choose a larger λ, or objectives"
        with pytest.raises(tw.errors.InputError, match=sentence):
            tw.solve(whole, method, rounds=2)


@pytest.mark.parametrize("lam", [1e-300, 1e-42])
def test_a_penalty_that_makes_a_constant_vanish_is_what_is_blamed(lam: float) -> None:
    """In float32 L_w would be 0, and ACD divides by it."""
    with jax.enable_x64(False):
        whole = problem(lam=lam)
        sentence = rf"^Theory's L_w for acd is .* here because λ = {lam:.3g} hardly ties .* float32 .* choose a larger λ, or objectives"
        with pytest.raises(tw.errors.InputError, match=sentence):
            tw.solve(whole, "acd", rounds=2)


BAD_FIELDS: list[tuple[tw.algorithms.Algorithm, str]] = [
    (algorithms.SCD(p_w=-1), "^SCD: p_w is a probability, a number from 0 to 1, got p_w=-1"),
    (algorithms.SCD(eta=0.1, p_w=-1), "^SCD: p_w is a probability"),  # complete, so that theory is not asked
    (algorithms.ASVRCD(rho=2.0), "^ASVRCD: rho is a probability"),
    (algorithms.SCD(p_w=1.0), "one block would never move"),
    (algorithms.LSGD(eta=-1.0), "^LSGD needs a step size that is a finite number ≥ 0, got eta=-1.0"),
    (algorithms.SCD(eta=float("nan")), "^SCD needs a step size"),
    (algorithms.SCD(eta="large"), "^SCD needs a step size .* got eta='large'"),  # pyright: ignore[reportArgumentType]
    (algorithms.SCD(batch=0), "^SCD needs a batch that is a whole number ≥ 1, or None for all rows, got batch=0"),
    (algorithms.ASVRCD(batch=1.5), "^ASVRCD needs a batch"),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("method", "sentence"), BAD_FIELDS, ids=lambda value: getattr(value, "name", ""))
def test_fields_that_cannot_be(method: tw.algorithms.Algorithm, sentence: str) -> None:
    with pytest.raises(tw.errors.InputError, match=sentence):
        tw.solve(problem(), method, rounds=5)


# --- no features ------------------------------------------------------------------------------------------------------

LOSSES = {
    "logistic": losses.logistic,
    "softmax": lambda **options: losses.softmax(2, **options),
    "squared": losses.squared,
}
OBJECTIVES: dict[str, Callable[[Any], Any]] = {
    "traditional": objectives.traditional,
    "local": objectives.local,
    "mixture": lambda loss: objectives.mixture(loss, lam=0.1),
    "multitask": lambda loss: objectives.multitask(loss, lam=0.1),
    "adaptive": lambda loss: objectives.adaptive(loss, alpha=0.5),
    "residual": objectives.residual,
    "maml": lambda loss: objectives.maml(loss, alpha=0.1),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("loss", LOSSES)
def test_without_features_there_is_nothing_to_learn(loss: str, name: str) -> None:
    with pytest.raises(tw.errors.InputError, match="nothing to learn"):
        tw.Problem(OBJECTIVES[name](LOSSES[loss]()), clients(features=0))


@pytest.mark.parametrize("name", [*OBJECTIVES, "weight_sharing"])
@pytest.mark.parametrize("loss", LOSSES)
def test_an_intercept_alone_has_constants(loss: str, name: str) -> None:
    make = OBJECTIVES.get(name, lambda model: objectives.weight_sharing(model, ("weight",)))
    whole = tw.Problem(make(LOSSES[loss](l2=0.1, intercept=True)), clients(features=0))
    found = whole.constants()
    assert np.isfinite([found.mu, found.L_w, found.L_beta]).all()


def test_an_intercept_alone_can_be_learnt() -> None:
    loss = losses.squared(l2=0.1, intercept=True)
    whole = tw.Problem(objectives.mixture(loss, lam=0.5), clients(features=0))
    found = tw.solve(whole, "acd", tol=1e-10)
    assert found.status == "converged" and found.beta["weight"].shape == (3, 0)
    np.testing.assert_allclose(found.beta["bias"], whole.optimum().beta["bias"], atol=1e-4)


# --- the wrong thing --------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "labels -1 and 1": (
        lambda: problem(tw.Clients.from_list([(np.eye(2), [-1, 1])])),
        ValueError,
        r"is -1, but a label must be a whole number from 0 to 1 .turn labels -1 and 1 into these with .y \+ 1. // 2",
    ),
    "a class": (
        lambda: tw.Problem(type(problem().objective), clients()),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"got the class Mixture: call it, as in mixture\(loss, ...\)",
    ),
    "a function": (
        lambda: tw.Problem(objectives.mixture, clients()),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"got the function mixture: call it, as in mixture\(loss, ...\)",
    ),
    "a loss": (
        lambda: tw.Problem(losses.logistic(), clients()),  # pyright: ignore[reportArgumentType]
        TypeError,
        "got a loss: say what is shared, as in tw.objectives.mixture",
    ),
    "a loss not called": (
        lambda: tw.Problem(objectives.mixture(losses.logistic, lam=0.1), clients()),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"loss is logistic itself: call it, as in tw.losses.logistic\(...\)",
    ),
    "a field given to solve": (
        lambda: tw.solve(problem(), "lsgd", rounds=2, eta=0.1),  # pyright: ignore[reportCallIssue]
        TypeError,
        r"eta is a field of the algorithm.*tw.solve\(problem, tw.algorithms.LSGD\(eta=0.1\), ...\)",
    ),
    "a slip in an argument": (
        lambda: tw.solve(problem(), "lsgd", round=2),  # pyright: ignore[reportCallIssue]
        TypeError,
        "solve has no argument 'round'; did you mean 'rounds'?",
    ),
    "a class of algorithms": (
        lambda: tw.solve(problem(), algorithms.LSGD, rounds=2),  # pyright: ignore[reportArgumentType, reportCallIssue]
        TypeError,
        r"Give an algorithm, not its class: LSGD\(\)",
    ),
    "fedavg": (
        lambda: tw.solve(problem(), "fedavg", rounds=2),
        ValueError,
        r"FedAvg is lsgd on one shared model: Problem\(objectives.traditional",
    ),
    "fedavg without a word of when to stop": (
        lambda: tw.solve(problem(), "fedavg"),
        ValueError,
        "FedAvg is lsgd on one shared model",
    ),
    "a name looked for at the top": (lambda: tw.logistic, AttributeError, "; it is tw.losses.logistic$"),
    "a name in capitals looked for at the top": (lambda: tw.Ditto, AttributeError, "; it is tw.methods.ditto$"),
    "a name of nobody": (lambda: tw.fit, AttributeError, "^module 'twofold' has no attribute 'fit'$"),
    "one array as a list of clients": (
        lambda: tw.Clients.from_list(np.eye(2), [0, 1]),  # pyright: ignore[reportArgumentType]
        ValueError,
        r"one pair \(x, y\) per client, found an array: .* Clients.from_groups\(x, y, groups\)",
    ),
    "a table whose target is not said": (
        lambda: tw.Clients.from_frame({"user": ["ann"], "motion": [1.0]}),
        ValueError,
        "there is no column 'y' among 'user', 'motion'; say which it is: target=",
    ),
    "Ditto": (
        lambda: tw.solve(problem(), "Ditto", rounds=2),
        ValueError,
        r"Ditto's objective is objectives.multitask.*; with learning rates, as published, tw.methods.ditto\(net\).fit\(clients",
    ),
    **{
        name: (
            lambda name=name: tw.solve(problem(), name, rounds=2),
            ValueError,
            rf"Unknown algorithm '{name}': .*tw.methods.{ours}\(",
        )
        for name, ours in {
            "Scaffold": "scaffold",
            "FedRep": "fedrep",
            "fed-babu": "fedbabu",
            "PerFedAvg": "per_fedavg",
        }.items()
    },
    "ditto among the objectives": (
        lambda: objectives.ditto,  # pyright: ignore[reportAttributeAccessIssue]
        AttributeError,
        r"There is no objectives.ditto: Ditto is objectives.multitask\(loss, lam=..., Lambda=float\('inf'\)\)",
    ),
    "a slip in an objective": (lambda: objectives.mixtur, AttributeError, "did you mean mixture?"),
    "an objective to solve": (
        lambda: tw.solve(problem().objective),  # pyright: ignore[reportArgumentType, reportCallIssue]
        TypeError,
        r"solve needs a Problem \(tw.Problem\(objective, clients\)\), got Mixture",
    ),
    "the wrong order": (
        lambda: tw.Problem(clients(), problem().objective),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"an objective first and the clients second: tw.Problem\(objective, clients\)",
    ),
    "a loss not called in a residual": (
        lambda: objectives.residual(losses.logistic),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"The loss is logistic itself: call it, as in residual\(losses.logistic\(...\)\)",
    ),
    "labels from one": (
        lambda: problem(tw.Clients.from_list([(np.eye(2), [1, 2])])),
        ValueError,
        r"is 2, but a label must be a whole number from 0 to 1 \(turn labels 1 to 2 into these with y - 1\)$",
    ),
    "more labels than two": (
        lambda: problem(tw.Clients.from_list([(np.eye(3), [0, 1, 2])])),
        ValueError,
        r"There are 3 different labels: use losses.softmax\(3\)",
    ),
    "labels that are not numbered": (
        lambda: problem(tw.Clients.from_list([(np.eye(2), [3, 7])])),
        ValueError,
        r"Number the labels from 0, as in labels, y = numpy.unique\(y, return_inverse=True\)",
    ),
    "real targets": (
        lambda: problem(tw.Clients.from_list([(np.eye(2), [0.5, 1.7])])),
        ValueError,
        r"These are real numbers, not labels: use losses.squared\(\)",
    ),
    "a method as an algorithm": (
        lambda: tw.solve(problem(), tw.methods.fedavg),  # pyright: ignore[reportArgumentType, reportCallIssue]
        ValueError,
        r"fedavg of tw.methods is an objective and an algorithm in one, .* say tw.methods.fedavg\(...\).fit\(clients, rounds=100\)",
    ),
    "a method that was made": (
        lambda: tw.solve(problem(), tw.methods.fedavg(losses.logistic())),  # pyright: ignore
        ValueError,
        r"fedavg of tw.methods .* say method.fit\(clients",
    ),
    "a number as an algorithm": (
        lambda: tw.solve(problem(), 3),  # pyright: ignore[reportArgumentType, reportCallIssue]
        ValueError,
        r"An algorithm is a name, such as .*, or an instance, such as tw.algorithms.ACD\(\), got int",
    ),
    "capitals": (lambda: tw.solve(problem(), "ASVRCD", rounds=2), ValueError, "Did you mean 'asvrcd'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_wrong_thing_gets_the_right_words(case: str) -> None:
    call, kind, sentence = WRONG[case]
    with pytest.raises(kind, match=sentence) as caught:
        call()
    assert isinstance(caught.value, tw.TwofoldError)


def test_a_result_is_a_start_and_a_number_is_so_many_seeds() -> None:
    small = problem()
    first = tw.solve(small, "acd", rounds=3)
    again = tw.solve(small, "acd", rounds=1, start=first)
    assert again.history["loss"][0] == first.history["loss"][-1]
    assert [run.seed for run in tw.solve(small, "acd", rounds=1, seeds=3)] == [0, 1, 2]


# --- a net ------------------------------------------------------------------------------------------------------------


def test_a_net_is_not_measured_row_by_row_and_is_solved_by_what_suits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from twofold.curvature import local

    looked: list[int] = []
    real = local.spread
    monkeypatch.setattr(local, "spread", lambda count, most: looked.append(count) or real(count, most))
    monkeypatch.setattr(local, "MOST_ROWS", 8)
    rng = np.random.default_rng(0)
    data = tw.Clients.from_list([(rng.normal(size=(40, 3)), rng.normal(size=40)) for _ in range(2)])

    def fit(p: Any, x: Any, y: Any) -> Any:
        return jax.numpy.mean((jax.numpy.tanh(x @ p["a"]) @ p["b"] - y) ** 2)

    start = {"a": 0.3 * rng.normal(size=(3, 60)), "b": 0.3 * rng.normal(size=60)}
    net = tw.Problem(objectives.mixture(losses.custom(fit, init=start), lam=0.1), data)
    found = tw.solve(net, seconds=0.5, record=())
    assert found.algorithm.name == "lsgd" and "Newton's steps over 480 parameters take long" in found.notes[0]
    assert found.status in ("budget", "converged") and 80 in looked  # rows, of which eight were taken
    # A small function of one's own is still taken to be convex, as it always was.
    few = {"a": start["a"][:, :2], "b": start["b"][:2]}
    small = tw.Problem(objectives.mixture(losses.custom(fit, init=few, L=1.0, calL=1.0), lam=0.1), data)
    assert tw.solve(small, rounds=1, record=()).algorithm.name != "lsgd"


def test_an_objective_that_looks_at_other_rows_is_refused():
    def centred(w: Any, beta: Any, batch: Any) -> Any:
        return jnp.mean(((batch.x - batch.x.mean(axis=0, keepdims=True)) @ w + beta) ** 2)

    clients = tw.Clients.from_list([(np.arange(6.0).reshape(3, 2) ** 2, np.zeros(3))], names=["north"])
    with pytest.raises(
        tw.TwofoldError, match=r"objectives\.custom needs a mean over single rows.*client 'north' centred gives"
    ):
        tw.Problem(tw.objectives.custom(centred, w0=jnp.zeros(2), beta0=0.0), clients)


# --- more slips ---------------------------------------------------------------------------------------------------------


def slip_problem() -> tw.Problem:
    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(12, 3)), rng.integers(0, 2, 12)) for _ in range(2)])
    return tw.Problem(tw.objectives.mixture(tw.losses.logistic(l2=0.1), lam=0.1), clients)


def test_a_loss_that_was_not_called_is_told_at_once() -> None:
    for name in ("mixture", "local", "traditional"):
        more = {"lam": 0.1} if name == "mixture" else {}
        with pytest.raises(TypeError, match=r"loss is logistic itself: call it, as in tw.losses.logistic"):
            getattr(tw.objectives, name)(tw.losses.logistic, **more)


def test_what_solve_is_given_by_mistake() -> None:
    problem = slip_problem()
    several = tw.solve(problem, "acd", rounds=1, seeds=2)
    for start, words in ((several, r"holds 2 runs: .*results\[0\]"), (3, "a pair .w, beta., a Result or a Model")):
        with pytest.raises(TypeError, match=words):
            tw.solve(problem, "acd", rounds=1, start=start)  # type: ignore[arg-type]
    model = tw.Model.of(problem, several[0])
    again = tw.solve(problem, "acd", rounds=1, start=model)  # type: ignore[arg-type]
    assert again.history["loss"][0] == pytest.approx(several[0].history["loss"][-1], rel=1e-6)
    for seeds in (2.0, "2"):
        with pytest.raises(TypeError, match="seeds is a whole number .how many. or some whole numbers"):
            tw.solve(problem, "acd", rounds=1, seeds=seeds)  # type: ignore[arg-type]
    for more in ((), ("acd",)):
        with pytest.raises(TypeError, match=r"tw.solve\(tw.Problem\(objective, clients\)"):
            tw.solve(problem.objective, problem.clients, *more, rounds=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="all else by name, but there is also 30"):
        tw.solve(problem, "acd", 30)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="callbacks are functions, which are called with every record, got 'log'"):
        tw.solve(problem, "acd", rounds=1, callbacks="log")  # type: ignore[arg-type]
    seen: list[Any] = []
    tw.solve(problem, "acd", rounds=2, callbacks=seen.append)
    assert len(seen) == 3


def test_names_of_other_libraries_get_ours() -> None:
    for module, name, words in (
        (tw.losses, "mse", r"is losses.squared\(\)"),
        (tw.losses, "CrossEntropy", r"losses.softmax\(classes\)"),
        (tw.losses, "logistc", "did you mean logistic"),
        (tw.algorithms, "FedAvg", r"tw.methods.fedavg\("),
        (tw.algorithms, "FedPer", r"tw.methods.fedper\("),
        (tw.algorithms, "Acd", "did you mean ACD"),
        (tw.methods, "FedAvg", "did you mean fedavg"),
        (tw.methods, "PerFedAvg", "did you mean per_fedavg"),
        (tw.methods, "moon", "There is no methods.moon: choose from local, fedavg"),
    ):
        with pytest.raises(AttributeError, match=words):
            getattr(module, name)


def test_an_array_of_objects_names_its_column() -> None:
    with pytest.raises(ValueError, match=r"there is 'a' at row 0 of column 1\. Encode .*from_frame"):
        tw.Clients.from_list([(np.array([[1, "a"], [2, "b"]], object), [0, 1])])
    with pytest.raises(ValueError, match=r"say \.astype\(float\)"):
        tw.Clients.from_list([(np.array([[1, 2], [2, 3]], object), [0, 1])])


def test_a_function_of_ones_own_is_not_called_certified() -> None:
    clients = slip_problem().clients
    own = tw.losses.custom(lambda p, x, y: jnp.mean((x @ p - y) ** 2), init=np.zeros(3), l2=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = tw.solve(tw.Problem(tw.objectives.mixture(own, lam=0.1), clients), "profile", tol=1e-3, rounds=50)
    assert found.status == "converged" and "gap, if the function is convex," in found.message


def test_one_bad_value_of_a_grid_does_not_spoil_the_others() -> None:
    from twofold.config.sweep import axis

    assert axis("objective.lam=0.01,x,1").values == ("0.01", '"x"', "1")


def test_python_minus_m() -> None:
    done = subprocess.run([sys.executable, "-m", "twofold", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "reproduce" in done.stdout
