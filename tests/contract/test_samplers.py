"""What every sampler keeps to on unreliable clients: the same bits, also after a crash, and an audit that adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_nothing_silent import watch_law
from test_resume import assert_same

import turnout
from support import SETTINGS, experiment, local, population, simulation
from turnout.config import registry
from turnout.record.audit import Audit

OPTIONS: dict[str, dict[str, Any]] = {
    "target": {"groups": [0, 1, 0, 1, 0, 1, 0, 1]},
    "power_of_choice": {"candidates": 6},
    "poisson_binomial": {"cap": True},
    "cafed": {"bias_weight": 0.1},
    "profiled": {"reference": SETTINGS["fedprof"]["reference"]},
}  # what a population of eight needs
NAMES = registry.names("sampler")
ESTIMATED = [
    (name, {"estimator": estimator, "observed": 5})
    for name in NAMES
    for estimator in ("beta", "transitions")
    if "estimator" in registry.find("sampler", name).__dataclass_fields__
]
EVERY = pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in NAMES), *ESTIMATED])


def trial(name: str, options: dict[str, Any], **more: Any) -> turnout.Experiment:
    cls = registry.find("sampler", name)
    some = {"clients_per_round": 4} if "clients_per_round" in cls.__dataclass_fields__ else {}
    algorithm = turnout.FedAvg(local(), cls(**some, **OPTIONS.get(name, {}), **options))
    return experiment("fedavg", algorithm=algorithm, **more)


@EVERY
def test_same_bits_again_and_after_a_resume(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Also with the same sampler, which has forgotten the run before."""
    plan = trial(name, options, rounds=5)
    reference = turnout.execute(plan)
    assert_same(reference, turnout.execute(plan))
    for stop in (1, 3):
        folder = tmp_path / str(stop)
        turnout.execute(trial(name, options, rounds=stop), folder, checkpoint_every=1)
        resumed = turnout.execute(trial(name, options, rounds=5), folder, checkpoint_every=1, resume=True)
        assert_same(reference, resumed)


@EVERY
def test_the_audit_adds_up(name: str, options: dict[str, Any]) -> None:
    plan, audit = trial(name, options, rounds=8), Audit()
    server = simulation(plan.algorithm, plan.population, stopping=plan.stopping, seed=5, observers=[audit])
    applied = watch_law(server)
    server.run()
    expected = np.zeros(server.population.size)
    for client, weight in applied:
        expected[client] += weight
    np.testing.assert_allclose(audit.findings.realised * audit.findings.rounds, expected, atol=1e-12)
    assert audit.findings.contributions.sum() == sum(weight != 0 for _, weight in applied) > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_hears_of_clients_that_it_has_not_drawn(name: str) -> None:
    """MIFA asks everybody in its first round, before a sampler has drawn anybody."""
    sampler = trial(name, {}).algorithm.sampler  # type: ignore[attr-defined]
    try:
        algorithm = registry.find("algorithm", "mifa")(local(), sampler)
    except turnout.UserError as error:
        assert "\n" not in str(error)
        return
    assert turnout.execute(experiment("mifa", rounds=2, algorithm=algorithm)).server.version == 2


@EVERY
def test_before_anybody_has_joined_nobody_is_asked(name: str, options: dict[str, Any]) -> None:
    """Rounds pass until they do; or one sentence, where a sampler has to have asked."""
    people = population(joined_at=np.full(8, 2.5))
    try:
        result = turnout.execute(trial(name, options, people=people, rounds=5))
    except turnout.UserError as error:
        assert "\n" not in str(error)
        return
    assert result.model.isfinite().all() and not result.jobs()["client"][result.jobs()["sent_at"] < 2.5].size
