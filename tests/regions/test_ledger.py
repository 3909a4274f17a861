"""The counts of rounds that late survivors may still answer."""

from __future__ import annotations

import numpy as np

from turnout.core.random import IntArray
from turnout.theory.slack import Counts, Ledger


def ints(*values: int) -> IntArray:
    return np.array(values, np.int64)


def ledger() -> Ledger:
    """Rounds 3 and 4 of two regions, open until 10 and 12 seconds."""
    made = Ledger()
    for version, until, closed in ((3, 10.0, True), (4, 12.0, False)):
        made.open(version, until, Counts(ints(6, 5), ints(4, 3), ints(2, 1), ints(2, 1), closed))
    return made


def test_a_window_that_has_passed_makes_counts_final() -> None:
    made = ledger()
    assert made.close(9.999) == []
    (done,) = made.close(10.0)
    assert (done.selected.tolist(), done.survivors.tolist(), done.closed_by_quota) == ([4, 3], [2, 1], True)
    (other,) = made.close(50.0)
    assert not other.closed_by_quota
    assert made.close(50.0) == []
    assert len(made.versions) == len(made.counts) == 0


def test_pings_count_for_the_round_they_name() -> None:
    made = ledger()
    made.ping(ints(3, 4, 3, 3), ints(0, 1, 1, 0), np.array([5.0, 5.0, 10.0, 6.0]))
    first, second = made.close(20.0)
    assert first.survivors.tolist() == [4, 2]
    assert second.survivors.tolist() == [2, 2]
    assert first.submitted.tolist() == second.submitted.tolist() == [2, 1]


def test_pings_after_the_window_or_of_rounds_long_closed_do_not_count() -> None:
    made = ledger()
    made.ping(ints(3, 2, 9), ints(0, 0, 0), np.array([10.001, 1.0, 1.0]))
    assert [counts.survivors.tolist() for counts in made.close(20.0)] == [[2, 1], [2, 1]]
    made.ping(ints(3), ints(0), np.array([5.0]))  # nothing is open


def test_dropped_work_was_never_selected() -> None:
    made = ledger()
    made.withdraw(ints(4, 4, 1), ints(0, 0, 0))
    first, second = made.close(20.0)
    assert first.selected.tolist() == [4, 3]
    assert second.selected.tolist() == [2, 3]
    assert second.survivors.tolist() == [2, 1]
