"""The contract with an adversary in the world: the same bits twice and through a checkpoint, within the budget, and
the same adversary for every algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import ALGORITHMS, SMALL, WORLD, experiment, population, same
from turnout.clients.adversary import Adversary, LargestNorm, Random, Room, Silence, Starve, WorstCase
from turnout.core.random import IntArray
from turnout.server.observer import Event, Observer
from turnout.server.server import Server
from turnout.server.updates import Updates

ADVERSARIES: list[Adversary] = [
    Random(0.4), Silence(0.4, [1, 2, 4, 6]), LargestNorm(0.4), WorstCase(0.4), Starve(0.4),
]  # fmt: skip


@dataclass
class Sly(Starve):
    """Has a memory and looks at updates: of those heard least, whose updates are longest."""

    def wanted(self, server: Server, updates: Updates, room: Room) -> IntArray:
        order = super().wanted(server, updates, room)
        norms = updates.norms().cpu().numpy()[order]
        return order[np.lexsort((-norms, self.heard[updates.clients[order]]))]


class Silenced(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[int, tuple[int, ...], float]] = []

    def on_event(self, server: Server, event: Event) -> None:
        if event.kind == "silenced":
            self.events.append((event.round, tuple(sorted(event.facts["clients"])), event.facts["share"]))


def against(adversary: Adversary, name: str, rounds: int = 4) -> turnout.Experiment:
    return experiment(name, rounds, people=replace(population(SMALL, **WORLD), adversary=adversary))


def outcome(result: turnout.Result) -> tuple[Any, ...]:
    summary = result.summary()
    summary["audit"]["events"].pop("resumed", None)
    return result.rounds(), result.jobs(), summary


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_bits_twice_and_after_a_resume_within_the_budget(name: str, tmp_path: Path) -> None:
    watch = Silenced()
    whole = turnout.execute(against(Sly(0.4), name), observers=[watch])
    assert watch.events or name in ("centralised", "local")
    assert all(share <= 0.4 + 1e-9 for _, _, share in watch.events)
    turnout.execute(against(Sly(0.4), name, 2), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(against(Sly(0.4), name), tmp_path, checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, resumed.model)
    (rounds, jobs, summary), (rounds2, jobs2, summary2) = outcome(whole), outcome(resumed)
    assert same(rounds, rounds2)
    assert same(jobs, jobs2)
    assert summary == summary2


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda adversary: type(adversary).__name__)
def test_every_adversary_resumes_with_what_it_remembers(adversary: Adversary, tmp_path: Path) -> None:
    watches = Silenced(), Silenced(), Silenced()
    whole = turnout.execute(against(adversary, "fedavg", 8), observers=[watches[0]])
    turnout.execute(against(adversary, "fedavg", 5), tmp_path, checkpoint_every=1, observers=[watches[1]])
    resumed = turnout.execute(
        against(adversary, "fedavg", 8), tmp_path, checkpoint_every=1, resume=True, observers=[watches[2]]
    )
    assert torch.equal(whole.model, resumed.model)
    assert watches[0].events == watches[1].events + watches[2].events
    assert watches[0].events


@pytest.mark.parametrize("adversary", [Random(0.4), Silence(0.4, [1, 2, 4, 6])], ids=["Random", "Silence"])
def test_the_adversary_is_the_same_for_every_algorithm(adversary: Adversary) -> None:
    """One that does not look at updates silences the same clients whatever is learnt, while the same are invited."""
    seen = {}
    for name in ("fedavg", "robust_fedavg", "fedprox", "scaffold", "fedadam", "robust_momentum"):
        watch = Silenced()
        turnout.execute(against(adversary, name, 6), observers=[watch])
        seen[name] = watch.events
    assert seen["fedavg"]
    assert all(events == seen["fedavg"] for events in seen.values())
