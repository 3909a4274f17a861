"""How well clients' work is used: every measure by hand on runs of a few clients, through a checkpoint, and on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

import turnout
from support import local, mlp, population
from turnout import Algorithm, Crashes, Experiment, FedAvg, Full, Links, Plan, Population, Safa, devices
from turnout.algorithms import SafaThesis
from turnout.record.efficiency import Efficiency
from turnout.record.history import History
from turnout.sampling._sampler import Selection
from turnout.server.observer import Observer, Round
from turnout.server.server import Server

COLUMNS = {
    "eur",
    "eur_with_bypass",
    "sync_ratio",
    "version_variance",
    "work_assigned",
    "work_lost",
    "distribution_seconds",
    "round_seconds",
    "missing_share",
    "missing_epsilon",
}
WORK = local()
BOTH = pytest.mark.parametrize("policy", [Safa, SafaThesis], ids=["carry_over", "bypass"])


class Fails(Crashes):
    """Jobs that crash as written down: (round, client) -> share of the work done by then."""

    def __init__(self, table: dict[tuple[int, int], float]) -> None:
        super().__init__(0.5, "round")
        object.__setattr__(self, "table", table)

    def draw(
        self, seed: int, ids: NDArray[np.int64], number: ArrayLike
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        shares = [self.table.get((int(np.max(number)), int(k)), 0.0) for k in ids]  # type: ignore[attr-defined]
        return np.array([share > 0 for share in shares], bool), np.array(shares)


def people(times: Sequence[float], fails: dict[tuple[int, int], float] | None = None, **columns: Any) -> Population:
    """One sample and one time a client."""
    return population((1,) * len(times), devices=devices.table(times), crashes=Fails(fails or {}), **columns)


def measure(algorithm: Algorithm, world: Population, rounds: int) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
    """Findings, and the columns of the rounds."""
    efficiency, history = Efficiency(), History()
    turnout.rehearse(algorithm, world, rounds, observers=[efficiency, history])
    return efficiency.findings, {name: values[-rounds:] for name, values in history.rounds.read().items()}


def test_fedavg_by_hand() -> None:
    """Four clients of 1, 2, 3 and 9 s, deadline 4 s, a copy takes .1 s. Client 1 crashes half-way in round 1; client 3
    is cancelled after 4 of its 9 s in both."""
    world = people([1.0, 2.0, 3.0, 9.0], {(0, 1): 0.5}, links=Links(server=8e6), model_bytes=100_000)
    found, rounds = measure(FedAvg(WORK, Full(), deadline=4.0), world, 2)
    assert rounds["eur"].tolist() == [0.5, 0.75]
    assert rounds["eur_with_bypass"].tolist() == [0.5, 0.75]
    assert rounds["sync_ratio"].tolist() == [1.0, 1.0]
    assert rounds["version_variance"].tolist() == [0.0, 0.0]
    assert rounds["work_assigned"].tolist() == [4.0, 4.0]
    assert rounds["work_lost"] == pytest.approx([0.5 + 4 / 9, 4 / 9])
    assert rounds["distribution_seconds"] == pytest.approx([0.4, 0.4])
    assert rounds["round_seconds"] == pytest.approx([4.4, 4.4])
    assert rounds["missing_share"] == pytest.approx([0.5, 0.25])
    assert found == pytest.approx(
        {
            "eur": 0.625,
            "eur_with_bypass": 0.625,
            "sync_ratio": 1.0,
            "version_variance": 0.0,
            "round_seconds": 4.4,
            "distribution_seconds": 0.4,
            "work_assigned": 8.0,
            "work_lost": 0.5 + 8 / 9,
            "bytes_down": 800_000.0,
            "bytes_up": 500_000.0,
            "missing_share": 0.375,
            "missing_share_max": 0.5,
            "futility": (0.5 + 8 / 9) / 8,
            "futility_legacy": 0.0,
        }
    )


class TheEnds(Full):
    """The first and the last client."""

    def sample(self, server: Server) -> Selection:
        return Selection(np.array([0, 3]), server.importance[[0, 3]])


def test_what_is_missing_is_a_share_of_what_was_asked() -> None:
    """The heaviest and the lightest of four clients are asked, and the heaviest brings nothing: 0.7 of 0.8, which the
    literature's estimate for the population makes 1.4."""
    world = people([1.0] * 4, {(0, 0): 0.5}, importance=np.array([0.7, 0.1, 0.1, 0.1]))
    found, rounds = measure(FedAvg(WORK, TheEnds()), world, 1)
    assert rounds["missing_share"] == pytest.approx([0.7 / 0.8])
    assert rounds["missing_epsilon"] == pytest.approx([4 / 2 * 0.7])
    assert found["missing_share_max"] == pytest.approx(0.7 / 0.8)


