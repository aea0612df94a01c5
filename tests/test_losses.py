"""The losses: values, derivatives, overflow, labels, curvature, and your own against the built-in ones."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit

import plain
import twofold as tw
from twofold import kernels, losses
from twofold.curvature import largest_eigenvalue
from twofold.losses import Rows


def make_rows(x, y):
    """All rows of one client, each with weight 1/n."""
    x, y = jax.tree.map(jnp.asarray, (x, y))
    n = len(y)
    return Rows(x, y, jnp.full(n, 1 / n))


def setting(kind, intercept=False, l2=0.0, n=9, seed=0):
    """A loss, rows, and random parameters."""
    rng = np.random.default_rng(seed)
    x, y = plain.rows(kind, n, rng)
    loss = plain.loss(kind, l2, intercept)
    params = plain.draw(loss.init(tw.Clients.from_list([(x, y)])), rng)
    return loss, params, x, y


value = jax.jit(lambda loss, params, rows: loss.value(params, rows))
gradient = jax.jit(lambda loss, params, rows: jax.grad(loss.value)(params, rows))
hessian = jax.jit(lambda loss, params, rows: jax.hessian(loss.value)(params, rows))
every_kind = pytest.mark.parametrize("kind", plain.KINDS)
with_or_without = pytest.mark.parametrize("intercept", [False, True], ids=["plain", "intercept"])


# ---- values and derivatives -----------------------------------------------------------------------------------------


@every_kind
@with_or_without
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_value(kind, intercept, l2):
    loss, params, x, y = setting(kind, intercept, l2)
    assert_allclose(value(loss, params, make_rows(x, y)), plain.value(kind, params, x, y, l2), rtol=1e-14)


@every_kind
@with_or_without
def test_gradient_and_hessian_by_differences(kind, intercept):
    loss, params, x, y = setting(kind, intercept, 0.2)
    flat, unravel = ravel_pytree(params)
    rows = make_rows(x, y)
    slope = jax.jit(jax.grad(lambda v: loss.value(unravel(v), rows)))
    numbers = jax.jit(unravel)
    expected = plain.derivative(
        lambda v: plain.value(kind, jax.tree.map(np.asarray, numbers(v)), x, y, 0.2), np.asarray(flat)
    )
    assert_allclose(slope(flat), expected, atol=1e-10)
    direction = np.random.default_rng(1).normal(size=flat.size)
    product = jax.jit(lambda v, d: jax.jvp(slope, (v,), (d,))[1])(flat, direction)
    assert_allclose(product, plain.derivative(slope, np.asarray(flat)) @ direction, atol=1e-9)


@pytest.mark.parametrize("score", [-800.0, -40.0, 0.0, 40.0, 800.0])
@pytest.mark.parametrize("label", [0, 1])
def test_logistic_at_extreme_scores(score, label):
    loss, rows = losses.logistic(), make_rows(np.ones((1, 1)), np.array([label]))
    point = jnp.array([score])
    wrong = score if label == 0 else -score  # how far on the wrong side
    expected = wrong if wrong > 30 else np.log1p(np.exp(wrong))
    assert_allclose(value(loss, point, rows), expected, rtol=1e-15)
    assert_allclose(gradient(loss, point, rows), [expit(wrong) * (1 - 2 * label)], rtol=1e-15)
    curvature = expit(score) * expit(-score)
    # On the right side of the boundary (where Newton goes) the curvature keeps its digits, on the wrong one it may not.
    assert_allclose(
        hessian(loss, point, rows), [[curvature]], rtol=1e-15 if wrong <= 0 else 0, atol=0 if wrong <= 0 else 1e-17
    )


@pytest.mark.parametrize("score", [-800.0, 0.0, 800.0])
def test_softmax_at_extreme_scores(score):
    loss, rows = losses.softmax(2), make_rows(np.ones((1, 1)), np.array([0]))
    point = jnp.array([[0.0, score]])
    assert_allclose(value(loss, point, rows), score if score > 30 else np.log1p(np.exp(score)), rtol=1e-15)
    assert_allclose(gradient(loss, point, rows), [[-expit(score), expit(score)]], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_scores_stay_finite_in_either_precision(dtype):
    with jax.enable_x64(dtype == np.float64):
        rows = Rows(jnp.ones((2, 1)), jnp.array([0, 1]), jnp.full(2, 0.5))
        for score in (-800.0, 800.0):
            found, slope = jax.jit(jax.value_and_grad(losses.logistic().value))(jnp.array([score]), rows)
            assert found.dtype == slope.dtype == dtype
            assert found == 400 and slope == 0.5 * np.sign(score)


@with_or_without
@every_kind
def test_the_ridge_covers_every_parameter(kind, intercept):
    loss, params, x, y = setting(kind, intercept, 0.0)
    rows = make_rows(x, y)
    without, ridged = (
        ravel_pytree(gradient(loss, params, rows))[0] for loss in (loss, plain.loss(kind, 0.7, intercept))
    )
    assert_allclose(ridged - without, 0.7 * ravel_pytree(params)[0], atol=1e-14)


@with_or_without
def test_shapes_of_the_start(intercept):
    clients = plain.clients("softmax", width=4)
    shapes = jax.tree.map(np.shape, losses.softmax(5, intercept=intercept).init(clients))
    assert shapes == ({"weight": (4, 5), "bias": (5,)} if intercept else (4, 5))
    shapes = jax.tree.map(np.shape, losses.squared(intercept=intercept).init(plain.clients("squared", width=4)))
    assert shapes == ({"weight": (4,), "bias": ()} if intercept else (4,))


def test_an_intercept_is_a_column_of_ones():
    loss, params, x, y = setting("logistic", intercept=True, l2=0.1)
    joined = jnp.append(params["weight"], params["bias"])
    wider = make_rows(np.column_stack([x, np.ones(len(x))]), y)
    assert_allclose(value(loss, params, make_rows(x, y)), value(losses.logistic(0.1), joined, wider), rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float32])
def test_labels_and_features_of_any_number_type(dtype):
    x, y = np.array([[0, 1], [1, 1], [1, 0]]), np.array([0, 1, 1])
    clients = tw.Clients.from_list([(x.astype(dtype), y.astype(dtype))])
    for loss in (losses.logistic(0.1), losses.softmax(2, 0.1), losses.squared(0.1)):
        problem, wanted = (
            tw.Problem(tw.objectives.traditional(loss), c) for c in (clients, tw.Clients.from_list([(x * 1.0, y)]))
        )
        w = plain.point(wanted)
        assert_allclose(problem.value(*w), wanted.value(*w), rtol=1e-14)
        assert_allclose(problem.gradient_w(*w), wanted.gradient_w(*w), rtol=1e-14)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss, bad, allowed",
    [
        (losses.logistic(), 2, "from 0 to 1"),
        (losses.logistic(), -1, "from 0 to 1"),
        (losses.softmax(3), 3, "from 0 to 2"),
        (losses.softmax(3), 0.5, "from 0 to 2"),
    ],
)
def test_a_label_out_of_range_names_client_row_and_value(loss, bad, allowed):
    x, y = np.ones((3, 2)), np.array([0.0, 1.0, 1.0])
    clients = tw.Clients.from_list([(x, y), (x, np.array([1.0, 0.0, bad]))], names=["ann", "bob"])
    with pytest.raises(tw.ClientError, match=rf"^client 'bob': y at row 2 is {bad:.1f}, but .* {allowed}\. "):
        tw.Problem(tw.objectives.local(loss), clients)


def test_what_a_linear_loss_refuses():
    x, y = np.ones((2, 2)), np.zeros(2)
    for features, found in (({"a": x}, "dict"), (np.ones((2, 2, 2)), r"an array of shape \(2, 2, 2\)")):
        with pytest.raises(
            ValueError, match=f"logistic loss needs features of shape .* but the clients have {found}; use"
        ):
            losses.logistic().init(tw.Clients.from_list([(features, y)]))
    for targets, found in ((None, "NoneType"), ({"a": y}, "dict"), (np.zeros((2, 2)), r"an array of shape \(2, 2\)")):
        for loss in (losses.squared(), losses.softmax(2)):
            with pytest.raises(ValueError, match=f"needs one target per row, but the clients have {found}"):
                loss.init(tw.Clients.from_list([(x, targets)]))


@pytest.mark.parametrize("l2", [-1.0, np.nan, np.inf, "much", None])
def test_a_bad_ridge(l2):
    for make in (losses.logistic, losses.squared, lambda l2: losses.softmax(2, l2)):
        with pytest.raises(ValueError, match=f"ridge must be a number ≥ 0, got {l2=}"):
            make(l2)
    with pytest.raises(ValueError, match=f"ridge must be a number ≥ 0, got {l2=}"):
        losses.custom(lambda p, x, y: 0.0, np.zeros(1), l2=l2)


@pytest.mark.parametrize("classes", [1, 0, 2.5])
def test_too_few_classes(classes):
    with pytest.raises(ValueError, match=f"at least two classes, got {classes=}"):
        losses.softmax(classes)


def test_custom_needs_a_function():
    with pytest.raises(TypeError, match=r"needs a function fn\(params, x, y\), got ndarray"):
        losses.custom(np.zeros(2), np.zeros(2))


# ---- curvature ------------------------------------------------------------------------------------------------------

FACTOR = {"logistic": 0.25, "softmax": 0.5, "squared": 1.0}


@jax.jit
def of_rows(loss, params, x, y):
    """The Hessian of one client's loss, and of each of its rows."""
    flat, unravel = ravel_pytree(params)
    rows = jax.vmap(lambda x, y: jax.hessian(lambda v: loss.value(unravel(v), make_rows(x[None], y[None])))(flat))(x, y)
    return jnp.mean(rows, axis=0), rows


