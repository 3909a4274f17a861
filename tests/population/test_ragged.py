"""Ragged rows against plain lists of lists."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turnout.core.ragged import Ragged

ROWS = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=8)


@given(ROWS)
def test_rows_come_back(rows: list[list[int]]) -> None:
    ragged = Ragged.from_rows(rows)
    assert len(ragged) == len(rows)
    assert ragged.counts.tolist() == [len(row) for row in rows]
    assert [ragged.row(i).tolist() for i in range(len(rows))] == rows


def test_no_rows_at_all() -> None:
    ragged = Ragged.from_rows([])
    assert len(ragged) == 0 and len(ragged.values) == 0 and ragged.offsets.tolist() == [0]


@given(ROWS, st.data())
def test_selected_rows_in_any_order(rows: list[list[int]], data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    chosen = Ragged.from_rows(rows).rows(np.array(ids, np.int64))
    assert [chosen.row(i).tolist() for i in range(len(ids))] == [rows[i] for i in ids]


@given(st.lists(st.integers(-2, 4), max_size=30))
def test_from_owner_groups_items_in_order(owner: list[int]) -> None:
    ragged = Ragged.from_owner(owner, 5)
    assert [ragged.row(i).tolist() for i in range(5)] == [[j for j, o in enumerate(owner) if o == i] for i in range(5)]


@given(ROWS, st.integers(1, 8))
def test_padding_repeats_the_first_value_or_zero(rows: list[list[int]], width: int) -> None:
    padded = Ragged.from_rows(rows).padded(width)
    expected = [(row + [row[0] if row else 0] * width)[:width] for row in rows]
    assert padded.tolist() == expected


def test_all_rows_are_not_copied_but_a_permutation_is_one() -> None:
    ragged = Ragged.from_rows([[5, 6], [], [7]])
    assert ragged.rows(np.arange(3)) is ragged
    assert ragged.rows(np.array([2, 1, 0])).values.tolist() == [7, 5, 6]
    assert ragged.rows(np.array([0, 1])).values.tolist() == [5, 6]


@given(ROWS, st.data())
def test_picked_rows_are_the_rows(rows: list[list[int]], data: st.DataObject) -> None:
    ids = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10)), np.int64)
    whole = Ragged.from_rows(rows)
    picked, chosen = whole.pick(ids), whole.rows(ids)
    assert len(picked) == len(chosen)
    assert picked.counts.tolist() == chosen.counts.tolist()
    assert [picked.pool[b : b + n].tolist() for b, n in zip(picked.begin, picked.counts, strict=True)] == [
        rows[i] for i in ids.tolist()
    ]
    for one in (picked, pickle.loads(pickle.dumps(picked)), whole.pick(np.arange(len(rows))).rows(ids)):
        assert one.offsets.tolist() == chosen.offsets.tolist()
        assert one.values.tolist() == chosen.values.tolist()
        assert one.padded(4).tolist() == chosen.padded(4).tolist()
        assert one.row(0).tolist() == rows[ids[0]]
    assert type(pickle.loads(pickle.dumps(picked))) is Ragged  # without the rows of others