def test_fedavg_that_invites_some() -> None:
    """Two of four: SR and EUR are shares of the population, not of the invited."""
    found, _ = measure(FedAvg(WORK, turnout.samplers.Fill(2)), people([1.0] * 4), 3)
    assert (found["sync_ratio"], found["eur"], found["work_assigned"]) == (0.5, 0.5, 6.0)


def test_bypass_by_hand() -> None:
    """bypass, quota 1 of 3; client 0 crashes in rounds 2 and 3.

    Round 1: picks 0. Round 2: picks 1; 2 of round 1 comes through the bypass. Round 3: picks 2, as 1 was picked before;
    nothing through the bypass, as 2's of round 2 has been replaced. Round 4: picks 0, which had gone on from version 1;
    1 of round 3 comes through the bypass.
    """
    world = people([1.0, 2.0, 3.0], {(1, 0): 0.5, (2, 0): 0.5})
    found, rounds = measure(SafaThesis(WORK, 0.3), world, 4)
    third = 1 / 3
    assert rounds["eur"] == pytest.approx([third] * 4)
    assert rounds["eur_with_bypass"] == pytest.approx([third, 2 * third, third, 2 * third])
    assert rounds["sync_ratio"] == pytest.approx([1.0, 1.0, 2 * third, 2 * third])
    assert rounds["version_variance"] == pytest.approx([0, 0, 0, np.var([1, 3, 3])])
    assert rounds["round_seconds"] == pytest.approx([1.0, 2.0, 3.0, 1.0])
    assert rounds["work_lost"].tolist() == [0.0] * 4
    assert found["work_assigned"] == 12
    assert found["version_variance"] == pytest.approx(np.var([1, 3, 3]) / 4)


@BOTH
def test_work_that_goes_on_and_arrives_is_not_lost(policy: type[Safa]) -> None:
    """Both: client 1 crashes, goes on, delivers, and is sent the next model as anybody: nothing was overwritten."""
    found, rounds = measure(policy(WORK, 1.0), people([1.0, 2.0], {(0, 1): 0.25, (2, 1): 0.75}), 8)
    assert rounds["work_lost"].tolist() == [0.0] * 8
    assert (found["futility"], found["futility_legacy"]) == (0.0, 0.0)
    assert rounds["sync_ratio"].tolist() == [1.0, 0.5, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]


@BOTH
def test_overwritten_work_is_lost_once(policy: type[Safa]) -> None:
    """Both, tau = 1: client 1 crashes half-way and again half-way of the rest: 3/4 done when it is sent the model of
    round 3. It delivers then and in round 4: 2 of its 4 s began with an overwrite, and none of the 4 s of client 0."""
    world = people([1.0, 2.0], {(0, 1): 0.5, (1, 1): 0.5})
    found, rounds = measure(policy(WORK, 1.0, lag_tolerance=1), world, 4)
    assert rounds["work_lost"] == pytest.approx([0.0, 0.0, 0.75, 0.0])
    assert rounds["sync_ratio"].tolist() == [1.0, 0.5, 1.0, 1.0]
    assert found["futility"] == pytest.approx(0.75 / 8)
    assert found["futility_legacy"] == pytest.approx(2 / (4 + 4))