def hessians(loss, clients, params):
    """The Hessian of each client's loss, and of each single row, at a point."""
    return zip(*[jax.tree.map(np.asarray, of_rows(loss, params, c.x, c.y)) for c in clients], strict=True)


@every_kind
@with_or_without
@pytest.mark.parametrize("counts", [(6, 11), (2, 9)], ids=["tall", "one client with fewer rows than columns"])
def test_constants_bound_the_hessian_everywhere(kind, intercept, counts):
    clients, loss = plain.clients(kind, counts), plain.loss(kind, 0.1, intercept)
    constants = loss.constants(clients)
    assert constants.how == dict.fromkeys(("mu", "L", "calL"), "certified")
    for seed, size in enumerate((0.0, 1.0, 5.0)):
        params = plain.draw(loss.init(clients), np.random.default_rng(seed))
        each, single = hessians(loss, clients, jax.tree.map(lambda leaf, size=size: size * leaf, params))
        for m, (whole, ones) in enumerate(zip(each, single, strict=True)):
            values = np.linalg.eigvalsh(whole)
            assert values[-1] <= constants.L[m] * (1 + 1e-12)
            assert values[0] >= constants.mu[m] * (1 - 1e-10)
            assert max(np.linalg.eigvalsh(one)[-1] for one in ones) <= constants.calL[m] * (1 + 1e-12)


