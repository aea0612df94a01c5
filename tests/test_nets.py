"""Nets as losses: modules of flax.linen, flax.nnx and equinox beside the libraries themselves, state, seeds, links, bad input."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import twofold as tw
from twofold import randomness, tree
from twofold.algorithms import LSGD
from twofold.losses import Rows
from twofold.solver.auto import choose
from twofold.theory.cost import cost_of

INPUTS, HIDDEN, CLASSES, ROWS, BATCH = 4, 5, 3, 8, 4


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        h = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(HIDDEN)(x))
        return nn.Dense(CLASSES)(nn.Dropout(0.3, deterministic=not train)(jnp.tanh(h)))


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(INPUTS, HIDDEN, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.drop(jnp.tanh(self.norm(self.first(x)))))


class Eqx(eqx.Module):
    first: eqx.nn.Linear
    drop: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        one, two = jax.random.split(key)
        self.first, self.out = eqx.nn.Linear(INPUTS, HIDDEN, key=one), eqx.nn.Linear(HIDDEN, CLASSES, key=two)
        self.drop = eqx.nn.Dropout(0.3)

    def __call__(self, x: Any, key: Any = None) -> Any:
        return self.out(self.drop(jnp.tanh(self.first(x)), key=key))


def data(names: Any = None) -> tw.Clients:
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, INPUTS)), np.r_[:CLASSES, rng.integers(0, CLASSES, n - 3)]) for n in (ROWS, 2 * ROWS)]
    return tw.Clients.from_list(rows, names=names)


CLIENTS = data()
FIRST = Rows(jnp.asarray(CLIENTS[0].x), jnp.asarray(CLIENTS[0].y), jnp.full(ROWS, 1 / ROWS))


def cross_entropy(scores: Any, y: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1))


def linen_at_rest(params: Any, x: Any) -> Any:
    return Linen().apply({"params": params["params"], **params["state"].values}, x)


def nnx_at_rest(params: Any, x: Any) -> Any:
    module = Nnx(nnx.Rngs(0))
    module.eval()
    graph, learned, rest = nnx.split(module, nnx.Param, ...)
    nnx.replace_by_pure_dict(learned, params["params"])
    return nnx.merge(graph, learned, rest)(x)


def eqx_at_rest(params: Any, x: Any) -> Any:
    module = eqx.nn.inference_mode(Eqx(jax.random.key(0)))

    def where(m):
        return [m.first.weight, m.first.bias, m.out.weight, m.out.bias]

    names = ("first/weight", "first/bias", "out/weight", "out/bias")
    return jax.vmap(eqx.tree_at(where, module, [params[name] for name in names]))(x)


class Plain(nn.Module):
    """No state, and no word about training: what most people write first."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(CLASSES)(nn.relu(nn.Dense(4)(x)))


def plain_at_rest(params: Any, x: Any) -> Any:
    return Plain().apply({"params": params}, x)


class PlainNnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.out = nnx.Linear(INPUTS, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(x)


def plain_nnx_at_rest(params: Any, x: Any) -> Any:
    return x @ params["out"]["kernel"] + params["out"]["bias"][None]


MODELS = {
    "nnx without state": (PlainNnx, plain_nnx_at_rest),
    "linen without state": (Plain(), plain_at_rest),
    "linen": (Linen(), linen_at_rest),
    "nnx class": (Nnx, nnx_at_rest),
    "nnx function": (Nnx, nnx_at_rest),
    "nnx finished": (Nnx(nnx.Rngs(1)), nnx_at_rest),
    "equinox function": (Eqx, eqx_at_rest),
    "equinox finished": (Eqx(jax.random.key(1)), eqx_at_rest),
}


@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradient_are_the_librarys(name: str):
    model, at_rest = MODELS[name]
    loss = tw.losses.net(model)
    loss.check(CLIENTS)
    params = tree.cast(loss.init(CLIENTS))

    def direct(p):
        return cross_entropy(at_rest(p, FIRST.x), FIRST.y)

    (value, slope), (wanted, right) = (jax.value_and_grad(f)(params) for f in (lambda p: loss.value(p, FIRST), direct))
    assert_allclose(value, wanted, atol=1e-12)
    found, right = (tree.learned(one) for one in (slope, right))
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-12), found, right)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found)) > 1e-3


