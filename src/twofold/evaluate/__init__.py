"""Grade the clients' models, client by client, on held-out rows.

`tw.evaluate(problem, result, test)` grades one run. `tw.evaluate.report` says which clients gain and which are hurt by sharing,
compared with one model for all and with training alone. `tw.evaluate.compare` trains and grades several objectives, and
`tw.evaluate.predict` returns one client's predictions.
"""

from __future__ import annotations

import sys
from types import ModuleType

from twofold.clients import Clients
from twofold.evaluate.comparing import ALONE, SHARED, Comparison, Row, compare
from twofold.evaluate.gains import Report, report
from twofold.evaluate.grading import PARTS, Evaluation, Run, Worst, evaluate, predict
from twofold.problem import Problem

__all__ = [
    "ALONE", "PARTS", "SHARED", "Comparison", "Evaluation", "Report", "Row", "Worst", "compare", "evaluate", "predict", "report",
]  # fmt: skip


class EvaluateModule(ModuleType):
    """The type of `tw.evaluate`, a module that can also be called.

    >>> import twofold as tw
    >>> tw.evaluate.evaluate.__name__, callable(tw.evaluate)
    ('evaluate', True)
    """

    # Importing a submodule binds it to its name in the package, so `tw.evaluate` is always this module. To be callable, it needs
    # a class with __call__, which is assigned below. Type checkers do not see that assignment; they learn the class and its
    # attributes from the declaration `evaluate: EvaluateModule` in twofold/__init__.py.
    ALONE, PARTS, SHARED = ALONE, PARTS, SHARED
    Comparison, Evaluation, Report, Row, Worst = Comparison, Evaluation, Report, Row, Worst
    compare = staticmethod(compare)
    evaluate = staticmethod(evaluate)
    predict = staticmethod(predict)
    report = staticmethod(report)

    def __call__(
        self, problem: Problem, result: Run, test_clients: Clients | None = None, *, metric: str | None = None
    ) -> Evaluation:
        """Grade a run's models client by client; see `evaluate`."""
        return evaluate(problem, result, test_clients, metric=metric)


sys.modules[__name__].__class__ = EvaluateModule