@with_or_without
def test_constants_of_squared_are_attained(intercept):
    clients, loss = plain.clients("squared", (6, 11)), losses.squared(0.1, intercept)
    each, single = hessians(loss, clients, loss.init(clients))
    constants = loss.constants(clients)
    assert_allclose(constants.L, [np.linalg.eigvalsh(h)[-1] for h in each], rtol=1e-12)
    assert_allclose(constants.mu, [np.linalg.eigvalsh(h)[0] for h in each], rtol=1e-11)
    assert_allclose(constants.calL, [max(np.linalg.eigvalsh(h)[-1] for h in ones) for ones in single], rtol=1e-12)


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_constants_from_the_largest_row_and_the_spectrum(kind):
    clients, loss = plain.clients(kind), plain.loss(kind, 0.1)
    constants = loss.constants(clients)
    for m, c in enumerate(clients):
        assert_allclose(constants.calL[m], FACTOR[kind] * max(row @ row for row in c.x) + 0.1, rtol=1e-14)
        assert_allclose(constants.L[m], FACTOR[kind] * np.linalg.norm(c.x, 2) ** 2 / len(c.x) + 0.1, rtol=1e-13)
    assert_array_equal(constants.mu, np.full(3, 0.1))  # flat at infinity but for the ridge


def test_logistic_smoothness_is_attained_at_zero():
    clients, loss = plain.clients(), losses.logistic()
    each, _ = hessians(loss, clients, loss.init(clients))
    assert_allclose(loss.constants(clients).L, [np.linalg.eigvalsh(h)[-1] for h in each], rtol=1e-12)


