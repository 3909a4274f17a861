"""What follows from suspicion: reports, weights, records, and that nothing happens to anybody unless asked for."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table

import turnout
from support import experiment, local, population, simulation
from turnout import FedAvg, Full, Stopping, UserError
from turnout.clients.behaviour import DisguisedDecay, FreeRider
from turnout.config import config
from turnout.record.watch import Screening, Watch
from turnout.server.observer import Event, Observer, Round
from turnout.server.server import Server

RIDERS = [1, 4]
PLAIN = ("identical_upload",)


class Notes(Observer):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rounds: list[Round] = []

    def on_event(self, server: Server, event: Event) -> None:
        self.events.append(event)

    def on_round(self, server: Server, record: Round) -> None:
        self.rounds.append(record)


def watched(rounds: int = 1, **options: Any) -> tuple[turnout.Simulation, Watch, Notes]:
    """Plain free-riders under a watch."""
    watch, notes = Watch(Screening(PLAIN, **options)), Notes()
    server = simulation(
        FedAvg(local(), Full()),
        population(behaviour=FreeRider(clients=RIDERS)),
        stopping=Stopping(rounds),
        observers=[watch, notes],
        plan=turnout.Plan(precision="float64", threads=1),
    )
    server.run()
    return server, watch, notes


def weights(notes: Notes) -> dict[int, float]:
    (record,) = notes.rounds
    return {job.client: weight for job, weight in zip(record.jobs, record.weights.tolist(), strict=True)}


def test_a_report_changes_nothing_and_is_made_once() -> None:
    server, watch, notes = watched(3)
    unseen = simulation(
        FedAvg(local(), Full()),
        population(behaviour=FreeRider(clients=RIDERS)),
        stopping=Stopping(3),
        plan=turnout.Plan(precision="float64", threads=1),
    ).run()
    assert torch.equal(server.model, unseen.model)
    assert watch.suspects == {1: ["identical_upload"], 4: ["identical_upload"]}
    assert [(event.kind, event.round, event.facts["client"]) for event in notes.events] == [
        ("suspected", 0, 1), ("suspected", 0, 4),
    ]  # fmt: skip
    assert {"detector", "score", "p_value", "unmoved"} <= notes.events[0].facts.keys()
    records = watch.records.read()
    assert len(records["round"]) == 24
    assert set(records["decision"][np.isin(records["client"], RIDERS)]) == {"suspected"}
    assert records["declared"].tolist()[:8] == [population().train.counts[i] for i in records["client"][:8]]
    assert len(set(records["upload"])) == 24 - 6 + 1  # the riders' uploads are one and the same
    assert (records["norm"] == 0).sum() == 6


def test_excluding_plain_riders_gives_the_fair_average() -> None:
    """O2: their weight goes to the others, who count as without them."""
    server, watch, notes = watched(response="exclude", automatic=True)
    honest = np.array([0.0 if i in RIDERS else n for i, n in enumerate(population().train.counts.tolist())])
    people = population(importance=honest / honest.sum())
    plan = turnout.Plan(precision="float64", threads=1)
    fair = simulation(FedAvg(local(), Full()), people, stopping=Stopping(1), plan=plan).run()
    torch.testing.assert_close(server.model, fair.model, rtol=1e-9, atol=1e-12)
    assert weights(notes)[1] == 0
    assert sum(weights(notes).values()) == pytest.approx(1)
    assert set(watch.records.read()["decision"]) == {"counts", "excluded"}


def test_less_weight() -> None:
    _, watch, notes = watched(response="down_weight", automatic=True, factor=0.5)
    given = weights(notes)
    share = population().base_importance
    assert given[1] / given[0] == pytest.approx(0.5 * share[1] / share[0])
    assert sum(given.values()) == pytest.approx(1)
    assert set(watch.records.read()["decision"]) == {"counts", "down_weighted"}


def test_nobody_is_expelled_without_consent() -> None:
    _, watch, notes = watched(response="exclude")
    assert weights(notes)[1] > 0
    assert set(watch.records.read()["decision"]) == {"counts", "waiting"}


def test_an_operator_decides() -> None:
    """A confirmed client is excluded whatever detectors say, a cleared one counts whatever they say."""
    _, watch, notes = watched(response="exclude", automatic=True, confirmed=[2], cleared=[4])
    given = weights(notes)
    assert [client for client, weight in given.items() if weight == 0] == [1, 2]
    records = watch.records.read()
    decisions = dict(zip(records["client"].tolist(), records["decision"].tolist(), strict=True))
    assert [decisions[client] for client in (0, 1, 2, 4)] == ["counts", "excluded", "excluded", "cleared"]


def test_if_all_are_excluded_the_round_is_empty() -> None:
    watch, notes = Watch(Screening(PLAIN, response="exclude", automatic=True)), Notes()
    people = population(behaviour=FreeRider(share=1.0))
    server = simulation(FedAvg(local(), Full()), people, stopping=Stopping(2), observers=[watch, notes]).run()
    assert server.version == 2
    assert [event.kind for event in notes.events] == ["suspected"] * 8 + ["empty_round"] * 2


def test_what_is_not_finite_is_rejected_as_ever() -> None:
    """Detectors look at the others; the law rejects it."""
    people = population()
    people.inputs[3] = 1e38
    watch, notes = Watch(Screening(start=0)), Notes()
    work = local(lr=1e6, epochs=1)
    simulation(FedAvg(work, Full()), people, stopping=Stopping(1), observers=[watch, notes]).run()
    assert "rejected_update" in {event.kind for event in notes.events}
    assert 0 < len(watch.records.read()["client"]) < 8
    assert np.isfinite(watch.records.read()["norm"]).all()


def test_rules_without_a_step_can_be_watched_but_not_screened() -> None:
    lies = replace(population(), behaviour=FreeRider(clients=RIDERS))
    plan = experiment("fedavg", 2, people=lies, algorithm=turnout.algorithms.FedAvgRP(local(), Full()))
    result = turnout.execute(replace(plan, screening=Screening(PLAIN)))
    assert result.watch is not None
    assert set(result.watch.suspects) == set(RIDERS)
    with pytest.raises(UserError, match="this algorithm has a rule of its own; use report"):
        turnout.execute(replace(plan, screening=Screening(PLAIN, response="exclude")))


def test_a_run_in_a_folder_keeps_the_records(tmp_path: Path) -> None:
    lies = replace(population(), behaviour=DisguisedDecay(clients=RIDERS))
    plan = replace(experiment("fedavg", 3, people=lies), screening=Screening(response="exclude", start=0))
    result = turnout.execute(plan, tmp_path, checkpoint_every=1)
    table = read_table(tmp_path / "detectors")
    assert len(table) == result.audit.contributions.sum()
    columns = {"round", "client", "declared", "upload", "norm", "decision", "replay", "replay_p"}
    assert columns <= set(table.column_names)


def test_a_watch_may_begin_with_a_resume(tmp_path: Path) -> None:
    lies = replace(population(), behaviour=FreeRider(clients=RIDERS))
    plan = experiment("fedavg", 1, people=lies, algorithm=FedAvg(local(), Full()))
    turnout.execute(plan, tmp_path, checkpoint_every=1)
    later = replace(plan, stopping=Stopping(2), screening=Screening(PLAIN))
    result = turnout.execute(later, tmp_path, checkpoint_every=1, resume=True)
    assert result.watch is not None
    assert set(result.watch.suspects) == set(RIDERS)


def test_configuration() -> None:
    base: dict[str, dict[str, Any]] = {
        "run": {"rounds": 2}, "data": {"name": "synthetic", "clients": 6}, "partition": {"name": "natural"},
        "clients": {"count": 6, "test": "none"}, "model": {"name": "linear"}, "local": {"lr": 0.1},
        "algorithm": {"name": "fedavg"}, "sampler": {"name": "full"},
    }  # fmt: skip
    lies = {"name": "disguised_decay", "clients": [2], "scale": 3.0}
    screen = {"names": ["replay"], "response": "exclude", "limits": {"replay": 7.0}}
    made, _, complete = config.build({**base, "behaviour": lies, "detectors": screen})
    assert isinstance(made.population.behaviour, DisguisedDecay)
    assert (made.population.behaviour.clients, made.population.behaviour.scale) == ([2], 3.0)
    assert made.screening == Screening(["replay"], "exclude", limits={"replay": 7.0})
    assert made.screening.make()["replay"].limit == 7
    again, _, _ = config.build(tomllib.loads(config.as_toml(complete)))
    assert again.fingerprint == made.fingerprint
    poisoned, _, _ = config.build({**base, "behaviour": {"name": "label_flip", "share": 0.5}})
    clean, _, _ = config.build(dict(base))
    changed = poisoned.population.targets != clean.population.targets
    assert 0 < int(changed.sum()) < len(changed)
    for section, options, words in (
        ("behaviour", {"name": "free_riders"}, "did you mean free_rider"),
        ("behaviour", {"name": "free_rider"}, "either behaviour.clients or behaviour.share"),
        ("detectors", {"names": ["persistence"]}, "detectors.names"),
        ("detectors", {"response": "expel"}, "detectors.response"),
        ("detectors", {"factor": 1.0}, "detectors.factor"),
        ("detectors", {"start": -1}, "detectors.start"),
    ):
        with pytest.raises(UserError, match=words):
            config.build({**base, section: options})


def test_clients_must_exist() -> None:
    with pytest.raises(UserError, match=r"detectors\.confirmed: 8"):
        watched(confirmed=[8])
