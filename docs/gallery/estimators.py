"""# Pipelines and searches: the estimators of scikit-learn

`PersonalizedClassifier` and `PersonalizedRegressor` know whose row is whose by a column, and otherwise behave as any estimator does: they
sit in a `Pipeline` behind a `ColumnTransformer`, and in a `GridSearchCV`. The transformers must pass the clients' column on, under its own name:
hence `set_output` and `verbose_feature_names_out=False`.

`WithinClients` holds out some rows of every client: how well does everyone's own model do on its next rows? `WholeClients` holds out
clients, for whom the shared part of the model answers.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer

from twofold.sklearn import PersonalizedRegressor, WithinClients

rng = np.random.default_rng(0)
rows = 144
orders = pd.DataFrame(
    {"kitchen": rng.choice([f"kitchen {i}" for i in range(12)], rows), "hour": rng.uniform(11, 23, rows)}
)
orders["dishes"] = rng.integers(1, 6, rows)
speed = dict(zip(orders["kitchen"].unique(), rng.normal(4.0, 0.7, 12)))  # minutes a dish, in each kitchen
rush = 8 * np.exp(-((orders["hour"] - 19) ** 2) / 2)
orders["minutes"] = 10 + rush + orders["kitchen"].map(speed) * orders["dishes"] + rng.normal(0, 2, rows)

hours = KBinsDiscretizer(6, encode="onehot-dense", strategy="uniform")
columns = ColumnTransformer([("hour", hours, ["hour"])], remainder="passthrough", verbose_feature_names_out=False)
pipeline = make_pipeline(columns, PersonalizedRegressor(client="kitchen")).set_output(transform="pandas")

x, y = orders.drop(columns="minutes"), orders["minutes"]
strengths = [0.0, 0.1, 1.0, 10.0, np.inf]  # 0: every kitchen alone; inf: one model for all
search = GridSearchCV(
    pipeline,
    {"personalizedregressor__strength": strengths},
    cv=WithinClients(3),
    scoring="neg_mean_absolute_error",
).fit(x, y, groups=x["kitchen"])

for strength, error in zip(strengths, -search.cv_results_["mean_test_score"]):
    print(f"strength {strength:<5g} {error:.2f} minutes off on orders held out")
print("chosen:", search.best_params_["personalizedregressor__strength"])
print(search.predict(x.head(3)).round(1), "minutes, where it took", y.head(3).round(1).tolist())

figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
axes.bar([f"{strength:g}" for strength in strengths], -search.cv_results_["mean_test_score"], color="#4269d0")
axes.set(xlabel="strength of the pull: 0 is everyone alone, inf one model for all", ylabel="minutes off, held out")
