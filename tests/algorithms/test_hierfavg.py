"""HierFAVG: regional averages every round, a cloud average every so many. edge-hierarchy-hybridfl.md 3.4, O16, O20."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from toy_problems import clients, simulate, steps

from turnout import Crashes, FedAvg, Full, Links, Observer, Population, devices
from turnout.algorithms.hierfavg import HierFAVG
from turnout.core.errors import UserError
from turnout.core.random import key, uniform
from turnout.server.jobs import Job
from turnout.server.server import Server

HALF = steps(1, 0.5)  # half of the way to the client's optimum
LATE = 100.0


class Sent(Observer):
    """What every client was sent, round by round."""

    def __init__(self) -> None:
        self.rounds: list[dict[int, float]] = []

    def on_invite(self, server: Server, jobs: Sequence[Job]) -> None:
        self.rounds.append({job.client: float(job.received[0]) for job in jobs})


def people(regions: Sequence[int], optima: Sequence[float], importance: Any = "equal", **columns: Any) -> Population:
    columns.setdefault("devices", devices.fixed(1.0))
    return clients(optima, importance, regions=np.array(regions), **columns)


def test_regions_go_their_own_way_between_cloud_rounds() -> None:
    """By hand: two regions of weights .6 and .4, a cloud average after every second round."""
    world = people([0, 0, 1], [2.0, 4.0, 10.0], [0.2, 0.4, 0.4])
    sent = Sent()
    result = simulate(HierFAVG(HALF, LATE, 1.0, cloud_interval=2), world, 5, observers=[sent])
    w = np.zeros(2)
    target = np.array([(2 + 2 * 4) / 3, 10.0])
    models = []
    for number in range(5):
        assert sent.rounds[number] == pytest.approx({0: w[0], 1: w[0], 2: w[1]})
        w = w + 0.5 * (target - w)
        models.append(0.6 * w[0] + 0.4 * w[1])
        if number % 2:
            w[:] = models[-1]
    assert float(result.model[0]) == pytest.approx(models[-1])
    assert result.rounds()["weight"][1:] == pytest.approx(1)
    assert result.jobs()["weight"][:3] == pytest.approx([0.2, 0.4, 0.4])


def test_regions_count_by_their_data_whoever_answers() -> None:
    """O16: three clients of one region against one of the other, all of equal size: .5 and .5. A9: a regional model is
    the average of those that answered."""
    world = people(
        [0, 0, 0, 0, 1, 1, 1, 1],
        [4.0, 4.0, 7.0, 99.0, 99.0, 99.0, 99.0, 8.0],
        devices=devices.table([1, 1, 1, 9, 9, 9, 9, 1]),
    )
    result = simulate(HierFAVG(steps(1, 1.0), 5.0, 1.0), world, 1)
    assert float(result.model[0]) == pytest.approx(0.5 * 5 + 0.5 * 8)
    jobs = result.jobs()
    used = dict(zip(jobs["client"].tolist(), jobs["weight"].tolist(), strict=True))
    assert used == pytest.approx({0: 1 / 6, 1: 1 / 6, 2: 1 / 6, 7: 1 / 2, 3: 0, 4: 0, 5: 0, 6: 0})
    assert result.server.now == 5.0


def test_a_region_that_nobody_answers_in_keeps_its_model() -> None:
    """A9."""
    world = people([0, 0, 1, 1], [2.0, 2.0, 6.0, 6.0], devices=devices.table([1, 1, 9, 9]))
    result = simulate(HierFAVG(HALF, 5.0, 1.0), world, 3, 4.0)
    assert float(result.model[0]) == pytest.approx(0.5 * (2 + 2 * 0.5**3) + 0.5 * 4)
    dead = people([0, 1], [2.0, 6.0], crashes=Crashes(1.0))
    result = simulate(HierFAVG(HALF, 5.0, 1.0), dead, 3, 4.0)
    assert float(result.model[0]) == 4.0
    assert result.audit.events == {"empty_round": 3}
    assert result.server.now == 15.0


def test_time_to_the_cloud_is_paid_when_it_is_asked() -> None:
    """3 * 2 edges * 8 bit / 24 = 2 s in every third round; dropped clients are waited for to the deadline (O20)."""
    world = people([0, 0, 1, 1], [0.0] * 4, links=Links(backhaul=24.0), model_bytes=1)
    times = simulate(HierFAVG(HALF, 5.0, 1.0, cloud_interval=3), world, 6).rounds()["time"]
    assert np.diff(times) == pytest.approx([1, 1, 3, 1, 1, 3])
    crash = Crashes(np.array([1.0, 0.0, 0.0, 0.0]))
    unreliable = people([0, 0, 1, 1], [0.0] * 4, links=Links(backhaul=24.0), model_bytes=1, crashes=crash)
    times = simulate(HierFAVG(HALF, 5.0, 1.0, cloud_interval=3), unreliable, 6).rounds()["time"]
    assert np.diff(times) == pytest.approx([5, 5, 7, 5, 5, 7])


def test_each_region_draws_its_share() -> None:
    """ceil(C N_r), uniformly, anew in every round."""
    regions = [0] * 10 + [1] * 5
    world = people(regions, [0.0] * 15)
    sent = Sent()
    simulate(HierFAVG(HALF, LATE, 0.3), world, 300, observers=[sent])
    for drawn in sent.rounds:
        assert np.bincount(np.array(regions)[list(drawn)]).tolist() == [3, 2]
    often = np.bincount([client for drawn in sent.rounds for client in drawn], minlength=15) / 300
    assert often == pytest.approx([0.3] * 10 + [0.4] * 5, abs=0.11)  # four standard deviations


@pytest.mark.parametrize("regions", [1, 4])
def test_a_cloud_average_every_round_of_everybody_is_fedavg(regions: int) -> None:
    weights = 1 + uniform(key(0, "weights"), 12)
    world = people(
        (np.arange(12) % regions).tolist(), uniform(key(0, "optima"), 12).tolist(), (weights / weights.sum()).tolist()
    )
    ours = simulate(HierFAVG(HALF, LATE, 1.0, cloud_interval=1), world, 5)
    theirs = simulate(FedAvg(HALF, Full()), world, 5)
    torch.testing.assert_close(ours.model, theirs.model, rtol=1e-12, atol=1e-14)


def test_one_region_is_fedavg_over_responders() -> None:
    world = people(
        [0] * 12,
        uniform(key(0, "optima"), 12).tolist(),
        crashes=Crashes(0.4, clock="round"),
        devices=devices.fx(50, 12),
    )
    ours = simulate(HierFAVG(HALF, 0.9, 1.0, cloud_interval=4), world, 6)
    theirs = simulate(FedAvg(HALF, Full(), deadline=0.9, wait_for_crashed=True, normalise="responders"), world, 6)
    torch.testing.assert_close(ours.model, theirs.model, rtol=1e-12, atol=1e-14)
    assert ours.server.now == pytest.approx(theirs.server.now)


def test_who_has_left_has_no_part() -> None:
    """Regions weigh what their members weigh."""
    world = people([0, 0, 1], [2.0, 2.0, 10.0], left_at=np.array([99.0, 99.0, 1.5]))
    result = simulate(HierFAVG(steps(1, 1.0), 5.0, 1.0), world, 3)
    assert float(result.model[0]) == pytest.approx(2.0)
    nobody = people([0, 1], [2.0, 10.0], left_at=np.array([0.5, 0.5]))
    result = simulate(HierFAVG(steps(1, 1.0), 5.0, 1.0), nobody, 3, 4.0)
    assert float(result.model[0]) == 4.0
    assert result.server.now == 15.0


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm.cloud_interval: 0 must be at least 1"):
        HierFAVG(HALF, 1.0, cloud_interval=0)


def test_the_weight_of_the_silent_may_stay_with_the_regional_model() -> None:
    """By hand: of region 0 three quarters answer, of region 1 one half, of region 2 nobody."""
    world = people(
        [0, 0, 0, 0, 1, 1, 2],
        [4.0, 4.0, 8.0, 99.0, 6.0, 99.0, 99.0],
        devices=devices.table([1, 1, 1, 9, 1, 9, 9]),
    )
    result = simulate(HierFAVG(steps(1, 1.0), 5.0, 1.0, idle_fallback="regional"), world, 1, 2.0)
    regional = [(4 + 4 + 8 + 2) / 4, (6 + 2) / 2, 2]
    assert float(result.model[0]) == pytest.approx(np.dot([4 / 7, 2 / 7, 1 / 7], regional))
    weights = dict(zip(result.jobs()["client"].tolist(), result.jobs()["weight"].tolist(), strict=True))
    assert weights == pytest.approx({0: 1 / 7, 1: 1 / 7, 2: 1 / 7, 4: 1 / 7, 3: 0, 5: 0, 6: 0})
    with pytest.raises(UserError, match=r"idle_fallback.*global.*none, regional"):
        HierFAVG(HALF, LATE, idle_fallback="global")  # type: ignore[arg-type]
