"""Importance of clients that join and leave, and columns that are not given."""

from __future__ import annotations

from dataclasses import MISSING, fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import SIZES, local, mlp, population
from turnout import FedAvg, Full, Population, Task, simulate
from turnout.data.dataset import Dataset

SECONDS = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, np.inf])
TIMES = st.lists(SECONDS, min_size=len(SIZES), max_size=len(SIZES))


@given(TIMES, TIMES, st.lists(st.sampled_from([0.0, 0.4, 0.5, 1.0, 1.7, 2.0, 3.0, 9.0]), max_size=6))
def test_importance_is_that_of_the_members_whenever_it_is_asked_for(
    joined: list[float], left: list[float], times: list[float]
) -> None:
    people = population(joined_at=np.array(joined), left_at=np.array(left))
    for at in times:
        here = [p * (a <= at < b) for p, a, b in zip(people.base_importance.tolist(), joined, left, strict=True)]
        assert people.importance_at(at).tolist() == pytest.approx([p / (sum(here) or 1.0) for p in here])


def test_none_is_what_a_column_is_anyway() -> None:
    """Every column that has a value of its own accord; those that may be None stay so."""
    own = [part.name for part in fields(Population) if part.default_factory is not MISSING]
    assert {"devices", "links", "availability", "crashes", "detection"} <= set(own)
    dataset = Dataset("mine", torch.ones(30, 5), torch.arange(30) % 3, 3)
    people = Population.of(dataset, 5, **dict.fromkeys(own)), Population.of(dataset, 5)  # type: ignore[arg-type]
    assert [type(getattr(people[0], name)) for name in own] == [type(getattr(people[1], name)) for name in own]
    assert people[0].power is None
    one, other = (simulate(Task(mlp), each, FedAvg(local(), Full()), 1).server for each in people)
    assert one.model.equal(other.model) and one.now == other.now