def test_squared_with_fewer_rows_than_columns_is_not_strongly_convex():
    clients = plain.clients("squared", (2, 9))
    mu = losses.squared().constants(clients).mu
    assert mu[0] == 0 and mu[1] > 0


@jax.jit
def lanczos(matrix):
    return largest_eigenvalue(lambda v: 0.5 * v @ matrix @ v, jnp.zeros(len(matrix), matrix.dtype))


@pytest.mark.parametrize("size", [1, 9, 32, 60])
def test_the_largest_eigenvalue_of_any_hessian(size):
    """Up to 32 numbers by the whole Hessian, beyond by Lanczos, which is near on any matrix."""
    rng = np.random.default_rng(size)
    for scale in (1e-9, 1.0, 1e9):
        half = rng.normal(size=(size, size))
        matrix = scale * (half + half.T)
        assert_allclose(lanczos(matrix), np.linalg.norm(matrix, 2), rtol=1e-12 if size <= 32 else 1e-4)


@pytest.mark.parametrize("scale", [1e-12, -1.0, 1e12])
def test_lanczos_is_exact_for_few_distinct_eigenvalues(scale):
    """It then ends in an invariant subspace, whatever the size of the Hessian; negative ones count by their size."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(50, 50)))[0]
    matrix = scale * (basis * np.repeat([0.0, 1.0, 2.0, 3.0, 7.0], 10)) @ basis.T
    assert_allclose(lanczos((matrix + matrix.T) / 2), 7 * abs(scale), rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-8, 1.0])
def test_lanczos_in_float32_does_not_stop_at_a_small_hessian(scale):
    matrix = jnp.diag(jnp.arange(1, 41, dtype=jnp.float32)) * np.float32(scale)
    assert_allclose(lanczos(matrix), 40 * scale, rtol=1e-5)


def test_the_largest_eigenvalue_of_nothing():
    assert lanczos(np.zeros((40, 40))) == lanczos(np.zeros((3, 3))) == 0
    assert largest_eigenvalue(lambda v: 0.0, ()) == 0


# ---- your own -------------------------------------------------------------------------------------------------------


def own(kind):
    """The built-in losses once more, as a user would write them."""

    def logistic(params, x, y):
        s = x @ params
        return jnp.mean(jnp.logaddexp(0, s) - y * s)

    def softmax(params, x, y):
        return -jnp.mean(jax.nn.log_softmax(x @ params)[jnp.arange(len(y)), y])

    def squared(params, x, y):
        return 0.5 * jnp.mean((x @ params - y) ** 2)

    return {"logistic": logistic, "softmax": softmax, "squared": squared}[kind]


@every_kind
def test_custom_equals_the_built_in_loss(kind):
    clients, built_in = plain.clients(kind), plain.loss(kind, 0.1)
    custom = losses.custom(own(kind), built_in.init, l2=0.1)
    assert_array_equal(custom.init(clients), built_in.init(clients))
    one, other = (tw.Problem(tw.objectives.local(loss), clients) for loss in (custom, built_in))
    at = plain.point(other)
    assert_allclose(one.value(*at), other.value(*at), rtol=1e-14)
    assert_allclose(one.gradient_beta(*at), other.gradient_beta(*at), atol=1e-15)


def test_estimated_constants_of_custom_are_the_true_ones():
    """At zero the logistic loss has its largest curvature, and the squared loss has the same everywhere."""
    for kind in ("logistic", "squared"):
        clients, built_in = plain.clients(kind), plain.loss(kind, 0.1)
        found, exact = losses.custom(own(kind), built_in.init, l2=0.1).constants(clients), built_in.constants(clients)
        assert_allclose(found.L, np.full(3, exact.L_max), rtol=1e-10)
        assert_allclose(found.calL, np.full(3, exact.calL_max), rtol=1e-10)
        assert_array_equal(found.mu, np.full(3, 0.1))
        assert found.how == {"mu": "given", "L": "local", "calL": "local"}


def test_given_constants_of_custom_gain_the_ridge():
    custom = losses.custom(own("squared"), np.zeros(3), l2=0.5, mu=1.0, L=2.0, calL=3.0)
    found = custom.constants(plain.clients("squared"))
    assert (found.mu_min, found.L_max, found.calL_max) == (1.5, 2.5, 3.5)
    assert set(found.how.values()) == {"given"}


def test_custom_is_a_mean_over_each_clients_own_rows():
    """One value per row will do as well; a function that is no mean over rows is refused."""
    clients = plain.clients("squared")
    with pytest.raises(
        ValueError,
        match=r"needs a mean over single rows.*on 4 rows of clients 0, 1, 2 <lambda> gives .*single rows is .*tw\.losses\.net",
    ):
        tw.Problem(
            tw.objectives.local(losses.custom(lambda p, x, y: jnp.mean((x @ p - y) ** 2) ** 1.5, np.zeros(3))), clients
        )
    custom = losses.custom(lambda p, x, y: jnp.abs(x @ p - y) ** 3, np.zeros(3))
    problem = tw.Problem(tw.objectives.local(custom), clients)
    at = plain.point(problem)
    expected = [np.mean(np.abs(c.x @ at[1][m] - c.y) ** 3) for m, c in enumerate(clients)]
    assert_allclose(problem.values(*at), expected, rtol=1e-13)


def network(params, x, y):
    hidden = jnp.tanh(x @ params["first"]["weight"] + params["first"]["bias"][None, :])
    return jnp.mean((hidden @ params["second"] - y) ** 2)


def start_of_network(clients):
    rng = np.random.default_rng(3)
    width = clients.x.shape[1]
    return {"first": {"weight": rng.normal(size=(width, 4)), "bias": np.zeros(4)}, "second": rng.normal(size=4)}


def test_a_small_network():
    clients = plain.clients("squared")
    problem = tw.Problem(tw.objectives.local(losses.custom(network, start_of_network, l2=0.1)), clients)
    assert jax.tree.map(np.shape, problem.start[1]) == {
        "first": {"weight": (3, 3, 4), "bias": (3, 4)},
        "second": (3, 4),
    }
    at = plain.point(problem)
    expected = []
    for m, c in enumerate(clients):
        p = plain.client(at[1], m)
        fit = np.tanh(c.x @ p["first"]["weight"] + p["first"]["bias"]) @ p["second"]
        expected.append(np.mean((fit - c.y) ** 2) + 0.05 * np.sum(ravel_pytree(p)[0] ** 2))
    assert_allclose(problem.values(*at), expected, rtol=1e-13)
    plain.assert_gradient(problem)


def test_smoothness_of_a_network_is_the_largest_curvature_in_size():
    clients = plain.clients("squared", (7,))
    loss = losses.custom(network, start_of_network)
    flat, unravel = ravel_pytree(loss.init(clients))
    rows = make_rows(clients.x, clients.y)
    values = np.linalg.eigvalsh(jax.jit(jax.hessian(lambda v: loss.value(unravel(v), rows)))(flat))
    assert values[0] < 0  # not convex, or this would show nothing
    assert_allclose(loss.constants(clients).L, [np.max(np.abs(values))], rtol=1e-10)


def test_dict_features():
    rng = np.random.default_rng(0)
    pairs = [({"a": rng.normal(size=(n, 2)), "b": rng.normal(size=n)}, rng.normal(size=n)) for n in (4, 7)]
    custom = losses.custom(
        lambda p, x, y: jnp.mean((x["a"] @ p["a"] + x["b"] * p["b"] - y) ** 2), {"a": np.zeros(2), "b": np.zeros(())}
    )
    clients = tw.Clients.from_list(pairs)
    problem = tw.Problem(tw.objectives.traditional(custom), clients)
    w = plain.point(problem)[0]
    residuals = [x["a"] @ w["a"] + x["b"] * w["b"] - y for x, y in pairs]
    assert_allclose(problem.values(w, ()), [np.mean(r**2) for r in residuals], rtol=1e-14)
    plain.assert_gradient(problem)
    grades = custom.grade(w, *jax.tree.map(jnp.asarray, pairs[0]))
    assert_allclose(grades, -(residuals[0] ** 2), rtol=1e-14)


# ---- predictions and grades -----------------------------------------------------------------------------------------


@with_or_without
@every_kind
def test_predict_and_grade(kind, intercept):
    loss, params, x, y = setting(kind, intercept, n=40)
    s = plain.score(params, x)
    predicted = loss.predict(params, x)
    if kind == "squared":
        assert_allclose(predicted, s, rtol=1e-14)
        assert_allclose(loss.grade(params, x, y), -((s - y) ** 2), rtol=1e-12)
    else:
        expected = (s > 0).astype(int) if kind == "logistic" else s.argmax(1)
        assert_array_equal(predicted, expected)
        assert_array_equal(loss.grade(params, x, y), (expected == y).astype(float))
        assert 0 < np.mean(loss.grade(params, x, y)) < 1


def test_custom_predicts_only_with_a_predictor():
    x = np.eye(2)
    with pytest.raises(ValueError, match=r"cannot predict; pass losses.custom\(..., predict=fn\(params, x\)\)"):
        losses.custom(own("squared"), np.zeros(2)).predict(np.ones(2), x)
    able = losses.custom(own("squared"), np.zeros(2), predict=lambda p, x: 2 * x @ p)
    assert_array_equal(able.predict(np.array([1.0, 2.0]), x), [2.0, 4.0])


# --- the same sums, in the order that is fast -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1, 15), (20, 15), (kernels.FEW, kernels.FEW), (kernels.FEW + 1, 3)])
def test_a_small_product_is_a_product_with_all_its_derivatives(shape: tuple[int, int]):
    random = np.random.default_rng(5)
    x, dx = random.normal(size=(2, 3, *shape)) / shape[1] ** 0.5  # of three clients at once
    w, dw = random.normal(size=(2, 3, shape[1]))
    t = random.normal(size=(3, shape[0]))

    def through(product, x, w, dx, dw, t):
        def curved(x, w, t):  # not linear, so that its second derivatives are something
            return jnp.sum(t * jnp.tanh(product(x, w)))

        first = jax.grad(curved, argnums=(0, 1))
        second = jax.jvp(lambda x, w: first(x, w, t), (x, w), (dx, dw))[1]
        backwards = jax.grad(lambda w: jnp.sum(first(x, w, t)[1] ** 2))(w)
        return product(x, w), first(x, w, t), jax.jvp(product, (x, w), (dx, dw)), second, backwards

    jax.tree.map(
        lambda a, b: assert_allclose(a, b, rtol=1e-11, atol=1e-12),
        *(
            jax.jit(partial(through, product))(x, w, dx, dw, t)
            for product in (jax.vmap(kernels.product), lambda x, w: jnp.einsum("mrd,md->mr", x, w))
        ),
    )


@pytest.mark.parametrize("intercept", [False, True])
def test_weights_kept_class_by_class_give_the_same_loss(intercept: bool):
    random = np.random.default_rng(6)
    loss = tw.losses.softmax(3, l2=0.2, intercept=intercept)
    rows = Rows(random.normal(size=(7, 5)), random.integers(0, 3, 7), jnp.full(7, 1 / 7))
    weight, bias = random.normal(size=(5, 3)), random.normal(size=3)
    params = {"weight": weight, "bias": bias} if intercept else weight
    turned = {"weight": weight.T, "bias": bias} if intercept else weight.T
    other = loss.by_class()
    assert_allclose(value(other, turned, rows), value(loss, params, rows), rtol=1e-12)
    expected, found = gradient(loss, params, rows), gradient(other, turned, rows)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_allclose(a.T, b, rtol=1e-11, atol=1e-13)


def test_scores_far_from_zero_lose_nothing():
    score = jnp.array([[1e4, -1e4, 0.0], [-1e5, -1e5, -1e5]])
    loss = tw.losses.softmax(3).link.loss
    assert_allclose(jax.jit(loss)(score, jnp.array([1, 2])), [2e4, np.log(3)], rtol=1e-12)
    slope = jax.jit(jax.grad(lambda s: jnp.sum(loss(s, jnp.array([1, 2])))))
    assert_allclose(slope(score), [[1, -1, 0], [1 / 3, 1 / 3, -2 / 3]])
