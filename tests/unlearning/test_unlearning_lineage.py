"""Where SIFU rolls back to, from tables of psi alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.record.branch import Bound, Cut, alive, roll_back
from turnout.record.unlearning import Budget

BRANCHES: list[dict[str, float]] = [{"A": 0.25, "B": 0.1, "C": 0.2, "E": 0.4}, {"B": 0.2, "C": 0.3}, {"C": 0.05}, {}]
TEN = range(11)


def slopes(client: str) -> Bound:
    return lambda branch, number: BRANCHES[branch].get(client, 0.0) * number


def request(lineage: Sequence[Cut], client: str, branches: int, **options: object) -> list[Cut]:
    return roll_back(lineage, [TEN] * branches, slopes(client), 1.0, **options)  # type: ignore[arg-type]


def test_the_figure_of_the_paper() -> None:
    first = request([], "A", 1)
    assert first == [(0, 4)]
    second = request(first, "B", 2)
    assert second == [(0, 4), (1, 5)]
    assert request(second, "C", 3) == [(0, 4), (1, 3)]
    assert request(second, "E", 3) == [(0, 2)]
    assert request([Cut(0, 4), Cut(1, 3)], "B", 4) == [(0, 4), (1, 3), (3, 10)]  # nothing exceeded: the branch alive


def test_what_is_alive() -> None:
    lineage = [Cut(0, 4), Cut(2, 3)]
    assert alive(lineage, 0, 4)
    assert alive(lineage, 2, 0)
    assert not alive(lineage, 0, 5)
    assert not alive(lineage, 1, 0)


def test_a_thinned_history_rolls_back_further() -> None:
    assert roll_back([], [[0, 3, 6, 9]], slopes("A"), 1.0) == [(0, 3)]


def test_ties_are_admissible() -> None:
    assert roll_back([], [TEN], lambda _, number: float(number), 5.0) == [(0, 5)]


def test_no_noise_is_no_sensitivity_allowed() -> None:
    assert roll_back([], [TEN], slopes("A"), 0.0) == [(0, 0)]
    assert roll_back([], [TEN], slopes("A"), math.inf) == [(0, 10)]


def test_one_budget_for_all_cuts_of_a_client() -> None:
    """C has .8 at (0, 4): .6 is left for branch 1, two rounds of .3; per branch it would be three."""
    lineage = [Cut(0, 4), Cut(1, 5)]
    assert request(lineage, "C", 3) == [(0, 4), (1, 3)]
    assert request(lineage, "C", 3, budget="per_client_total") == [(0, 4), (1, 2)]


def test_a_bound_that_falls_again_must_hold_for_those_forgotten_before() -> None:
    """The first client's bound is within 1 at round 9 and above it from 3 to 8; the second may go up to round 6."""

    def first(branch: int, number: int) -> float:
        return 2.0 if branch == 0 and 3 <= number <= 8 else 0.5

    assert roll_back([Cut(0, 9)], [TEN, TEN], lambda _, number: number / 6, 1.0, earlier=[first]) == [(0, 2)]


def test_a_cut_branch_is_never_gone_up_again() -> None:
    """Also where the bound is lower beyond the cut."""

    def bound(branch: int, number: int) -> float:
        return 2.0 if branch == 0 and 2 <= number <= 5 else 0.0

    assert roll_back([Cut(0, 5)], [TEN, TEN], bound, 1.0) == [(0, 1)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cuts_never_move_up_and_every_cut_is_admissible(data: st.DataObject) -> None:
    """O8, with random non-decreasing psi, random thinning and both budgets."""
    clients, rounds = 6, 8
    budget: Budget = data.draw(st.sampled_from(get_args(Budget)))
    steps = st.lists(st.floats(0, 0.6), min_size=rounds, max_size=rounds)
    tables: list[list[list[float]]] = []
    stored: list[list[int]] = []
    lineage: list[Cut] = []
    order = data.draw(st.permutations(range(clients)))
    for number, client in enumerate(order):
        grown = []
        for other in range(clients):
            gone = other in order[:number]
            increments = [0.0] * rounds if gone else data.draw(steps)
            grown.append([sum(increments[:n]) for n in range(rounds + 1)])
        tables.append(grown)
        every = data.draw(st.integers(1, 3))
        stored.append(list(range(0, rounds + 1, every)))

        def bound(branch: int, at: int, client: int = client) -> float:
            return tables[branch][client][at]

        before = dict(lineage)
        lineage = roll_back(lineage, stored, bound, 1.0, budget=budget)
        branches = [cut.branch for cut in lineage]
        assert branches == sorted(set(branches))
        assert all(cut.round <= before.get(cut.branch, rounds) for cut in lineage)
        assert all(cut.round in stored[cut.branch] for cut in lineage)
        for forgotten in order[: number + 1]:
            psi = [tables[cut.branch][forgotten][cut.round] for cut in lineage]
            assert (math.hypot(*psi) if budget == "per_client_total" else max(psi)) <= 1.0
        cut = lineage[-1]
        higher = [n for n in stored[cut.branch] if cut.round < n <= before.get(cut.branch, rounds)]
        if budget == "per_branch":
            assert all(tables[cut.branch][client][n] > 1.0 for n in higher)