def test_a_module_with_a_list_in_a_field_is_a_net_too():
    loss, same, other = (
        tw.losses.net(nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(out)])) for out in (CLASSES, CLASSES, 9)
    )
    assert list(loss.init(CLIENTS)) == ["layers_0", "layers_2"]
    assert hash(loss.module) == hash(same.module) and loss.module == same.module != other.module


@pytest.mark.parametrize("model", [Nnx, Eqx, Linen(), (lambda key, x: ({}, ()), lambda *given: given)])
def test_the_same_model_is_the_same_net_which_compiles_once(model: Any):
    one, other = tw.losses.net(model).module, tw.losses.net(model).module
    assert one == other and hash(one) == hash(other)


def test_dropout_differs_by_key_and_is_off_at_rest():
    loss = tw.losses.net(MODELS["equinox function"][0])
    params = tree.cast(loss.init(CLIENTS))
    keys = [None, None, *(randomness.hashed(randomness.of(randomness.root(0), i)) for i in (0, 0, 1))]
    rest, same, one, again, other = (float(loss.value(params, FIRST._replace(key=key))) for key in keys)
    assert rest == same and one == again and len({rest, one, other}) == 3


def orders(m: int) -> list[np.ndarray]:
    """The batches of the first round of client m, seed 0."""
    key = randomness.of(randomness.private(randomness.root(0), m), 0)
    count = int(CLIENTS.counts[m])
    order = np.asarray(randomness.shuffle(randomness.at(key, 0), count, count))
    return [order[i : i + BATCH] for i in range(0, count, BATCH)]


@pytest.mark.parametrize("shared", [False, True])
def test_running_statistics_are_the_librarys_batch_by_batch(shared: bool):
    split = ["Dense_0", "state"] if shared else "Dense_0"
    loss = tw.losses.net(Linen())
    whole = tw.Problem(tw.objectives.weight_sharing(loss, split=split), CLIENTS)
    found = tw.solve(
        whole, LSGD(lr=0.0, batch=BATCH, epochs=1), rounds=1, record=()
    )  # the weights stay, the statistics do not
    start = tree.cast(loss.init(CLIENTS))
    expected = []
    for m in range(CLIENTS.M):
        state = start["state"].values
        for part in orders(m):
            given = {"params": start["params"], **state}
            x = jnp.asarray(CLIENTS[m].x[part])
            _, state = Linen().apply(given, x, train=True, mutable=["batch_stats"], rngs={"dropout": jax.random.key(0)})
        expected.append([np.asarray(leaf) for leaf in jax.tree.leaves(state)])
    assert np.abs(expected[0][0] - expected[1][0]).max() > 1e-3
    if shared:
        pairs = zip(jax.tree.leaves(found.w["state"]), *expected, strict=True)
        for leaf, one, two in pairs:
            assert_allclose(leaf, (one + two) / 2, atol=1e-12)
    else:
        for leaf, *each in zip(jax.tree.leaves(found.beta["state"]), *expected, strict=True):
            assert_allclose(leaf, np.stack(each), atol=1e-12)


def test_every_seed_starts_elsewhere_and_is_its_own_run():
    whole = tw.Problem(tw.objectives.traditional(tw.losses.net(Linen())), CLIENTS)
    method = LSGD(lr=0.1, batch=BATCH, epochs=1)
    many = tw.solve(whole, method, rounds=1, seeds=[3, 4])
    alone = tw.solve(whole, method, rounds=1, seed=4)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-12), many[1].w, alone.w)
    assert many[0].history["loss"][0] != many[1].history["loss"][0]


