"""Matching profiles that the server cannot read: it computes the divergence on ciphertexts, a key holder decrypts it.

Wu's thesis (Warwick), appendix B. With the reference in plaintext at the server the divergence is linear in what a
client encrypts, a = var + mean^2, b = mean, c = log var:

    KL = 1/2 log var* - 1/2 c - 1/2 + (a - 2 mean* b + mean*^2) / (2 var*)

so that a cipher that can only add hides variances as well as means (the thesis leaves variances in plaintext): that of
Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.core.errors import unknown
from turnout.core.imports import extra, optional
from turnout.core.random import FloatArray
from turnout.theory import matching

KEY_BITS = 2048
PRECISION = 1e-15  # of every number encrypted: an exponent of its own would be read by everybody
LARGEST = 1e15


@dataclass(frozen=True)
class PlainCipher:
    """Leave profiles `[2, q]` as they are: the server reads them."""

    var_floor: float = matching.VAR_FLOOR

    def encrypt(self, profile: FloatArray) -> Any:
        return profile

    def divergence(self, encrypted: FloatArray, reference: FloatArray) -> FloatArray:
        return matching.divergence(encrypted, reference, self.var_floor)


@dataclass(frozen=True)
class AdditiveCipher:
    """Encrypt by Paillier's cipher, which can add, and multiply by what is known. Clients do not know the reference:
    they raise variances to `var_floor` alone. A profile is 3 q ciphertexts, each as long as two keys."""

    public_key: Any
    var_floor: float = matching.VAR_FLOOR

    def encrypt(self, profile: FloatArray) -> Any:
        """Encrypt, at a client, its profile `[2, q]` as the server gets it."""
        rows = np.clip(linear_form(profile, self.var_floor), -LARGEST, LARGEST).tolist()
        return [[self.public_key.encrypt(value, precision=PRECISION) for value in row] for row in rows]

    def divergence(self, encrypted: list[list[Any]], reference: FloatArray) -> Any:
        """Compute, at the server, the divergence from its own profile, still encrypted."""
        factors, constant = linear_divergence(reference, self.var_floor)
        total = self.public_key.encrypt(constant)
        for values, row in zip(encrypted, factors.tolist(), strict=True):
            for value, factor in zip(values, row, strict=True):
                if factor:
                    total = total + value * factor
        return total


@dataclass(frozen=True)
class KeyHolder:
    """Hold the private key: a third party, never the server."""

    cipher: PlainCipher | AdditiveCipher  # what everybody has: the public part
    private_key: Any = None

    def decrypt(self, value: Any) -> float:
        """Decrypt a divergence."""
        return float(value if self.private_key is None else self.private_key.decrypt(value))

    def divergence(self, profile: FloatArray, reference: FloatArray) -> float:
        """Compute a divergence by client, server and key holder in turn; infinite for a profile that is none and cannot
        be encrypted."""
        if not np.isfinite(profile).all() or (profile[1] < 0).any():
            return np.inf
        encrypted = self.cipher.encrypt(profile)
        return self.decrypt(self.cipher.divergence(encrypted, reference))

    def divergences(self, profiles: FloatArray, reference: FloatArray) -> FloatArray:
        """Compute divergences `[k]` of profiles `[k, 2, q]`."""
        if isinstance(self.cipher, PlainCipher):
            return self.cipher.divergence(profiles, reference)
        return np.array([self.divergence(profile, reference) for profile in profiles])


def linear_form(profile: FloatArray, var_floor: float = matching.VAR_FLOOR) -> FloatArray:
    """Compute `[3, q]` the quantities a, b, c in which the divergence is linear."""
    mean, var = profile[0], np.maximum(profile[1], var_floor)
    return np.stack([var + np.square(mean), mean, np.log(var)])


def linear_divergence(reference: FloatArray, var_floor: float = matching.VAR_FLOOR) -> tuple[FloatArray, float]:
    """Compute `[3, q]` factors of a, b, c and the constant of the mean divergence over the informative elements."""
    kept = matching.informative(reference, var_floor)
    mean, var = np.where(kept, reference, [[0.0], [1.0]])
    factors = np.stack([1 / (2 * var), -mean / var, np.full(len(mean), -0.5)])
    constants = (np.log(var) - 1 + np.square(mean) / var) / 2
    count = max(1, int(kept.sum()))
    return np.where(kept, factors, 0.0) / count, float(constants[kept].sum() / count)


def key_holder(cipher: str = "plain", var_floor: float = matching.VAR_FLOOR, bits: int = KEY_BITS) -> KeyHolder:
    """Make a key holder with new keys for a cipher: `plain` (none) or `additive` (python-paillier)."""
    if cipher == "plain":
        return KeyHolder(PlainCipher(var_floor))
    if cipher != "additive":
        raise unknown("algorithm.cipher", cipher, ("plain", "additive"))
    paillier = optional("algorithm.cipher", "phe", extra("encryption")).paillier
    public, private = paillier.generate_paillier_keypair(n_length=bits)
    return KeyHolder(AdditiveCipher(public, var_floor), private)
