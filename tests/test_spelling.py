"""In Python as in a configuration: an option that does not exist is one sentence, and signatures are what they say."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import turnout
from support import local, mlp, population
from turnout import Algorithm, FedAvg, Full, LocalSGD, Population, Task, UserError, simulate
from turnout.clients import arriving, behaviour, memories
from turnout.config import registry
from turnout.config.kinds import AVAILABILITY, DEVICES
from turnout.core.spelling import Spelt, spelt

NAMED = {
    f"{kind}.{name}": registry.find(kind, name) for kind in ("algorithm", "sampler") for name in registry.names(kind)
}
OTHERS = [
    LocalSGD, Task, Population, turnout.Plan, turnout.Links, turnout.Power, turnout.Crashes, turnout.Detection,
    turnout.Stopping, turnout.Evaluation, turnout.Privacy, turnout.Unlearning, turnout.Screening, turnout.Experiment,
    turnout.Dataset, turnout.clients.Grouped, turnout.peers.Network, simulate, turnout.execute, turnout.schedule,
    turnout.rehearse, turnout.read, memories.FIFO, behaviour.Replay, turnout.models.mlp, turnout.trust.three_way,
    *DEVICES.values(), *AVAILABILITY.values(), *arriving.ARRIVALS.values(),
]  # fmt: skip


@pytest.mark.parametrize("made", [*NAMED.values(), *OTHERS], ids=lambda made: made.__qualname__)
def test_an_option_that_does_not_exist_is_one_sentence(made: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=rf"^{made.__qualname__}: unknown option 'zzzz'; allowed: "):
        made(zzzz=1)


def test_the_nearest_option_is_named() -> None:
    with pytest.raises(UserError, match=r"^simulate: unknown option 'roundz'; did you mean rounds\?$"):
        simulate(Task(mlp), population(), FedAvg(local(), Full()), roundz=3)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"^Population.of: unknown option 'device'; did you mean devices\?$"):
        Population.of(turnout.datasets.load("digits"), 5, device=1)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"^dirichlet: unknown option 'alfa'; did you mean alpha\?$"):
        Population.of(turnout.datasets.load("digits"), 5, "dirichlet", partition_options={"alfa": 1})
    with pytest.raises(UserError, match=r"^lognormal: unknown option 'eech'; did you mean each\?$"):
        turnout.devices.lognormal(1.0, 0.5, eech="job")  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"^LocalSGD: unknown option 'epoch'; did you mean epochs\?$"):
        replace(LocalSGD(0.1), epoch=2)  # type: ignore[call-arg]


def test_a_missing_option_is_still_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'lr'"):
        LocalSGD(epochs=2)  # type: ignore[call-arg]


def test_completion_sees_the_parameters() -> None:
    assert {"seconds", "target", "measure", "evaluation", "observers"} <= inspect.signature(simulate).parameters.keys()
    assert {"devices", "links", "crashes", "power"} <= inspect.signature(Population.of).parameters.keys()
    assert list(inspect.signature(FedAvg).parameters)[:2] == ["local", "sampler"]
    for made in (simulate, Population.of):
        kinds = {parameter.kind for parameter in inspect.signature(made).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_a_class_of_the_users_own_takes_what_it_says() -> None:
    @dataclass
    class Mine(Algorithm):
        local: LocalSGD
        strength: float = 1.0

    class Anything(Spelt):
        def __init__(self, **options: int) -> None:
            self.options = options

    assert Mine(LocalSGD(0.1), strength=2.0).strength == 2.0
    with pytest.raises(UserError, match=r"^Mine: unknown option 'strenght'; did you mean strength\?$"):
        Mine(LocalSGD(0.1), strenght=2.0)  # type: ignore[call-arg]
    assert Anything(zzzz=1).options == {"zzzz": 1}


def test_copies_check_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = LocalSGD(0.1)
    monkeypatch.setattr("turnout.core.spelling._check", None)
    assert copy.copy(work) == copy.deepcopy(work) == work.bind({"lr": 0.1}) == work


def test_a_function_keeps_its_name_and_what_it_returns() -> None:
    @spelt
    def double(number: int) -> int:
        """Twice it."""
        return 2 * number

    assert (double(2), double(number=3), double.__doc__) == (4, 6, "Twice it.")
