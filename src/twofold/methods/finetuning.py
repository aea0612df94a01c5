"""Fine-tuning: everyone's own model, trained further on its own rows after any method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Unpack

import jax
import numpy as np

from twofold import objectives, tree
from twofold.algorithms import Algorithm
from twofold.errors import InputError
from twofold.oracle import Member
from twofold.problem import Problem
from twofold.result import Best, History, Result
from twofold.solver import RunOptions, solve
from twofold.solver.options import Callback
from twofold.tree import Pytree

__all__ = ["fine_tune"]


def fine_tune(result: Result, algorithm: Algorithm, **options: Unpack[RunOptions]) -> Result:
    """Everyone's own model, trained further on its own rows alone by one round of the algorithm.

    The result goes on where the given one ended: its history has one record more (`stage` 2, in the same round, since nothing is sent),
    its best round may be one from before, with everyone's models of then, and the ledgers are added.

    >>> import twofold as tw
    >>> made = tw.data.synthetic.mixture(sigma_h=0.3, clients=3, rows=12, features=2)
    >>> method = tw.methods.fedavg(tw.losses.logistic(), lr=0.1)
    >>> result = method.fit(tw.Clients.from_list(made.clients), rounds=3)
    >>> tuned = tw.methods.fine_tune(result, tw.algorithms.LSGD(lr=0.1, epochs=2, batch=4))
    >>> tuned.beta.shape, tuned.problem.objective.name
    ((3, 2), 'local')
    >>> tuned.history["round"].tolist(), tuned.history["stage"].tolist()
    ([0, 1, 2, 3, 3], [1, 1, 1, 1, 2])
    """
    problem = result.problem
    if problem is None:
        raise InputError(
            "This result does not know its problem any more: fine-tune what solve or fit gave, not a loaded file."
        )
    own = Problem(objectives.local(problem.objective.loss), problem.clients)
    start = ((), everyones_parameters(problem, result.w, result.beta))
    called = options.get("callbacks", ())
    options["callbacks"] = [_going_on(result.history, each) for each in ((called,) if callable(called) else called)]
    options.setdefault("record", ("loss",) if "loss" in result.history else ())
    found = solve(own, algorithm, rounds=1, start=start, **options)
    new = History({name: values[1:] for name, values in found.history.items()})  # it starts where the rounds ended
    bad = found.status in ("diverged", "interrupted")
    return dataclasses.replace(
        found, history=result.history.then(new), ledger=result.ledger + found.ledger, best=_better(problem, result, found),
        status=found.status if bad else result.status, message=f"rounds: {result.message}; fine-tuning: {found.message}",
        seconds=result.seconds + found.seconds, notes=tuple(dict.fromkeys(result.notes + found.notes)),
    )  # fmt: skip


def _going_on(history: History, callback: Callback) -> Callback:
    """A callback that is told of what comes after a history as one more record of it; the start it knows."""

    def told(record: Mapping[str, float]) -> None:
        if record["iteration"]:
            one = History({name: [value] for name, value in record.items() if name != "seed"})
            last = {name: values[-1].item() for name, values in history.then(one).items()}
            callback({"seed": record["seed"], **{name: last[name] for name in dict.fromkeys([*history, *one])}})

    return told


def _better(problem: Problem, before: Result, after: Result) -> Best | None:
    """The best record of both: of the rounds, with everyone's own models then, or after fine-tuning; the earlier of two equal ones."""
    one, other = before.best, after.best
    if other is not None:
        done = before.history["round" if problem.has_shared else "iteration"][-1]
        other = other._replace(round=int(done))
    if one is None or (other is not None and (one.column != other.column or one.value < other.value)):
        return other
    return one._replace(w=(), beta=jax.tree.map(np.asarray, everyones_parameters(problem, one.w, one.beta)))


def everyones_parameters(problem: Problem, w: Pytree, beta: Pytree) -> Pytree:
    """The parameters that each client predicts with, with a leading client axis."""
    objective = problem.objective

    def of_client(member: Member, beta: Pytree) -> Pytree:
        return objective.personal(shared, beta, member.rows(), member.own)

    shared, parts = tree.cast(w), problem.split(tree.cast(beta))
    found = tuple(jax.vmap(of_client)(stack, part) for stack, part in zip(problem.stacks, parts, strict=True))
    return problem.join(found)
