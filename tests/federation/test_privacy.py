"""Differential privacy, shares of secrets, fixed point, keys, tables: the small pieces, each against a reference of its own."""

from __future__ import annotations

import base64
import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from federation.small import Small, node, study
from twofold.errors import InputError
from twofold.federation import Identity, Seat, Study, read_rows
from twofold.federation.dp import Noise, epsilon
from twofold.federation.keys import Public
from twofold.federation.masks import SEED, combined, decode, encode, shares_of, stream


def gaussian_delta(eps: float, z: float) -> float:
    """δ(ε) of one Gaussian mechanism with noise multiplier z, exactly (Balle and Wang 2018, Theorem 8)."""
    return float(norm.cdf(1 / (2 * z) - eps * z) - math.exp(eps) * norm.cdf(-1 / (2 * z) - eps * z))


@pytest.mark.parametrize(("z", "messages"), [(1.0, 1), (4.0, 100), (30.0, 1000)])
def test_the_accountant_agrees_with_the_formula(z: float, messages: int):
    """k Gaussian mechanisms compose to one with noise z/√k."""
    found = epsilon(z, messages, 1e-6)
    assert (
        gaussian_delta(found * 0.99, z / math.sqrt(messages))
        > 1e-6
        > gaussian_delta(found * 1.02, z / math.sqrt(messages))
    )


def test_a_message_is_cut_and_gets_noise_and_the_same_again_when_asked_again():
    noise = Noise(clip=2.0, multiplier=1.5, delta=1e-6, secret=lambda said: said.encode())
    big, small = {"a.0": np.full(20_000, 1.0)}, {"a.0": np.zeros(20_000)}
    with_noise = noise.applied(small, "round 1")["a.0"]
    assert kstest(with_noise / (2 * 2.0 * 1.5), "norm").pvalue > 0.01
    moved = noise.applied(big, "round 1")["a.0"] - with_noise
    np.testing.assert_allclose(np.linalg.norm(moved), 2.0, rtol=1e-12)  # cut to the norm
    np.testing.assert_array_equal(noise.applied(small, "round 1")["a.0"], with_noise)
    assert np.abs(np.corrcoef(noise.applied(small, "round 2")["a.0"], with_noise)[0, 1]) < 0.05
    with pytest.raises(InputError, match="clip > 0"):
        Noise(0.0, 1.0, 1e-6, lambda said: b"")


def test_a_run_with_noise_says_its_epsilon(tmp_path: Path):
    agreed = study("lsgd", rounds=3, keys=True, tell={"norm": 99.0, "rows": 9, "salt": False}, round={})
    hidden = Noise(1.0, 5.0, 1e-6, lambda said: said.encode())
    small = Small(agreed, tmp_path, tells=("rows",), noise=hidden)
    found = small.run()
    assert found.ledger.epsilon == pytest.approx(epsilon(5.0, 3, 1e-6))
    assert found.ledger.reported.tolist() == [3] * 4  # rows, ε and δ
    with pytest.raises(InputError, match="neither constants nor its loss"):
        node(agreed, "north", tmp_path / "x", noise=hidden)


# --- masks --------------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=SEED, max_size=SEED), st.integers(3, 9), st.randoms())
def test_any_majority_of_shares_gives_the_secret(secret: bytes, clients: int, rng: Any):
    needed = clients // 2 + 1
    shares = shares_of(secret, clients, needed, b"seed")
    holders = rng.sample(range(clients), needed)
    assert combined({m: shares[m] for m in holders}) == secret
    if needed > 2:
        few = {m: shares[m] for m in holders[:-1]}
        with contextlib.suppress(InputError):
            assert combined(few) != secret


def test_a_share_alone_says_nothing():
    """Shares of two secrets by one polynomial's worth of randomness look the same: every bit is as likely as not."""
    ones = [shares_of(b"\xff" * SEED, 5, 3, i.to_bytes(2, "little"))[2] for i in range(200)]
    bits = np.unpackbits(np.frombuffer(b"".join(ones), np.uint8)).reshape(200, -1)[:, :248].mean()
    assert abs(bits - 0.5) < 5 * 0.5 / math.sqrt(200 * 248)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5), st.integers(20, 48))
def test_fixed_point_is_within_half_a_step_and_adds_up_exactly(values: list[float], bits: int):
    x = np.array(values)
    np.testing.assert_allclose(decode(encode(x, 1.0, bits, 2), bits), x, rtol=0, atol=2.0 ** -(bits + 1))
    back = encode(x, 0.5, bits, 2) + encode(-x, 0.5, bits, 2)
    assert not back.any()