# --- functions of one's own -------------------------------------------------------------------------------------------


def plain(outputs: int = CLASSES) -> tuple[Any, Any]:
    def begin(key: Any, x: Any) -> tuple[Any, Any]:
        return {"out": jax.random.normal(key, (INPUTS, outputs))}, ()

    return begin, lambda params, state, x, key, train: (x @ params["out"], state)


def test_many_rows_in_parts_are_as_in_one_piece():
    rng = np.random.default_rng(1)
    x, y = jnp.asarray(rng.normal(size=(300, INPUTS))), jnp.asarray(rng.integers(0, CLASSES, 300))
    loss, rows = tw.losses.net(plain()), Rows(x, y, jnp.full(300, 1 / 300))
    params = tree.cast(loss.init(CLIENTS))
    (value, slope), (wanted, right) = (
        jax.value_and_grad(f)(params) for f in (lambda p: loss.value(p, rows), lambda p: cross_entropy(x @ p["out"], y))
    )
    assert_allclose(value, wanted, atol=1e-13)
    assert_allclose(slope["out"], right["out"], atol=1e-13)
    assert_array_equal(loss.predict(params, x), np.argmax(np.asarray(x @ params["out"]), axis=1))


def test_bfloat16_is_near_and_not_equal():
    exact, half = tw.losses.net(plain()), tw.losses.net(plain(), dtype="bfloat16")
    half.check(CLIENTS)  # rounding is not taken for looking at other rows
    params = tree.cast(exact.init(CLIENTS))
    one, other = float(exact.value(params, FIRST)), float(half.value(params, FIRST))
    assert 0 < abs(one - other) < 0.05


@pytest.mark.parametrize(
    ("link", "formula"),
    [
        ("logistic", lambda s, y: jnp.logaddexp(0, s) - y * s),
        ("squared", lambda s, y: (s - y) ** 2 / 2),
        (lambda s, y: jnp.abs(s[:, 0] - y), lambda s, y: jnp.abs(s - y)),
    ],
)
def test_links(link: Any, formula: Any):
    loss, y = tw.losses.net(plain(1), link=link), FIRST.y % 2
    params = tree.cast(loss.init(CLIENTS))
    scores = (FIRST.x @ params["out"])[:, 0]
    assert_allclose(loss.value(params, FIRST._replace(y=y)), jnp.mean(formula(scores, y)), atol=1e-13)


# --- bad input --------------------------------------------------------------------------------------------------------


def normed(params: Any, state: Any, x: Any, key: Any, train: bool) -> tuple[Any, Any]:
    return (x - x.mean(axis=0)[None]) @ params["out"], state


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ((lambda key, x: ({}, ()), lambda params, state, x, key, train: (x, state)), "The net has no parameters"),
        (plain(2), "The net has 2 outputs, one per class"),
        (plain(1), "With the link softmax a net gives one number per class"),
        ((lambda key, x: ({"out": jnp.ones((7, 3))}, ()), plain()[1]), r"cannot be applied to rows of shape \(4,\)"),
        ((plain()[0], normed), "gives a row other outputs when other rows are in the batch"),
    ],
)
def test_nets_that_do_not_fit_get_a_sentence(model: Any, sentence: str):
    with pytest.raises(tw.TwofoldError, match=sentence):
        tw.Problem(tw.objectives.traditional(tw.losses.net(model)), CLIENTS)


def test_what_is_no_net_and_what_is_no_layer():
    with pytest.raises(tw.TwofoldError, match="A net is a module of flax.linen, flax.nnx or equinox"):
        tw.losses.net(3)
    with pytest.raises(tw.TwofoldError, match="The link of a net is one of softmax, logistic, squared"):
        tw.losses.net(plain(), link="probit")
    with pytest.raises(tw.TwofoldError, match="'Dense_9'"):
        tw.Problem(tw.objectives.weight_sharing(tw.losses.net(Linen()), split="Dense_9"), CLIENTS)


