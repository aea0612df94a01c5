"""Estimators for scikit-learn: one model per client, in the `fit` and `predict` that everybody knows.

    PersonalizedClassifier(client="patient").fit(table, labels).predict(table)

They are linear models (logistic, softmax or least squares) under any of twofold's objectives, solved by `profile`, with the strength of
personalisation chosen by cross-validation inside every client's rows. They need the extra `sklearn`.
"""

from twofold.errors import MissingExtra

try:
    from twofold.sklearn.estimators import PersonalizedClassifier, PersonalizedRegressor, load
    from twofold.sklearn.splitters import WholeClients, WithinClients
except ModuleNotFoundError as missing:
    if (missing.name or "").split(".")[0] != "sklearn":
        raise
    raise MissingExtra("twofold.sklearn", "sklearn", library="scikit-learn") from missing

__all__ = ["PersonalizedClassifier", "PersonalizedRegressor", "WholeClients", "WithinClients", "load"]