def test_a_number_too_large_for_fixed_point_gets_a_sentence():
    with pytest.raises(
        InputError,
        match=r"north: a message has a number that is not finite or too large: 44 bits .* set \[masks\] bits lower",
    ) as error:
        encode(np.array([1.25e9]), 0.25, 44, 4, "north")
    assert "1.25e" not in str(error.value)  # it goes to the coordinator, who is not told the number
    with pytest.raises(InputError, match="a message has a number that is not finite"):
        encode(np.array([np.nan]), 0.25, 44, 4)


def test_streams_are_chacha20():
    """The first block of RFC 8439's algorithm under a key that both sides can compute."""
    import hashlib

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = hashlib.sha256(b"twofold stream" + b"seed").digest()
    block = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(64))
    assert stream(b"seed", 8).tobytes() == block


# --- keys and tables ----------------------------------------------------------------------------------------------------


def test_a_key_survives_its_file_and_signs(tmp_path: Path):
    one, other = Identity.new(), Identity.new()
    one.write(tmp_path / "one.key")
    again = Identity.read(tmp_path / "one.key")
    assert again.public.line == one.public.line
    assert one.public.verify(again.sign(b"x"), b"x")
    assert not other.public.verify(one.sign(b"x"), b"x")
    assert one.agree(other.public, "study") == other.agree(one.public, "study") != one.agree(other.public, "another")
    with pytest.raises(InputError, match="never overwritten"):
        other.write(tmp_path / "one.key")
    for line in ("", "twofold1-", "twofold1-AAAA", one.public.line[:-4] + "!!!!"):
        with pytest.raises(InputError, match="is no public key"):
            Public(line)


def with_key(client: int, line: str) -> Study:
    """A study in which one client's key is another."""
    document = study(keys=True).document
    clients = [dict(entry) for entry in document["client"]]
    clients[client]["key"] = line
    return Study(document | {"client": clients})


def key_of(client: int) -> bytes:
    return base64.b64decode(study(keys=True).document["client"][client]["key"].removeprefix("twofold1-"))


def line_of(raw: bytes) -> str:
    return "twofold1-" + base64.b64encode(raw).decode()


def test_two_clients_with_one_key_are_refused():
    """The whole key, or one of the three in it: who has the same one for masks has no mask with the other."""
    for cut in ((0, 113), (0, 49), (49, 81), (81, 113)):
        mixed = bytearray(key_of(1))
        mixed[slice(*cut)] = key_of(0)[slice(*cut)]
        with pytest.raises(InputError, match="Clients 'north' and 'east' have the same key: each needs one of its own"):
            with_key(1, line_of(bytes(mixed))).check()


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")])
def test_a_key_with_which_everybody_has_the_same_secret_is_refused(point: bytes):
    """Points of low order (0, 1 and −1): no mask with such a client would be secret."""
    with pytest.raises(InputError, match=r"Client 'south': 'twofold1-.* is no public key: paste the line"):
        with_key(2, line_of(key_of(2)[:81] + point)).check()


TABLE = "age,smoker,ward,outcome\n50,1,a,yes\n70,0,b,no\n"


def table_study() -> Study:
    document = {k: v for k, v in study().document.items() if k != "features"} | {
        "feature": [
            {"name": "age", "center": 50.0, "scale": 10.0},
            {"name": "smoker", "kind": "binary"},
            {"name": "ward", "kind": "category", "levels": ["a", "b", "c"]},
        ],
        "target": {"name": "outcome", "classes": ["no", "yes"]},
    }
    return Study(document)


def test_a_table_is_read_as_the_study_says(tmp_path: Path):
    (tmp_path / "p.csv").write_text(TABLE)
    x, y = read_rows(table_study(), tmp_path / "p.csv", "north")
    assert x.tolist() == [[0, 1, 1, 0, 0], [2, 0, 0, 1, 0]]
    assert y.tolist() == [1, 0]
    assert Seat(table_study(), "north", x, y).position == 0


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("50,", "old,", "client 'north': column 'age' at row 0 is 'old', but must be a number"),
        ("70,0", "70,2", "client 'north': column 'smoker' at row 1 is 2, but must be 0 or 1"),
        (",b,", ",d,", "client 'north': column 'ward' at row 1 is 'd', but must be one of a, b, c"),
        ("yes", "maybe", "client 'north': column 'outcome' at row 0 is 'maybe', but must be one of no, yes"),
        ("age", "years", "has no column 'age'; it has years, smoker, ward, outcome"),
        ("50,", "inf,", "is 'inf', but must be finite"),
        ("\n50,1,a,yes\n70,0,b,no", "", "has no rows"),
    ],
)
def test_a_bad_table_gets_a_sentence(before: str, after: str, sentence: str, tmp_path: Path):
    (tmp_path / "p.csv").write_text(TABLE.replace(before, after, 1))
    with pytest.raises(InputError, match=sentence):
        read_rows(table_study(), tmp_path / "p.csv", "north")