METHODS: Any = tw.methods


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: METHODS.fedavg(plain(), momentum=0.9), "fedavg has no setting 'momentum': give optimizer=, as in"),
        (lambda: METHODS.ditto(plain(), mu=0.9), r"ditto has no setting 'mu': it takes lr, .*own_epochs; did you mean lam\?"),
        (lambda: METHODS.fedprox(plain(), mu=0.9), r"it takes lr, lr_beta, tau, batch, epochs, .*prox; did you mean prox\?"),
        (lambda: METHODS.fedavg(plain(), batch_size=9), r"it takes lr, .* optimizer, keep; did you mean batch\?"),
        (lambda: METHODS.fedavg(plain(), learning_rate=0.1), r"did you mean lr\?"),
        (lambda: METHODS.fedavg(plain(), seed=3), r"it belongs to the run: method.fit\(clients, rounds=100, seed=…\)"),
        (lambda: METHODS.fedavg(plain(), rounds=3), r"it belongs to the run: method.fit\(clients, rounds=…\)"),
        (lambda: METHODS.fedavg(plain(), l2=0.1), r"it is one of the net, as in tw.losses.net\(model, l2=…\)"),
        (lambda: METHODS.fedavg(plain()).fit([(np.eye(2), [0, 1])], 1), "fedavg trains Clients .see Clients.from_list., got list"),
        (lambda: METHODS.fedavg(plain(), optimizer=optax.adam), r"as in optax.adam\(1e-3\), got adam"),
        (lambda: METHODS.fedavg(plain(), optimizer="adam"), "got 'adam'"),
        (lambda: METHODS.fedavg(plain(), optimizer=CLIENTS), "got Clients"),
        (lambda: METHODS.fedavg(plain(), state="shraed"), "A net's state is .* got 'shraed'"),
        (lambda: METHODS.ditto(plain(), lam=-1.0), "lam must be a finite number > 0, got lam=-1.0"),
        (lambda: METHODS.fedper(Linen(), head="dense_1").problem(CLIENTS), r"names 'dense_1', but .*; did you mean 'Dense_1'\?"),
        (lambda: METHODS.fedper(Plain(), head=[]).problem(CLIENTS), "Keeping no layer private leaves nothing private"),
        (lambda: METHODS.fedavg(plain(), epochs=1.5), "LSGD needs a whole number for epochs, got epochs=1.5"),
        (lambda: METHODS.fedavg(plain(), lr="0.1"), "LSGD's learning rate is a number or a function of the round, got lr='0.1'"),
        (lambda: METHODS.fedavg(plain(), lr=-0.1), "a finite number ≥ 0, got lr=-0.1"),
        (lambda: METHODS.fedavg(plain(), lr=lambda k: k - 1.0), r"in every round, but lr\(0\) = -1.0"),
        (lambda: METHODS.fedprox(plain(), prox=-1.0), "FedProx needs a finite prox ≥ 0"),
        (lambda: tw.losses.net(Plain), r"Plain is a class, and a net is a module: call it, as in tw.losses.net\(Plain\(\)\)"),
        (lambda: tw.losses.net(plain(), dtype="float8"), "dtype is None, .*, got 'float8'"),
        (
            lambda: METHODS.fedavg(plain(), link=lambda s, y: jnp.mean(s)).problem(CLIENTS),
            r"link= must give one loss for each row, but for 7 rows with outputs of shape \(7, 3\) it gives an array of shape \(\)",
        ),
        (
            lambda: METHODS.fedavg(plain(), link=lambda s, y: s @ y).problem(CLIENTS),
            r"link= cannot be applied to outputs of shape \(7, 3\)",
        ),
        (lambda: METHODS.fedavg(plain(), optimizer=optax.lbfgs()).fit(CLIENTS, 1), "This optimizer cannot take the local steps"),
        (
            lambda: METHODS.fedavg(plain(), optimizer=optax.contrib.reduce_on_plateau()).fit(CLIENTS, 1),
            "no value of the loss .*'value'",
        ),
        (lambda: METHODS.fedrep(plain(), "out", head_epochs=0), "FedRep needs head_epochs ≥ 1, got head_epochs=0"),
        (lambda: METHODS.fedrep(plain(), "out", head_epochs=1.5), "FedRep needs a whole number for head_epochs"),
        (lambda: METHODS.ditto(plain(), own_epochs=-1), "Ditto needs own_epochs ≥ 1, got own_epochs=-1"),
        (lambda: METHODS.pfedme(plain(), epochs=1.5), "PFedMe needs a whole number for epochs, got epochs=1.5"),
        (lambda: METHODS.pfedme(plain(), lr=lambda k: 0.1), "pFedMe's learning rate is a number, and no function .* got lr=<fun"),
        (lambda: METHODS.pfedme(plain(), inner_lr=-1.0), "pFedMe needs a learning rate .* ≥ 0, got inner_lr=-1.0"),
        (lambda: tw.algorithms.PFedMe(eta=lambda k: 0.1), "pFedMe's learning rate is a number, .* got eta=<fun"),
        (lambda: METHODS.pfedme(plain(), optimizer=optax.adam(0.1)), "no setting 'optimizer': it takes lr, inner_lr, lam"),
        (lambda: METHODS.pfedme(plain(), eta=0.1), "no setting 'eta': it takes lr, inner_lr"),
        (lambda: METHODS.fedavg(plain(), lr=np.float32(-0.1)), "a finite number ≥ 0, got lr=np.float32"),
        (lambda: METHODS.fedavg(plain(), lr=jnp.float32(jnp.nan)), "a finite number ≥ 0, got lr=Array"),
        (lambda: METHODS.fedavg(plain(), lr=[0.1]), r"a number or a function of the round, got lr=\[0.1\]"),
        (lambda: METHODS.scaffold(plain(), lr=0), "Scaffold divides by its learning rate, so lr must be above 0"),
        (lambda: METHODS.scaffold(plain(), lr=lambda k: 0.1 * k), "Scaffold divides by its learning rate"),
        (lambda: METHODS.fedper(plain(), head=1).problem(CLIENTS), "Layers are chosen by their names, as in 'Dense_1' .* got 1"),
        (
            lambda: tw.objectives.weight_sharing(tw.losses.net(plain()), split=["Conv_0", 3]),
            r"Layers are chosen by their names, .* got \['Conv_0', 3\]",
        ),
        (lambda: METHODS.scaffold(plain(), optimizer=optax.adam(1e-3)), "control variates need plain gradient steps"),
        (lambda: tw.algorithms.APFL(optimizer=optax.adam(1e-3)), "give their rate too, as in lr_alpha=0.005"),
        (lambda: METHODS.apfl(plain(), lr_alpha=-1.0), r"a finite number ≥ 0, got lr_alpha=-1.0"),
        (lambda: METHODS.fedavg(plain()).fit(CLIENTS, 1, patience=2), "patience needs rows to watch: give validation="),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_get_a_sentence(wrong: Any, sentence: str):
    with pytest.raises(tw.TwofoldError, match=sentence):
        wrong()