def test_cancelled_work_is_lost_in_the_round_that_overwrites_it() -> None:
    """carry_over, tau = 1: client 2 would take 8 s. After 2 s it is cancelled and sent the model, after 4 s again."""
    found, rounds = measure(Safa(WORK, 0.3, lag_tolerance=1), people([1.0, 1.0, 8.0]), 5)
    assert rounds["round_seconds"].tolist() == [1.0] * 5
    assert rounds["work_lost"] == pytest.approx([0.0, 0.0, 0.25, 0.0, 0.25])
    assert found["work_lost"] == pytest.approx(0.5)


def test_work_interrupted_carried_on_and_cancelled_is_not_counted_twice() -> None:
    """carry_over, tau = 2: client 2 of 8 s crashes at a quarter, goes on for what is left, and after 2 s more it is at
    1/4 + 3/4 * 2/6 = 1/2 when it is overwritten."""
    world = people([1.0, 1.0, 8.0], {(0, 2): 0.125})
    found, rounds = measure(Safa(WORK, 0.3, lag_tolerance=2), world, 4)
    assert rounds["round_seconds"].tolist() == [1.0] * 4
    assert rounds["work_lost"] == pytest.approx([0.0, 0.0, 0.0, 0.125 + 0.875 * 2 / 7])
    assert found["futility"] == pytest.approx((0.125 + 0.875 * 2 / 7) / found["work_assigned"])


def test_a_forced_job_that_arrives_in_the_same_round_counts_as_forced() -> None:
    """carry_over, tau = 0: client 1 of 1.5 s is cancelled after 1 s and sent the model anew; it alone has priority, and
    delivers at 2.5 s. Its 1.5 s were forced, client 0 worked 1 s in each round."""
    found, rounds = measure(Safa(WORK, 0.5, lag_tolerance=0), people([1.0, 1.5]), 2)
    assert rounds["work_lost"] == pytest.approx([0.0, 2 / 3])
    assert found["futility_legacy"] == pytest.approx(1.5 / 3.5)


def test_an_empty_round_has_measures_too() -> None:
    found, rounds = measure(Safa(WORK, 1.0, deadline=2.0), people([1.0, 1.0], {(0, 0): 0.5, (0, 1): 0.5}), 1)
    assert [rounds[name][0] for name in ("eur", "version_variance", "round_seconds")] == [0.0, 0.0, 2.0]
    assert np.isfinite(list(found.values())).all()


def test_no_rounds_no_division() -> None:
    assert set(Efficiency().findings.values()) == {0.0}


class BreaksOffError(RuntimeError):
    """The run breaks off."""


