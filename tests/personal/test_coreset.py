"""What a memory without room for all keeps: subsets by hand, and prototypes that are k-means of each class."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from turnout.core.random import key, normal, permutation, uniform
from turnout.local.datastore import prototypes, rank_in_class, subset

SAMPLES, MOST = 40, 12


def points(number: int, size: int = 3) -> Tensor:
    return torch.from_numpy(normal(key(0, "test keys", number), SAMPLES * size)).reshape(SAMPLES, size)


def labels(number: int) -> Tensor:
    return torch.from_numpy((uniform(key(0, "test labels", number), SAMPLES) ** 2 * 4).astype(np.int64))


def some(number: int) -> Tensor:
    return torch.from_numpy(uniform(key(0, "test among", number), SAMPLES)) < 0.7


def test_the_rank_in_a_class_counts_those_before() -> None:
    mine = labels(1).tolist()
    assert rank_in_class(labels(1)).tolist() == [mine[:i].count(each) for i, each in enumerate(mine)]
    assert rank_in_class(torch.zeros(5).long()).tolist() == [0, 1, 2, 3, 4]
    assert rank_in_class(torch.zeros(0).long()).tolist() == []


def test_a_subset_is_the_end_of_a_shuffle_and_a_balanced_one_takes_turns() -> None:
    among, rank = some(1), torch.from_numpy(permutation(key(0, "test rank"), SAMPLES))
    classes = torch.where(among, labels(1), 9)  # of which there are none
    last_first = [i for i in rank.argsort(descending=True).tolist() if among[i]]
    kept = subset(classes, among, rank, 9, balanced=False).nonzero()[:, 0]
    assert kept.tolist() == sorted(last_first[:9])
    turns = subset(classes, among, rank, 9, balanced=True)
    there, taken = classes[among].bincount(minlength=4), classes[turns].bincount(minlength=4)
    assert int(taken.sum()) == 9
    assert not (turns & ~among).any()
    spare = there > taken  # of the classes with samples left nobody has two fewer than another
    assert int(taken.max()) - int(taken[spare].min()) <= 1
    for each in range(4):
        own = [i for i in last_first if classes[i] == each]
        assert sorted(own[: taken[each]]) == [i for i in turns.nonzero()[:, 0].tolist() if classes[i] == each]


def test_prototypes_are_the_means_of_those_nearest_to_them() -> None:
    """In proportion to the classes, and better than as many samples."""
    keys, classes, among = points(1), labels(1), some(1)
    centres, own, stored = prototypes(keys, classes, among, MOST, MOST)
    assert stored.all()
    there = classes[among].bincount(minlength=4).double()
    assert (own.bincount(minlength=4) - there * MOST / there.sum()).abs().max() < 1
    apart = torch.cdist(keys[among], centres) + torch.where(classes[among][:, None] == own, 0.0, torch.inf)
    nearest = apart.argmin(1)
    for j in range(MOST):
        torch.testing.assert_close(centres[j], keys[among][nearest == j].mean(0))
    spread = float(apart.min(1).values.square().sum())
    for start in range(20):
        rows = subset(classes, among, torch.from_numpy(permutation(key(start, "test"), SAMPLES)), MOST, balanced=False)
        other = torch.cdist(keys[among], keys[rows])
        other = other + torch.where(classes[among][:, None] == classes[rows], 0.0, torch.inf)
        assert float(other.min(1).values.square().sum()) > spread


def test_as_many_prototypes_as_samples_are_the_samples() -> None:
    centres, own, _ = prototypes(points(1), labels(1), torch.ones(SAMPLES, dtype=torch.bool), SAMPLES, SAMPLES)
    assert (torch.cdist(points(1), centres).min(1).values < 1e-6).all()
    assert own.bincount().tolist() == labels(1).bincount().tolist()


def test_many_clients_at_once_are_each_alone() -> None:
    numbers = torch.tensor([MOST, 3, 0, 7])
    keys, classes, among = (torch.stack([part(i) for i in range(4)]) for part in (points, labels, some))
    together = vmap(lambda *parts: prototypes(*parts, most=MOST))(keys, classes, among, numbers)  # type: ignore[misc]
    ranks = torch.from_numpy(np.stack([permutation(key(i, "test rank"), SAMPLES) for i in range(4)]))
    kept = vmap(lambda *parts: subset(*parts, balanced=True))(classes, among, ranks, numbers)  # type: ignore[misc]
    for i, number in enumerate(numbers.tolist()):
        alone = prototypes(keys[i][among[i]], classes[i][among[i]], torch.ones(int(among[i].sum())) > 0, number, number)
        assert together[2][i].tolist() == [j < number for j in range(MOST)]
        torch.testing.assert_close(together[0][i, :number], alone[0])
        assert torch.equal(together[1][i, :number], alone[1])
        assert torch.equal(kept[i], subset(classes[i], among[i], ranks[i], number, balanced=True))