# --- nets that cannot be told whether they train, or say more than their outputs ------------------------------------------


class Fixed(nn.Module):
    """BatchNorm that always updates its statistics."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(CLASSES)(nn.BatchNorm(use_running_average=False)(x))


class Pair(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        out = nn.Dense(CLASSES)(x)
        return out, jnp.mean(out)


class Noise(nn.Module):
    """A random stream of its own, drawn from in training, or always."""

    always: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        out = nn.Dense(CLASSES)(x)
        return out + jax.random.normal(self.make_rng("noise"), out.shape) if train or self.always else out


class IsTrain(nn.Module):
    """Dropout and, if asked for, BatchNorm, under a name that nobody else uses."""

    normed: bool

    @nn.compact
    def __call__(self, x: Any, is_train: bool = False) -> Any:
        x = nn.BatchNorm(use_running_average=not is_train)(x) if self.normed else x
        return nn.Dense(CLASSES)(x if self.normed else nn.Dropout(0.3, deterministic=not is_train)(x))


class NnxTold(nnx.Module):
    """Told in its call: twofold passes `train` on."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm, self.out = nnx.BatchNorm(INPUTS, rngs=rngs), nnx.Linear(INPUTS, CLASSES, rngs=rngs)

    def __call__(self, x: Any, train: bool = False) -> Any:
        return self.out(self.norm(x, use_running_average=not train))


