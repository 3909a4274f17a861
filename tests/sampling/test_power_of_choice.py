"""Power of choice: candidates in proportion to importance, then the largest losses."""

from __future__ import annotations

import numpy as np
import pytest
from small_server import EXAMPLE_A, population, server_of, task

import turnout
from turnout import Bernoulli, FedAvg, LocalSGD, Plan, UserError
from turnout.samplers import PowerOfChoice
from turnout.sampling._statistics import statistics

WORK = LocalSGD(0.5, steps=1, batching="full")
EXACT = Plan(precision="float64", threads=1)


def test_the_worst_losses_are_chosen() -> None:
    """At 0, client i's loss is i^2 / 2."""
    chosen = PowerOfChoice(2, candidates=4).sample(server_of(EXAMPLE_A))
    assert sorted(chosen.clients.tolist()) == [2, 3]
    assert chosen.weights.tolist() == [0.5, 0.5]


def test_only_candidates_are_chosen() -> None:
    """With as many candidates as clients to choose, the draw alone decides: the first is drawn with probability p."""
    server, counts = server_of(EXAMPLE_A, seed=5), np.zeros(4)
    for version in range(4000):
        server.version = version
        counts[PowerOfChoice(1, candidates=1).draw(server)] += 1
    assert counts / 4000 == pytest.approx(np.array(EXAMPLE_A), abs=5 * 0.5 / np.sqrt(4000))


def test_those_away_are_no_candidates() -> None:
    server = server_of([1 / 12] * 12, availability=Bernoulli(0.4))
    for version in range(50):
        server.version = version
        assert server.online().contains(PowerOfChoice(3, candidates=6).draw(server)).all()


def test_a_report_takes_an_answer_and_eight_bytes() -> None:
    """Two jobs a round for those chosen: a report of one number, then the work."""
    result = turnout.simulate(
        task(), population(EXAMPLE_A), FedAvg(WORK, PowerOfChoice(1, candidates=3)), rounds=4, plan=EXACT
    )
    assert result.server.now == pytest.approx(8)
    jobs = result.jobs()
    assert (jobs["steps"] == 0).sum() == 4 * 3
    assert set(jobs["bytes_up"][jobs["steps"] == 0].tolist()) == {8}  # float64 here
    assert (jobs["weight"][jobs["steps"] == 0] == 0).all()
    assert result.rounds()["used"].tolist() == [0, 1, 1, 1, 1]


def test_it_moves_towards_those_who_fit_badly() -> None:
    """The optimum of the mean is 1; the two clients furthest away pull the model to the middle of the range."""
    algorithm = FedAvg(WORK, PowerOfChoice(2, candidates=4), server_lr=0.1)
    result = turnout.simulate(task(), population(EXAMPLE_A), algorithm, rounds=300, plan=EXACT)
    assert float(result.model[0]) == pytest.approx(1.5, abs=0.15)


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match=r"sampler\.clients_per_round: 5"):
        PowerOfChoice(5, candidates=4)
    with pytest.raises(UserError, match="depends on the losses"):
        statistics(PowerOfChoice(), population(EXAMPLE_A))
