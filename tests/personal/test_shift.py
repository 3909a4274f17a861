"""Distribution shift replayed: what becomes of a memory decides how well a client is served (section 6.3)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from turnout.core.errors import UserError
from turnout.core.random import key, normal, permutation
from turnout.local.neighbours import KNN
from turnout.local.personaliser import Represented
from turnout_studies.theory.shift import replay_shift

CLASSES, CENTRES = 4, torch.tensor([[2.0, 0], [0, 2], [-2, 0], [0, -2]])


def blobs(client: int, part: str, count: int, names: torch.Tensor) -> Represented:
    """Gaussian blobs, labelled as this client calls them, under a model that has no idea."""
    which = torch.arange(count) % CLASSES
    noise = torch.from_numpy(normal(key(0, part, client), 2 * count)).reshape(count, 2)
    return Represented((CENTRES[which] + noise).float(), torch.full((count, CLASSES), 1 / CLASSES), names[which])


def curves(policy: str, clients: int = 12) -> np.ndarray:
    """`[steps]` accuracy, averaged over clients that all change the names of the blobs."""
    found = []
    for client in range(clients):
        names = torch.from_numpy(permutation(key(0, "names", client), CLASSES))
        changed = names.roll(1)
        parts = [
            blobs(client, part, count, called)
            for part, count, called in (
                ("before", 80, names),
                ("after", 120, changed),
                ("test before", 100, names),
                ("test after", 100, changed),
            )
        ]
        found.append(replay_shift(parts[0], parts[1], (parts[2], parts[3]), policy, batches=(10, 20), seed=client))
    return np.mean(found, 0)


def test_the_shapes_of_the_paper() -> None:
    fixed, fifo, growing = (curves(policy) for policy in ("fixed", "fifo", "growing"))
    assert all(len(curve) == 30 for curve in (fixed, fifo, growing))
    for curve in (fixed, fifo, growing):
        assert curve[9] > 0.7
        assert curve[10] < curve[9] - 0.4  # the shift hurts
    assert fixed[-1] < 0.2  # and is never forgiven
    assert len(set(fixed[:10])) == 1
    assert fifo[-1] > 0.95 * fifo[9]  # the old samples are gone: recovered
    assert growing[9] >= growing[0]  # more samples, before
    assert (fifo[14:20] > growing[14:20]).all()  # slower: the old ones still vote
    assert growing[-1] > growing[10] + 0.3


def test_by_hand() -> None:
    """Half is remembered, lambda is the default, and a batch is there when the client is tested after it."""
    keys = torch.arange(8.0)[:, None]
    served = torch.tensor([[1.0, 0]]).repeat(8, 1)
    before = Represented(keys, served, torch.zeros(8, dtype=torch.int64))
    after = Represented(keys + 100, served, torch.ones(8, dtype=torch.int64))
    knn = KNN(1, fraction=0.0, interpolation=1.0)
    scores = {
        policy: replay_shift(before, after, (before, after), policy, knn, (2, 4)).tolist()
        for policy in ("fixed", "growing")
    }
    assert scores["fixed"] == [1, 1, 0, 0, 0, 0]
    assert scores["growing"] == [1, 1, 1, 1, 1, 1]
    with pytest.raises(UserError, match="batches"):
        replay_shift(before, after, (before, after), "fifo", knn, (0, 4))
    with pytest.raises(UserError, match="unknown name 'lifo'"):
        replay_shift(before, after, (before, after), "lifo", knn)


def test_what_arrives_before_the_shift_is_what_was_not_remembered() -> None:
    keys, labels = torch.arange(8.0)[:, None], torch.arange(8) % 2  # a neighbour's label is always wrong
    before = Represented(keys, torch.full((8, 2), 0.5), labels)
    knn = KNN(1, fraction=0.0, interpolation=1.0)
    fixed, growing = (
        replay_shift(before, before, (before, before), each, knn, (4, 1)) for each in ("fixed", "growing")
    )
    assert fixed[0] < 1
    assert growing[3] == 1


def test_a_regression_is_scored_by_its_error() -> None:
    keys = torch.arange(8.0)[:, None]
    before = Represented(keys, torch.zeros(8, 1), torch.full((8,), 2.0))
    after = Represented(keys + 100, torch.zeros(8, 1), torch.full((8,), 3.0))
    knn = KNN(1, fraction=0.0, interpolation=1.0)
    assert replay_shift(before, after, (before, after), "fixed", knn, (1, 1)).tolist() == pytest.approx([0, -1])