class NnxIsTrain(NnxTold):
    def __call__(self, x: Any, is_train: bool = False) -> Any:
        return self.out(self.norm(x, use_running_average=not is_train))


class EqxIsTrain(Eqx):
    def __call__(self, x: Any, key: Any = None, *, is_train: bool = False) -> Any:
        return self.out(self.drop(x, key=key, inference=not is_train))


class Features(nn.Module):
    """An argument that is no mode, in a net that has none."""

    @nn.compact
    def __call__(self, x: Any, features: bool = False) -> Any:
        h = nn.Dense(HIDDEN)(x)
        return h if features else nn.Dense(CLASSES)(h)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Fixed(), "a layer updates its state .* also when the net is not training: .* use_running_average=not train"),
        (Pair(), "The net gives a tuple for a batch, where a loss needs one array of outputs"),
        (Noise(always=True), r"it draws random numbers \(make_rng\) also when it is not training"),
        (
            IsTrain(normed=False),
            "its call takes is_train, which twofold does not know.*: call it train, training, is_tr",
        ),
        (IsTrain(normed=True), "its call takes is_train, which twofold does not know"),
        (NnxIsTrain, "its call takes is_train, which twofold does not know"),
        (EqxIsTrain, "its call takes is_train, which twofold does not know"),
    ],
)
def test_nets_that_cannot_be_told_whether_they_train_get_a_sentence(model: Any, sentence: str):
    with pytest.raises(tw.TwofoldError, match=sentence):
        METHODS.fedavg(model).problem(CLIENTS)


class Silent(nn.Module):
    """Dropout that nobody tells anything."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(CLASSES)(nn.Dropout(0.5)(x))


class Flat(nn.Module):
    """Loses the axis of the rows."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(CLASSES)(x.ravel())


