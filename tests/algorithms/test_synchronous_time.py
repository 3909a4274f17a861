"""Synchronous rounds on the virtual clock: who is waited for, how long it takes, and what a deadline costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
from toy_problems import EXACT, SELDOM, Watched, clients, point, simulate, steps

import turnout
from turnout import FedAvg, Full, Links, Stopping, devices
from turnout.sampling._sampler import Selection
from turnout.server.server import Server
from turnout.server.updates import Updates

FIVE = (0.0, 1.0, 2.0, 3.0, 4.0)
TAU = (1.0, 0.8, 0.6, 0.4, 0.2)


def f80(clients_: int = 5) -> devices.Devices:
    return devices.fx(80, clients_)


@pytest.mark.parametrize(("percent", "size"), [(80, 5), (80, 10), (0, 5), (80, 1)])
def test_rounds_in_time(percent: float, size: int) -> None:
    """asynchronous.md 3.2, sync: T / tau_M rounds in time T, each as long as the slowest client takes (3.8: 1 unit)."""
    people = clients([float(i) for i in range(size)], "equal", devices=devices.fx(percent, size))
    ended = simulate(FedAvg(steps(1, 0.5), Full()), people, rounds=None, seconds=12.0)
    assert ended.server.version == 12
    assert ended.rounds()["time"].tolist() == list(range(13))


def test_synchronous_updates_are_fresh() -> None:
    """asynchronous.md 3.2, sync: staleness 0 and weight p_i, every client in every round."""
    algorithm = Watched(steps(1, 0.5))
    ended = simulate(algorithm, clients(FIVE, "equal", devices=f80()), 6)
    assert all(seen["staleness"].tolist() == [0] * 5 for seen in algorithm.seen)
    assert all(seen["clients"].tolist() == [0, 1, 2, 3, 4] for seen in algorithm.seen)
    assert ended.audit.staleness == {0: 30}
    assert ended.audit.realised == pytest.approx([0.2] * 5)
    assert ended.jobs()["staleness"].tolist() == [0] * 30
    assert ended.rounds()["staleness_max"].tolist() == [0] * 7


def test_updates_come_in_order_of_arrival() -> None:
    """asynchronous.md 3.0: by (time, client id)."""
    jobs = simulate(FedAvg(steps(1, 0.5), Full()), clients(FIVE, "equal", devices=f80()), 1).jobs()
    assert jobs["client"].tolist() == [4, 3, 2, 1, 0]
    assert jobs["ended_at"].tolist() == [0.2, 0.4, 0.6, 0.8, 1.0]
    ties = simulate(FedAvg(steps(1, 0.5), Full()), clients(FIVE, "equal", devices=devices.fx(0, 5)), 1).jobs()
    assert ties["client"].tolist() == [0, 1, 2, 3, 4]


@dataclass
class Idle(FedAvg):
    """FedAvg's own waiting, with the updates thrown away: nothing needs to be trained."""

    sampler: Full = field(default_factory=Full)

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        server.publish(server.model, updates, None)


def expected_longest(means: tuple[float, ...]) -> float:
    """E max of independent exponentials, by inclusion and exclusion."""
    sizes = range(1, len(means) + 1)
    return sum(
        (-1) ** (size + 1) / sum(1 / mean for mean in chosen) for size in sizes for chosen in combinations(means, size)
    )


@pytest.mark.parametrize(("means", "expected"), [(TAU, 1.537705), ((1.0,) * 10, 2.928968)])
def test_round_length_under_exponential_delays(means: tuple[float, ...], expected: float) -> None:
    """asynchronous.md O7: E max T_i = 1.537705 for (1, .8, .6, .4, .2), H_10 = 2.928968 for ten of mean 1."""
    assert expected_longest(means) == pytest.approx(expected, abs=5e-7)
    people = clients([0.0] * len(means), "equal", devices=devices.exponential(means))
    lengths = np.diff(simulate(Idle(steps(1, 0.5)), people, 2000).rounds()["time"])
    assert abs(lengths.mean() - expected) <= 4 * lengths.std() / np.sqrt(len(lengths))
    assert abs(np.corrcoef(lengths[1:], lengths[:-1])[0, 1]) <= 4 / np.sqrt(len(lengths))


