"""Encrypted matching: oracle O19 of the FedProf spec, and who can read what."""

from __future__ import annotations

import sys
from dataclasses import fields

import numpy as np
import pytest

from turnout import UserError
from turnout.aggregation.encryption import (
    AdditiveCipher,
    KeyHolder,
    PlainCipher,
    key_holder,
    linear_divergence,
    linear_form,
)
from turnout.core.random import FloatArray, key, normal, uniform
from turnout.theory.matching import divergence


def profiles(clients: int, q: int = 5) -> FloatArray:
    means = 3 * normal(key(2, "means"), clients * q).reshape(clients, q)
    return np.stack([means, 0.01 + uniform(key(2, "variances"), clients * q).reshape(clients, q)], axis=1)


@pytest.fixture(scope="module")
def additive() -> KeyHolder:
    return key_holder("additive", bits=512)


def test_the_linear_form_is_the_divergence() -> None:
    """O19, without a cipher: 1e-12."""
    *clients, reference = profiles(20)
    factors, constant = linear_divergence(reference)
    linear = [float((factors * linear_form(client)).sum()) + constant for client in clients]
    assert linear == pytest.approx(divergence(clients, reference).tolist(), rel=1e-12)


def test_the_linear_form_skips_dead_units() -> None:
    client, reference = profiles(2)
    reference[1, 1:3] = 0.0
    factors, constant = linear_divergence(reference)
    assert (factors[:, 1:3] == 0).all()
    assert (factors * linear_form(client)).sum() + constant == pytest.approx(float(divergence(client, reference)))


def test_an_encrypted_divergence_decrypts_to_the_plain_one(additive: KeyHolder) -> None:
    """O19."""
    *clients, reference = profiles(4)
    for client in clients:
        encrypted = additive.cipher.encrypt(client)
        found = additive.decrypt(additive.cipher.divergence(encrypted, reference))
        assert found == pytest.approx(float(divergence(client, reference)), rel=1e-6)
        assert found == additive.divergence(client, reference)  # other random numbers, the same result


def test_variances_below_the_floor(additive: KeyHolder) -> None:
    client, reference = profiles(2)
    client[1, 0] = 0.0
    assert additive.divergence(client, reference) == pytest.approx(float(divergence(client, reference)), rel=1e-6)


def test_the_server_can_read_nothing(additive: KeyHolder) -> None:
    """It has the public half; equal profiles look different, and no exponent gives a number's size away."""
    assert isinstance(additive.cipher, AdditiveCipher)
    assert [part.name for part in fields(additive.cipher)] == ["public_key", "var_floor"]
    (client,) = profiles(1)
    once, again = (additive.cipher.encrypt(client) for _ in range(2))
    numbers = [[number.ciphertext() for row in rows for number in row] for rows in (once, again)]
    assert not set(numbers[0]) & set(numbers[1])
    assert len({number.exponent for row in once for number in row}) == 1


def test_profiles_that_cannot_be_encrypted(additive: KeyHolder) -> None:
    client, reference = profiles(2)
    large = client.copy()
    large[0, 0] = 1e60
    assert additive.divergence(large, reference) > 1e12
    for holder in (additive, key_holder()):
        for value in (np.nan, np.inf):
            bad = client.copy()
            bad[0, 0] = value
            assert holder.divergence(bad, reference) == np.inf


def test_plain() -> None:
    client, reference = profiles(2)
    holder = key_holder("plain", var_floor=0.5)
    assert isinstance(holder.cipher, PlainCipher)
    assert holder.divergence(client, reference) == float(divergence(client, reference, 0.5))


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"algorithm\.cipher: unknown name 'aditive'; did you mean additive"):
        key_holder("aditive")
    monkeypatch.setitem(sys.modules, "phe", None)
    with pytest.raises(UserError, match=r'algorithm.cipher: phe is not installed; pip install -e "\.\[encryption\]"'):
        key_holder("additive")