class Images(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.max_pool(nn.Conv(2, (3, 3))(x), (2, 2), (2, 2))
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


class EqxImages(eqx.Module):
    conv: eqx.nn.Conv2d

    def __init__(self, key: jax.Array) -> None:
        self.conv = eqx.nn.Conv2d(1, CLASSES, 3, key=key)

    def __call__(self, x: Any) -> Any:
        return self.conv(x).mean(axis=(1, 2))


class Sized(nnx.Module):
    def __init__(self, inputs: int, *, rngs: nnx.Rngs) -> None:
        self.out = nnx.Linear(inputs, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(x)


class EqxNormed(eqx.Module):
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array, axis: str = "batch") -> None:
        self.norm, self.out = (
            eqx.nn.BatchNorm(INPUTS, axis_name=axis, mode="batch"),
            eqx.nn.Linear(INPUTS, CLASSES, key=key),
        )

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(x, state)
        return self.out(x), state


class FromTorch:
    """What PyTorch's modules look like from afar."""


FromTorch.__module__ = "torch.nn"


def images(shape: tuple[int, ...]) -> tw.Clients:
    rng = np.random.default_rng(0)
    return tw.Clients.from_list([(rng.normal(size=(4, *shape)), np.arange(4) % CLASSES) for _ in range(2)])


@pytest.mark.parametrize(
    ("model", "shape", "sentence"),
    [
        (
            Silent(),
            (4,),
            "a layer .Dropout, BatchNorm. is not told .*: have its call take `train`, and say deterministic=not train",
        ),
        (
            Flat(),
            (4,),
            r"For a batch of one row this net gives an array of shape \(3,\), and not \(1, 3\): keep the axis of the rows",
        ),
        (Images(), (1, 8, 8), r"rows of shape \(1, 8, 8\): .*convolutions want channels last: \(rows, H, W, C\)"),
        (Images(), (8, 8), r"rows of shape \(8, 8\): .*channels last"),
        (EqxImages, (8, 8, 1), r"A module of equinox is given one row.* channels first: \(C, H, W\)"),
        (
            Sized,
            (4,),
            r"Sized cannot be made from rngs alone, .*inputs: say .*lambda rngs: Sized\(inputs=…, rngs=rngs\)\)",
        ),
        (EqxNormed, (4,), r"EqxNormed takes a state, .*: say tw.losses.net\(eqx.nn.make_with_state\(EqxNormed\)\)"),
        (
            lambda key: eqx.nn.make_with_state(EqxNormed)(key, axis="rows"),
            (4,),
            r'a layer that looks at the whole batch must know its axis as "batch", as in eqx.nn.BatchNorm\(size, axis_name="batch"',
        ),
        (Linen().apply, (4,), "A net is the module itself: give it, and not its apply"),
        (FromTorch(), (4,), "FromTorch is a module of PyTorch, .*: write it in flax or equinox"),
        (FromTorch, (4,), "FromTorch is a module of PyTorch"),
    ],
)
def test_nets_that_cannot_be_applied_say_what_to_change(model: Any, shape: tuple[int, ...], sentence: str):
    with pytest.raises(tw.TwofoldError, match=sentence):
        METHODS.fedavg(model).problem(images(shape))


@pytest.mark.parametrize(
    ("y", "remedy"),
    [(np.eye(CLASSES)[[0, 1, 2, 0]], r"take y.argmax\(axis=1\)"), (np.zeros((4, 1), int), r"take y\[:, 0\]")],
)
def test_targets_of_several_columns_are_told_how_to_become_one(y: Any, remedy: str):
    with pytest.raises(tw.TwofoldError, match=remedy):
        METHODS.fedavg(Plain()).problem(tw.Clients.from_list([(np.ones((4, INPUTS)), y)]))


def test_a_dataset_of_pytorch_is_told_to_give_its_arrays():
    sentence = r"client 0 must be a pair \(x, y\), found FromTorch: give its arrays, as in x, y = map\(np.stack, zip\(\*dataset\)\)"
    with pytest.raises(tw.TwofoldError, match=sentence):
        tw.Clients.from_list([FromTorch()])  # pyright: ignore[reportArgumentType]


def test_an_equinox_net_with_state_starts_elsewhere_from_every_seed():
    loss = tw.losses.net(eqx.nn.make_with_state(EqxNormed))
    one, other = (loss.with_seed(seed).init(CLIENTS)["params"]["out/weight"] for seed in (0, 1))
    assert np.abs(one - other).max() > 1e-3
    again = tw.losses.net(eqx.nn.make_with_state(EqxNormed)(jax.random.key(0)))
    assert jax.tree.map(np.shape, again.init(CLIENTS)) == jax.tree.map(np.shape, loss.init(CLIENTS))


def test_a_number_format_may_be_jaxs_own():
    assert tw.losses.net(Plain(), dtype=jnp.bfloat16).dtype == tw.losses.net(Plain(), dtype="bfloat16").dtype


def test_what_a_net_is_told_reaches_it():
    tw.losses.net(Features()).check(CLIENTS)
    key = randomness.hashed(randomness.of(randomness.root(0), 0))
    noisy, told = tw.losses.net(Noise()), tw.losses.net(NnxTold)
    for loss in (noisy, told):
        params = tree.cast(loss.init(CLIENTS))
        trained, at_rest = (float(loss.value(params, FIRST._replace(key=k))) for k in (key, None))
        assert abs(trained - at_rest) > 1e-3
    state = jax.grad(told.value)(tree.cast(told.init(CLIENTS)), FIRST._replace(key=key))["state"]
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(state)) > 1e-3