class Break(Observer):
    """Breaks off in a round."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_round(self, server: Server, record: Round) -> None:
        if record.number == self.at:
            raise BreaksOffError


def unsteady() -> Population:
    sizes = (4,) * 8
    times = [0.5, 0.7, 0.9, 1.1, 1.5, 2.5, 4.5, 9.0]
    return population(sizes, devices=devices.table(times), crashes=Crashes(0.4, "round"), seed=2)


@pytest.mark.parametrize("policy", [Safa, SafaThesis, FedAvg], ids=["carry_over", "bypass", "fedavg"])
def test_a_resumed_run_finds_the_same(policy: type[Algorithm], tmp_path: Path) -> None:
    """Both and FedAvg: broken off in round 11 and resumed from round 9, with jobs in flight and work unfinished."""
    options = {"sampler": Full(), "deadline": 3.0} if policy is FedAvg else {"fraction": 0.3, "lag_tolerance": 2}

    def experiment() -> Experiment:
        task = turnout.Task(mlp, seed=3)
        algorithm: Algorithm = policy(WORK, **options)  # type: ignore[arg-type, call-arg]
        return Experiment(task, unsteady(), algorithm, stopping=turnout.Stopping(20), plan=Plan(threads=1))

    whole = turnout.execute(experiment())
    with pytest.raises(BreaksOffError):
        turnout.execute(experiment(), tmp_path / "run", checkpoint_every=3, observers=[Break(11)])
    resumed = turnout.execute(experiment(), tmp_path / "run", checkpoint_every=3, resume=True, observers=[Break(None)])
    assert resumed.efficiency == whole.efficiency
    assert whole.efficiency["work_lost"] > 0
    for name in COLUMNS:
        assert resumed.rounds()[name].tolist()[1:] == whole.rounds()[name].tolist()[1:], name


def test_saved_state_is_json() -> None:
    """Both ways, in the middle of a run with unfinished, forced and present jobs."""
    states: list[dict[str, Any]] = []

    class Through(Observer):
        def on_round(self, server: Server, record: Round) -> None:
            before = next(o for o in server.observers if isinstance(o, Efficiency))
            facts, tensors = before.save()
            after = Efficiency()
            after.load(json.loads(json.dumps(facts)), tensors)
            assert after.findings == before.findings
            assert json.dumps(after.save()[0]) == json.dumps(facts)
            states.append(facts)

    turnout.rehearse(Safa(WORK, 0.3, 2), unsteady(), 12, observers=[Efficiency(), Through()])
    assert len(states) == 12
    for name in ("_unfinished", "_present", "_forced"):
        assert any(facts[name] for facts in states), name


def test_one_that_joins_late_starts_afresh() -> None:
    """Jobs it never saw begin, work it never saw interrupted: it counts from where it came."""
    late = Efficiency()

    class Brings(Observer):
        def on_round(self, server: Server, record: Round) -> None:
            if record.number == 3:
                server.observers.append(late)

    turnout.rehearse(Safa(WORK, 0.3, 2), unsteady(), 12, observers=[Efficiency(), Brings()])
    assert late.findings["eur"] > 0
    assert late.findings["work_assigned"] > 0


def test_history_has_the_columns(tmp_path: Path) -> None:
    """In memory, on disk, and in the summary of a run."""
    experiment = Experiment(
        turnout.Task(mlp, seed=3), unsteady(), Safa(WORK, 0.3), stopping=turnout.Stopping(4), plan=Plan(threads=1)
    )
    ended = turnout.execute(experiment, tmp_path / "run")
    rounds = ended.rounds()
    assert rounds.keys() >= COLUMNS
    assert all(len(rounds[name]) == 5 and np.isfinite(rounds[name][1:]).all() for name in COLUMNS)
    assert rounds["round_seconds"][1:].sum() == pytest.approx(rounds["time"][-1])
    assert ended.efficiency["eur"] == pytest.approx(rounds["eur"][1:].mean())
    assert ended.efficiency["work_assigned"] == rounds["work_assigned"][1:].sum() == rounds["invited"].sum()


def test_history_on_disk_has_the_columns_in_one_line(tmp_path: Path) -> None:
    """The folder read as one table, as pandas.read_parquet does."""
    experiment = Experiment(
        turnout.Task(mlp, seed=3), unsteady(), Safa(WORK, 0.3), stopping=turnout.Stopping(4), plan=Plan(threads=1)
    )
    rounds = turnout.execute(experiment, tmp_path / "run").rounds()
    written = parquet.read_table(tmp_path / "run" / "history").to_pydict()
    assert written.keys() >= COLUMNS
    assert written["eur"][1:] == rounds["eur"].tolist()[1:]


def test_it_changes_nothing() -> None:
    """An observer: the model is the same with it and without."""
    models = []
    for observers in ([], [Efficiency()]):
        server = turnout.Simulation(
            turnout.Task(mlp, seed=3), unsteady(), Safa(WORK, 0.3), stopping=turnout.Stopping(5),
            plan=Plan(threads=1), observers=observers,
        )  # fmt: skip
        models.append(server.run().model)
    assert torch.equal(*models)
