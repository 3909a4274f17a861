"""What counted how much in training on data streams: the importance of samples, clients and rounds, from the weights.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, section 4.3.1. In
round t the stored sample j of client m has weight lambda; what is minimised is the loss of all rounds together,

    sum_t q_t sum_m p_m^t loss(memory of m in round t)  =  sum_i p_i loss(sample i),

    p_m^t the share of round t's weight that client m has,      q_t the share of all weight that round t has,
    p_m = sum_t q_t p_m^t the share of all weight of a client,  p_i that of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, IntArray
from turnout.theory.streams import effective_samples


@dataclass(frozen=True)
class StreamUse:
    aggregation: FloatArray  # [T, M] p_m^t; nothing in a round without weight
    rounds: FloatArray  # [T] q_t
    samples: FloatArray  # [S] p_i
    clients: FloatArray  # [M] p_m

    @property
    def effective_samples(self) -> float:
        """1 / sum_i p_i^2, at most the number of samples: all of them if they count alike."""
        return effective_samples(self.samples)

    @property
    def drift(self) -> float:
        """sum_t q_t sum_m (p_m - p_m^t)^2, which adds zeta^2 drift to the noise of gradients, where zeta is how far the
        gradients of two clients are apart."""
        return float(self.rounds @ np.square(self.aggregation - self.clients).sum(1))


def stream_use(stored: Ragged, weights: ArrayLike, owner: ArrayLike, clients: int) -> StreamUse:
    """`stored` has the samples in memory in round t as its row t, `weights` one number for each of its values; `owner`
    is each sample's client."""
    weights, owner = np.asarray(weights, np.float64), np.asarray(owner, np.int64)
    if weights.shape != stored.values.shape or not (weights >= 0).all() or not weights.any():
        raise UserError("streams.weights: each stored sample needs a weight of at least 0, one of them above")
    place = _round_of(stored) * clients + owner[stored.values]
    mass = np.bincount(place, weights, len(stored) * clients).reshape(len(stored), clients)
    spent, total = mass.sum(1), weights.sum()
    aggregation = np.divide(mass, spent[:, None], out=np.zeros_like(mass), where=spent[:, None] > 0)
    samples = np.bincount(stored.values, weights, len(owner))
    return StreamUse(aggregation, spent / total, samples / total, mass.sum(0) / total)


def constant_weights(p: ArrayLike, stored: Ragged, owner: ArrayLike) -> FloatArray:
    """p_m / |memory of m| for every stored sample: client m counts p_m in every round in which all have samples."""
    p, client = np.asarray(p, np.float64), np.asarray(owner, np.int64)[stored.values]
    place = _round_of(stored) * p.size + client
    return np.asarray(p[client] / np.bincount(place)[place])


def first_use_weights(stored: Ragged) -> FloatArray:
    """1 in the first round that has the sample, 0 later: every sample counts alike, and nobody needs to know for how
    long it will stay."""
    weights = np.zeros(len(stored.values))
    weights[np.unique(stored.values, return_index=True)[1]] = 1
    return weights


def _round_of(stored: Ragged) -> IntArray:
    return np.repeat(np.arange(len(stored)), stored.counts)
