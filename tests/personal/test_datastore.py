"""A client's memory: oracles 5 and 9 of the spec of kNN-Per, capacities, fingerprints, and FAISS in its place."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fake_faiss import FakeFaiss
from turnout.core.errors import UserError
from turnout.core.random import key, normal, uniform
from turnout.local.datastore import Datastore, check_capacity, fingerprint, room
from turnout.local.neighbours import KNN


def points(number: int, count: int, size: int = 3) -> Tensor:
    return torch.from_numpy(normal(key(0, "test keys", number), count * size)).reshape(count, size).float()


def store(count: int = 20, classes: int = 4, **options: Any) -> Datastore:
    labels = (uniform(key(0, "test classes"), count) ** 2 * classes).astype(np.int64)  # few of the last
    return Datastore(points(1, count), torch.from_numpy(labels), **options)


# -- arrivals -------------------------------------------------------------------------------------------------


def test_fifo_keeps_its_size_and_forgets_the_oldest() -> None:
    """Oracle 9."""
    old = store(6)
    some = old.update(points(2, 2), torch.tensor([7, 8]), "fifo")
    assert torch.equal(some.keys, torch.cat([old.keys[2:], points(2, 2)]))
    assert some.values.tolist() == [*old.values.tolist()[2:], 7, 8]
    for arriving in (6, 9):
        replaced = old.update(points(3, arriving), torch.arange(100, 100 + arriving), "fifo")
        assert torch.equal(replaced.keys, points(3, arriving)[-6:])
        assert replaced.values.tolist() == list(range(100, 100 + arriving))[-6:]


def test_growing_keeps_all_and_fixed_changes_nothing() -> None:
    old = store(6)
    grown = old.update(points(2, 4), torch.arange(4), "growing")
    assert len(grown) == 10
    assert torch.equal(grown.keys, torch.cat([old.keys, points(2, 4)]))
    before = old.keys.clone(), old.values.clone()
    fixed = old.update(points(2, 4), torch.arange(4), "fixed")
    assert torch.equal(fixed.keys, before[0])
    assert torch.equal(fixed.values, before[1])
    with pytest.raises(UserError, match="did you mean growing"):
        old.update(points(2, 4), torch.arange(4), "grow")


# -- capacity -------------------------------------------------------------------------------------------------


def test_a_share_a_number_or_all() -> None:
    assert [room(capacity, 30) for capacity in (None, 0.5, 1.0, 0.0, 1, 0, 100, 0.29)] == [30, 15, 30, 0, 1, 0, 30, 9]
    for wrong in (-1, 1.5, -0.1, float("nan")):
        with pytest.raises(UserError, match=r"capacity: .* must be a share from 0.0 to 1.0, or a whole number"):
            check_capacity("capacity", wrong)


@pytest.mark.parametrize("keep", ["random", "balanced"])
def test_a_subset_keeps_its_order_and_follows_from_the_seed(keep: str) -> None:
    whole = store(50)
    kept = whole.limited(20, keep, seed=3)
    assert len(kept) == 20
    rows = [int((whole.keys == each).all(1).nonzero()[0]) for each in kept.keys]
    assert rows == sorted(rows)
    assert torch.equal(kept.values, whole.values[rows])
    assert torch.equal(kept.keys, whole.limited(20, keep, seed=3).keys)
    assert not torch.equal(kept.keys, whole.limited(20, keep, seed=4).keys)
    assert whole.limited(50, keep) is whole
    assert len(whole.limited(0, keep)) == 0


def test_random_subsets_are_uniform() -> None:
    whole = Datastore(torch.arange(10.0)[:, None], torch.arange(10))
    seen = torch.cat([whole.limited(3, seed=seed).values for seed in range(600)]).bincount(minlength=10)
    assert (seen - 180).abs().max() < 5 * (600 * 0.3 * 0.7) ** 0.5


def test_balanced_takes_as_many_of_each_class_as_there_are() -> None:
    values = torch.tensor([0] * 30 + [1] * 3 + [2] * 10)
    whole = Datastore(points(1, 43), values)
    assert whole.limited(9, "balanced").values.bincount().tolist() == [3, 3, 3]
    assert whole.limited(21, "balanced").values.bincount().tolist() == [9, 3, 9]
    assert whole.limited(33, "balanced").values.bincount().tolist() == [20, 3, 10]


def test_a_coreset_is_k_means_of_each_class() -> None:
    """Three tight clusters of class 0 and one of class 1, in proportion: their centres."""
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]])
    keys = centres.repeat_interleave(10, 0) + 0.01 * points(1, 40, 2)
    values = torch.tensor([0] * 30 + [1] * 10)
    few = Datastore(keys, values, model="m").limited(4, "coreset")
    assert few.values.tolist() == [0, 0, 0, 1]
    assert few.model == "m"
    means = torch.stack([keys[10 * i : 10 * i + 10].mean(0) for i in range(4)])
    found = few.keys[few.keys[:, 0].add(2 * few.keys[:, 1]).round().argsort()]
    torch.testing.assert_close(found, means[means[:, 0].add(2 * means[:, 1]).round().argsort()])
    copies = Datastore(torch.zeros(9, 2), torch.zeros(9, dtype=torch.int64)).limited(3, "coreset")  # no warning
    assert not copies.keys.any()
    assert len(Datastore(keys, values).limited(0, "coreset")) == 0


def test_classes_are_needed_to_balance_them() -> None:
    real = Datastore(points(1, 5), torch.arange(5.0))
    assert len(real.limited(2)) == 2
    for keep in ("balanced", "coreset"):
        with pytest.raises(UserError, match=f"{keep} needs class labels"):
            real.limited(2, keep)
    with pytest.raises(UserError, match="did you mean random"):
        real.limited(2, "rando")


def test_bytes() -> None:
    """Section 7: 5,120 B a sample of MobileNet."""
    assert Datastore(torch.zeros(3, 1280), torch.zeros(3, dtype=torch.int64)).nbytes == 3 * (5120 + 8)


# -- queries --------------------------------------------------------------------------------------------------


def test_a_query_by_another_model_is_refused() -> None:
    model = nn.Linear(3, 2)
    mine = store(model=fingerprint(model, "layer"))
    mine.search(points(2, 2), 3, fingerprint(model, "layer"))
    for other in (fingerprint(model, "other"), fingerprint(model), ""):
        with pytest.raises(UserError, match="another model or layer"):
            mine.search(points(2, 2), 3, other)
    with torch.no_grad():
        model.bias[0] += 1e-6
    with pytest.raises(UserError, match="another model or layer"):
        mine.search(points(2, 2), 3, fingerprint(model, "layer"))


def test_what_cannot_be_compared_is_said_with_its_number() -> None:
    spoilt = points(1, 5)
    spoilt[3, 1] = torch.nan
    with pytest.raises(UserError, match="key of sample 3 is not finite"):
        Datastore(spoilt, torch.arange(5))
    with pytest.raises(UserError, match="key of sample 8 is not finite"):
        store(5).update(spoilt, torch.arange(5))
    with pytest.raises(UserError, match="representation of query 3 is not finite"):
        store().search(spoilt, 2)
    with pytest.raises(UserError, match=r"queries of shape \(2, 4\) cannot be compared with keys of 3"):
        store().search(points(2, 2, 4), 2)
    with pytest.raises(UserError, match=r"new keys of shape \(2, 4\) cannot be compared with keys of 3"):
        store().update(points(2, 2, 4), torch.arange(2))
    with pytest.raises(UserError, match="needs \\[n, p\\] and n values"):
        Datastore(points(1, 5), torch.arange(4))


def test_an_empty_memory_finds_nobody() -> None:
    distances, positions = store(0).search(points(2, 4), 3)
    assert distances.shape == positions.shape == (4, 0)


# -- FAISS ----------------------------------------------------------------------------------------------------


def test_faiss_is_asked_through_the_same_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", FakeFaiss)
    monkeypatch.setattr(FakeFaiss, "asked", [])
    exact, other = store(), store(index="faiss")
    for k in (1, 5, 30):
        for mine, theirs in zip(exact.search(points(2, 8), k), other.search(points(2, 8), k), strict=True):
            torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-6)
    store(index="faiss:HNSW32").search(points(2, 8), 3)
    assert FakeFaiss.asked == [(3, "Flat"), (3, "HNSW32")]
    assert store(0, index="faiss").search(points(2, 4), 3)[0].shape == (4, 0)


def test_an_index_that_finds_fewer_has_them_not_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", FakeFaiss)
    monkeypatch.setattr(FakeFaiss, "blind", 2)
    found = store(index="faiss").search(points(2, 8), 5)
    assert torch.equal(found[1][:, :3], store().search(points(2, 8), 3)[1])
    assert (found[0][:, 3:] == torch.inf).all()
    votes = store(index="faiss").vote(points(2, 8), KNN(5), 4)
    torch.testing.assert_close(votes, store().vote(points(2, 8), KNN(3), 4))


def test_the_real_faiss_recalls_what_is_near() -> None:
    pytest.importorskip("faiss")
    keys, queries = points(1, 2000, 16), points(2, 100, 16)
    exact = Datastore(keys, torch.arange(2000)).search(queries, 10)
    flat = Datastore(keys, torch.arange(2000), index="faiss").search(queries, 10)
    assert torch.equal(flat[1], exact[1])
    graph = Datastore(keys, torch.arange(2000), index="faiss:HNSW32").search(queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(graph[1].tolist(), exact[1].tolist(), strict=True)])
    assert recall > 0.9
    assert (graph[0].diff(dim=1) >= 0).all()


def test_without_faiss_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[faiss\]"'):
        store(index="faiss").search(points(2, 8), 5)
    with pytest.raises(UserError, match="unknown name 'annoy'"):
        store(index="annoy")
