"""Samples that arrive, and memories. data-streams.md 3.3, 3.7."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from support import SIZES, population
from turnout.clients import arriving, memories
from turnout.clients.memories import FIFO, Latest, Memory, Reservoir, Static
from turnout.clients.population import Population
from turnout.clients.streams import Stream
from turnout.core.errors import UserError

ALL = np.arange(len(SIZES))


def counts_of(process: arriving.Arrivals, samples: int, clients: int = 3, seed: int = 4) -> list[list[int]]:
    """Arrivals a period, client by client."""
    when = arriving.periods(process, np.full(clients, samples), seed).reshape(clients, samples)
    return [np.bincount(row, minlength=int(when.max()) + 1).tolist() for row in when]


def stored(people: Population, at: float) -> list[set[int]]:
    rows = people.samples(ALL, np.full(len(ALL), at))
    assert people.counts(ALL, np.full(len(ALL), at)).tolist() == rows.counts.tolist()
    return [set(rows.row(client).tolist()) for client in ALL.tolist()]


def test_constant_spread_and_replayed_arrivals() -> None:
    assert counts_of(arriving.constant(3), 8)[0] == [3, 3, 2]
    assert counts_of(arriving.constant(0.5), 3)[0] == [1, 0, 1, 0, 1]
    assert counts_of(arriving.constant(1.5), 6)[0] == [2, 1, 2, 1]
    assert counts_of(arriving.spread(4), 10)[0] == [3, 2, 3, 2]
    assert counts_of(arriving.spread(4), 3)[0] == [1, 1, 1]
    assert counts_of(arriving.replay([2, 0, 1]), 7)[0] == [2, 0, 1, 2, 0, 1, 1]


def test_samples_arrive_client_after_client_as_in_a_table_of_all_periods() -> None:
    samples = np.array([5, 0, 13, 1, 7])
    for process in (arriving.poisson(0.8), arriving.bursts(2, 5, 2), arriving.once(9), arriving.spread(6)):
        left, table = samples.copy(), list[np.ndarray]()
        while left.any():
            table.append(np.minimum(process(3, samples, len(table)), left))
            left = left - table[-1]
        expected = [np.repeat(np.arange(len(table)), column) for column in np.array(table).T]
        assert arriving.periods(process, samples, 3).tolist() == np.concatenate(expected).tolist()
    assert len(arriving.periods(arriving.constant(1), np.zeros(4, np.int64), 0)) == 0


def test_periods_take_no_table_of_clients_and_periods() -> None:
    """20,000 clients and 500 periods: a table would be 80 MB, the samples are 0.32 MB."""
    tracemalloc.start()
    when = arriving.periods(arriving.once(500), np.full(20_000, 2), 0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(when) == 40_000
    assert most < 8e6


def test_random_arrivals_have_their_rates() -> None:
    poisson = np.concatenate([row[:1000] for row in counts_of(arriving.poisson(0.7), 800, 50)])
    assert poisson.mean() == pytest.approx(0.7, abs=4 * math.sqrt(0.7 / len(poisson)))
    assert poisson.var() == pytest.approx(0.7, rel=0.05)
    bursts = np.array([row[:100] for row in counts_of(arriving.bursts(2, cycle=10, length=3), 100, 50)])
    assert set(np.unique(bursts)) == {0, 2}
    assert (np.add.reduceat(bursts[:, :100], np.arange(0, 100, 10), axis=1) == 6).all()
    assert len({tuple(row[:10]) for row in bursts.tolist()}) > 3  # moments of their own
    when = arriving.periods(arriving.once(20), np.full(400, 3), 0).reshape(400, 3)
    assert (when == when[:, :1]).all()
    assert np.bincount(when[:, 0], minlength=20).min() > 5


def test_memories_against_a_list_that_is_kept_period_by_period() -> None:
    """FIFO, latest, static and unlimited, for every client and period."""
    arrivals = arriving.poisson(1.3)
    for memory in (Memory(), Latest(), Static(), FIFO(4)):
        people = population().streaming(arrivals, memory, seconds=0.5)
        first: dict[int, list[int]] = {client: [] for client in ALL.tolist()}
        lists: dict[int, list[int]] = {client: [] for client in ALL.tolist()}
        for period in range(25):
            for client in ALL.tolist():
                row = people.train.row(client)
                batch = row[people.stream.period[row] == period].tolist()  # type: ignore[union-attr]
                if period == 0:
                    first[client] = batch
                lists[client] = {
                    Memory: lists[client] + batch,
                    Latest: batch,
                    Static: first[client],
                    FIFO: (lists[client] + batch)[-4:],
                }[type(memory)]
            now = [set(values) for values in lists.values()]
            assert stored(people, 0.5 * period) == stored(people, 0.5 * period + 0.49) == now


def test_everything_arrives_in_the_end_and_nothing_twice() -> None:
    people = population().streaming(arriving.poisson(0.7), Memory(), seconds=3.0)
    before = population()
    assert [set(before.train.row(i).tolist()) for i in ALL.tolist()] == stored(people, 1e6)
    assert people.base_importance.tolist() == before.base_importance.tolist()
    assert sum(map(len, stored(people, 0.0))) < sum(SIZES)


def test_a_reservoir_is_a_uniform_sample_that_only_loses_what_it_replaces() -> None:
    people = population().streaming(arriving.constant(1), Reservoir(5))
    everything = population().streaming(arriving.constant(1), Memory())
    for period in range(30):
        now, before, seen = stored(people, period), stored(people, period - 1), stored(everything, period)
        for client in ALL.tolist():
            assert len(now[client]) == min(5, period + 1, SIZES[client])
            assert now[client] <= seen[client]
            assert len(now[client] - before[client]) <= 1
    share = np.zeros(SIZES[4])
    for seed in range(300):
        people = replace(population(), seed=seed).streaming(arriving.constant(1), Reservoir(5))
        row = people.train.row(4).tolist()
        share[[row.index(sample) for sample in stored(people, 99)[4]]] += 1 / 300
    assert share == pytest.approx(5 / SIZES[4], abs=4 * math.sqrt(0.2 * 0.8 / 300))


def test_historical_clients_have_everything_from_the_beginning() -> None:
    people = population().streaming(arriving.constant(1), Reservoir(2), fresh=[1, 4])
    for at in (0.0, 3.0, 50.0):
        now = stored(people, at)
        assert [len(now[i]) for i in (0, 2, 3, 5, 6, 7)] == [SIZES[i] for i in (0, 2, 3, 5, 6, 7)]
        assert [len(now[i]) for i in (1, 4)] == [min(2, int(at) + 1)] * 2
    half = population().streaming(arriving.constant(1), Latest(), fresh=0.5)
    assert half.stream is not None
    assert half.stream.fresh.sum() == 4


def test_drift_orders_arrivals_by_target() -> None:
    def disorder(drift: float) -> float:
        people = population((60, 60)).streaming(arriving.constant(1), Memory(), drift=drift)
        labels = [people.targets[torch.as_tensor(people.train.row(i))].numpy() for i in (0, 1)]
        return float(np.mean([np.mean(np.diff(row) < 0) for row in labels]))

    assert disorder(1.0) == 0 < disorder(0.5) < disorder(0.0)


def test_whoever_has_nothing_is_not_there() -> None:
    people = population().streaming(arriving.replay([0, 2]), Latest(), fresh=[0, 1])
    assert people.has_samples(ALL, 0.0).tolist() == [False, False] + [True] * 6
    assert people.has_samples(ALL, 1.0).all()
    assert people.has_samples(ALL, 2.0).tolist() == [False, False] + [True] * 6
    assert not people.reliable


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: arriving.constant(0), "constant.rate: 0"),
        (lambda: arriving.spread(0), "spread.periods: 0"),
        (lambda: arriving.once(-1), "once.periods: -1"),
        (lambda: arriving.bursts(1, 3, 4), "stream.length: 4 .* stream.cycle, 3"),
        (lambda: arriving.replay([0, 0]), "stream.trace"),
        (lambda: arriving.replay([3, -1]), "stream.trace"),
        (lambda: memories.FIFO(0), "memory.capacity: 0"),
        (lambda: population().streaming(arriving.constant(), Latest(), drift=1.1), "streaming.drift: 1.1"),
        (lambda: population().streaming(arriving.constant(), Latest(), fresh=1.5), "stream.fresh: 1.5"),
        (
            lambda: population().streaming(arriving.constant(), Latest(), fresh=[8]),
            "stream.fresh: 8 is not",
        ),
        (lambda: population().streaming(arriving.constant(), Latest(), seconds=0), "streaming.seconds: 0"),
        (lambda: population().streaming(lambda *_: np.zeros(8, np.int64), Latest()), "have not arrived"),
        (lambda: population(stream=Stream(np.zeros(82, np.int64), np.ones(3, bool))), "3 clients of 8"),
        (lambda: population(stream=Stream(-np.arange(82), np.ones(8, bool))), "order in which they arrive"),
    ],
)
def test_bad_streams(make: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving, "MOST_PERIODS", 1000)
    with pytest.raises(UserError, match=words):
        make()  # type: ignore[operator]