def test_deadline_cancels_the_late() -> None:
    """Whoever has not answered by the deadline is cancelled, and has cost its share of the work."""
    people = clients(FIVE, "equal", devices=f80())
    ended = simulate(FedAvg(steps(1, 0.5), Full(), deadline=0.5), people, 2)
    jobs = ended.jobs()
    late = jobs["client"] < 3  # 1, .8 and .6 seconds
    assert set(jobs["outcome"][late]) == {"cancelled"}
    assert set(jobs["outcome"][~late]) == {"arrived"}
    assert jobs["compute_seconds"][late].tolist() == [0.5] * 6
    assert jobs["progress"][late] == pytest.approx(0.5 / np.array(TAU)[jobs["client"][late]])
    assert jobs["ended_at"][late].tolist() == [0.5] * 3 + [1.0] * 3
    assert jobs["bytes_up"][late].tolist() == [0] * 6
    assert jobs["weight"][late].tolist() == [0] * 6
    assert jobs["compute_seconds"][~late] == pytest.approx(np.array(TAU)[jobs["client"][~late]])
    assert ended.rounds()["time"].tolist() == [0, 0.5, 1.0]
    assert ended.rounds()["cancelled"].tolist() == [0, 3, 3]
    assert ended.rounds()["used"].tolist() == [0, 2, 2]
    assert ended.audit.failures == {"cancelled": 6}
    assert ended.audit.never_heard.tolist() == [0, 1, 2]
    x = 0.0
    for _ in range(2):  # only clients 3 and 4 move it, with weight .2 each: the rest of the weight is lost
        x += 0.2 * 0.5 * ((3 - x) + (4 - x))
    assert float(ended.model[0]) == pytest.approx(x, rel=1e-14)


def test_arrival_at_the_deadline_counts() -> None:
    """asynchronous.md 3.9: the comparison is not strict."""
    people = clients(FIVE, "equal", devices=f80())
    jobs = simulate(FedAvg(steps(1, 0.5), Full(), deadline=0.6), people, 1).jobs()
    assert sorted(jobs["client"][jobs["outcome"] == "arrived"]) == [2, 3, 4]


def test_deadline_everybody_meets_ends_the_round_early() -> None:
    ended = simulate(FedAvg(steps(1, 0.5), Full(), deadline=9.0), clients(FIVE, "equal", devices=f80()), 3)
    assert ended.rounds()["time"].tolist() == [0, 1, 2, 3]


def test_cancelled_download_costs_its_share() -> None:
    """Eight bytes at 64 bit/s take a second to arrive: cancelled after a quarter, two bytes have come down."""
    people = clients(FIVE, "equal", devices=f80(), links=Links(down=64.0))
    jobs = simulate(FedAvg(steps(1, 0.5), Full(), deadline=0.25), people, 1).jobs()
    assert set(jobs["outcome"]) == {"cancelled"}
    assert jobs["bytes_down"].tolist() == [2] * 5
    assert jobs["download_seconds"].tolist() == [0.25] * 5
    assert jobs["compute_seconds"].tolist() == [0] * 5
    assert jobs["progress"].tolist() == [0] * 5


def test_nobody_meets_the_deadline() -> None:
    """An empty round: logged, the model unchanged, the time spent."""
    people = clients(FIVE, "equal", devices=f80())
    ended = simulate(FedAvg(steps(1, 0.5), Full(), deadline=0.1), people, 2)
    assert ended.audit.events == {"empty_round": 2}
    assert float(ended.model[0]) == 0
    assert ended.server.now == pytest.approx(0.2)


def test_time_on_the_wire() -> None:
    """A round is download + compute + upload of the slowest; the server's own push delays everybody's start."""
    people = clients((0.0, 1.0), "equal", devices=devices.fixed(2.0), links=Links(down=64.0, up=32.0, server=128.0))
    ended = simulate(FedAvg(steps(1, 0.5), Full()), people, 1)
    assert ended.rounds()["time"].tolist() == [0, 1 + 1 + 2 + 2]  # two copies pushed, down, work, up
    assert ended.jobs()["upload_seconds"].tolist() == [2, 2]


def test_sampled_rounds_wait_for_the_sampled() -> None:
    """A round lasts as long as the slowest of those invited, not of all."""
    people = clients(FIVE, "equal", devices=f80())
    ended = simulate(FedAvg(steps(1, 0.5), turnout.Uniform(2)), people, 30)
    jobs = ended.jobs()
    slowest = [max(np.array(TAU)[jobs["client"][jobs["round"] == number]]) for number in range(1, 31)]
    assert np.diff(ended.rounds()["time"]) == pytest.approx(slowest)
    assert len(set(slowest)) == 4


def test_stop_by_time_closes_the_round_under_way() -> None:
    """A round that began before the limit is finished."""
    experiment = turnout.Experiment(
        point(), clients(FIVE, "equal", devices=f80()), FedAvg(steps(1, 0.5), Full()), plan=EXACT, evaluation=SELDOM
    )
    experiment.stopping = Stopping(None, seconds=2.5)
    ended = turnout.execute(experiment)
    assert ended.server.now == 3.0
    assert ended.server.stopped == "2.5 virtual seconds"