def batch_norm(params: Any, x: Any, y: Any) -> Any:
    h = (x - x.mean(axis=0)[None]) / jnp.sqrt(x.var(axis=0) + 1e-5)[None]
    return jnp.mean((h @ params - y) ** 2)


def total(params: Any, x: Any, y: Any) -> Any:
    return jnp.sum((x @ params - y) ** 2)


def mean(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ params - y) ** 2)


@pytest.mark.parametrize("fn", [batch_norm, total])
def test_a_custom_loss_must_be_a_mean_of_rows(fn: Any):
    sentence = f"on 4 rows of clients 'Ada', 'Bo' {fn.__name__} gives .*single rows is .*tw.losses.net"
    with pytest.raises(tw.TwofoldError, match=sentence):
        tw.Problem(tw.objectives.local(tw.losses.custom(fn, init=np.zeros(INPUTS))), data(["Ada", "Bo"]))
    tw.Problem(tw.objectives.local(tw.losses.custom(mean, init=np.zeros(INPUTS))), data(["Ada", "Bo"]))


@pytest.mark.parametrize("counts", [(1, 9), (1, 1, 1), (9, 1)])
def test_what_looks_at_other_rows_is_found_whoever_comes_first(counts: tuple[int, ...]):
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, INPUTS)), rng.integers(0, CLASSES, n)) for n in counts]
    rows = [
        (np.ones((n, INPUTS)), y) if m == 0 else (x, y) for m, (n, (x, y)) in enumerate(zip(counts, rows, strict=True))
    ]
    clients = tw.Clients.from_list(rows)  # the first client's rows are all the same: on them a batch is as each row

    def f(w: Any, beta: Any, batch: Any) -> Any:
        return batch_norm(beta, batch.x, batch.y)

    for objective in (
        tw.objectives.local(tw.losses.custom(batch_norm, init=np.zeros(INPUTS))),
        tw.objectives.custom(f, w0=(), beta0=np.zeros(INPUTS)),
        tw.objectives.local(tw.losses.net((plain()[0], normed))),
    ):
        with pytest.raises(tw.TwofoldError, match=r"mean over single rows|other rows are in the batch"):
            tw.Problem(objective, clients)


def test_theory_methods_refuse_a_net_that_updates_numbers_by_itself():
    nn = pytest.importorskip("flax.linen")

    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool = False) -> Any:
            return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(x))

    made = tw.data.synthetic.mixture(sigma_h=0.3, clients=2, rows=8, features=2)
    clients = tw.Clients.from_list([(x, (y > 0).astype(int)) for x, y in made.clients])
    problem = tw.Problem(tw.objectives.local(tw.losses.net(Normed())), clients)
    with pytest.raises(
        tw.TwofoldError, match="as BatchNorm does, and lsgd would leave them where they began: take a method"
    ):
        tw.solve(problem, LSGD(eta=0.1), rounds=1)


def test_no_rounds_are_foretold_for_a_net():
    """Figures of convex problems say nothing of one that is not."""

    rng = np.random.default_rng(0)
    clients = tw.Clients.from_list([(rng.normal(size=(8, 2)), rng.integers(0, 2, 8)) for _ in range(3)])
    net = tw.losses.net(nn.Sequential([nn.Dense(2), jnp.tanh, nn.Dense(2)]))
    for loss, told in ((net, False), (tw.losses.logistic(l2=0.1), True)):
        problem = tw.Problem(tw.objectives.mixture(loss, lam=0.1), clients)
        text = choose(problem, cost_of("cross-silo"), 1e-4, some=False).why
        assert ("rounds to" in text) == told and ("nobody can foretell" in text) != told
