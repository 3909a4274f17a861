"""Columns of what is drawn once a client, against the draws themselves."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.clients import devices
from turnout.clients.columns import Once
from turnout.clients.devices import AtLeast, Draw, Evenly, Exponential, Gaussian, LogNormal, sample
from turnout.clients.links import Links
from turnout.clients.traces import Trace
from turnout.core import random

CALLS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 99), max_size=4)), max_size=8)
DRAWS: dict[str, Draw] = {
    "exponential": Exponential(2.0),
    "per client": LogNormal(np.linspace(1, 2, 5000), 0.8),
    "redrawn": AtLeast(Gaussian(1.0, 0.5), 0.3, redraw=True),
    "certain": Evenly(80, 5000),
}


def number(seed: int, ids: np.ndarray) -> np.ndarray:
    return 1000 * seed + ids


@given(CALLS)
def test_whoever_is_asked_in_whatever_order(calls: list[tuple[int, list[int]]]) -> None:
    once = Once(number)
    for seed, ids in calls:
        found = once(seed, np.array(ids, np.int64))
        assert found.tolist() == [1000 * seed + client for client in ids] and found.dtype == np.int64


def test_every_client_is_drawn_once_and_nobody_beyond_the_last() -> None:
    drawn: list[int] = []

    def draw(seed: int, *, ids: np.ndarray) -> np.ndarray:  # noqa: ARG001
        drawn.extend(ids.tolist())
        return ids * 0.5

    once = Once(draw)
    for client in (3, 0, 3, 9, 4, 10):
        once(0, np.array([client]))
    assert drawn == list(range(11))


@pytest.mark.parametrize("name", DRAWS)
def test_a_column_has_the_bits_of_the_draws_of_few(name: str) -> None:
    """However many are computed together: vector instructions must not show."""
    draw, links = DRAWS[name], Links(down=DRAWS[name])
    model = devices.Devices(draw, rate=True)
    for count in (1, 3, 8, 17):
        ids = random.integers(random.key(0, "some", np.arange(50)), count, 5000)
        for some in ids:
            assert np.array_equal(links.rates("down", 7, some), sample(draw, 7, "link down", some))
            assert np.array_equal(model.seconds(7, some, 0, 1, 1), 1 / sample(draw, 7, "device", some))


def test_a_trace_follows_the_devices_and_shifts_drawn() -> None:
    spells: tuple[Any, ...] = ([0, 0, 1, 2], [0, 40, 10, 5], [20, 50, 60, 55])
    trace, plain = Trace(*spells, shift="random", assign="random"), Trace(*spells)  # type: ignore[misc]
    ids = np.arange(200)
    device = random.integers(random.key(4, "trace device", ids), 1, 3)[:, 0]
    shift = random.integers(random.key(4, "trace shift", ids), 1, 60_000_000)[:, 0] / 1e6
    for some in (ids[::-7], ids[:1], ids):
        at = shift[some] + 33.0
        assert trace.online(4, some, 33.0).tolist() == plain.online(0, device[some], at).tolist()
        for until in ("online_until", "online_from"):
            left = getattr(plain, until)(0, device[some], at) - at
            np.testing.assert_allclose(getattr(trace, until)(4, some, 33.0) - 33.0, left, atol=3e-6)


def test_what_was_drawn_travels_with_its_owner() -> None:
    links = Links(up=LogNormal(1e6, 1.0))
    before = links.upload_seconds(1, np.arange(5), 1e6)
    assert np.array_equal(pickle.loads(pickle.dumps(links)).upload_seconds(1, np.arange(5), 1e6), before)
