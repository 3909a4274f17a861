"""Importance of clients that join and leave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import SIZES, population

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
