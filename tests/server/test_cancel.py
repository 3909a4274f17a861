"""Whoever is told to stop says so; the dead say nothing, whatever the server has learnt of them."""

from __future__ import annotations

import numpy as np
import pytest

from support import Idle, local, population, simulation
from turnout import Bernoulli, Crashes, Detection, Links, devices


@pytest.mark.parametrize("detection", [Detection(), Detection("heartbeat", 0.5), Detection("none")])
def test_cancel_returns_the_jobs_of_those_still_at_work(detection: Detection) -> None:
    """Client 0 is done, 1 crashes before, 2 will crash later or never, 3 is still at work."""
    people = population(
        (1, 1, 1, 1),
        devices=devices.table([1.0, 1.0, 100.0, 5.0]),
        crashes=Crashes(np.array([0.0, 1.0, 1.0, 0.0])),
        detection=detection,
    )
    server = simulation(Idle(), people)
    server.invite([0, 1, 2, 3], local())
    share = people.crashes.draw(people.seed, people.ids, 0)[1]
    assert share[1] < 1.2 < 100 * share[2]
    server.wait(seconds=1.2)
    stopped = server.cancel([0, 1, 2, 3])
    assert stopped.clients.tolist() == [2, 3]
    assert stopped.versions.tolist() == [0, 0]
    assert stopped.reasons == ["cancelled", "cancelled"]
    assert len(server.cancel([0, 1, 2, 3])) == 0


def test_who_was_never_there_has_nothing_to_stop() -> None:
    people = population((1, 1), availability=Bernoulli(0.0), detection=Detection("none"), links=Links(latency=1.0))
    server = simulation(Idle(), people)
    server.invite([0, 1], local())
    assert len(server.cancel([0, 1])) == 0
