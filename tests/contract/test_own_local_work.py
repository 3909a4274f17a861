"""What a user's own local work does reaches every algorithm, or the algorithm says that it would not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import turnout
from support import Windowed, algorithm, experiment, local
from turnout import FedAvg, Full, LocalSGD, Plan, Task
from turnout.config import registry
from turnout.core.errors import UserError
from turnout.local.head import HeadSGD
from turnout.local.own import KeptModelSGD, PulledSGD
from turnout.local.sgd import Batch

NAMES = registry.names("algorithm")


class Half(LocalSGD):
    """Half of every gradient: the same as half the learning rate."""

    def gradient(self, task: Task, params: Tensor, carry: Any, batch: Batch) -> Tensor:
        return 0.5 * super().gradient(task, params, carry, batch)


@dataclass(frozen=True)
class Share(LocalSGD):
    """The same with a number of its own."""

    share: float = 1.0

    def gradient(self, task: Task, params: Tensor, carry: Any, batch: Batch) -> Tensor:
        return self.share * super().gradient(task, params, carry, batch)


def run(name: str, work: LocalSGD, **options: Any) -> Tensor:
    return turnout.execute(experiment(name, 3, algorithm=algorithm(name, local=work, **options))).model


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_of_ones_own_is_followed_or_refused(name: str) -> None:
    """Those that train with a kind of work of their own refuse, and only those."""
    kind = registry.find("algorithm", name)
    works = Half(**vars(local(lr=0.2))), Share(**vars(local(lr=0.2)), share=0.5)
    if kind.trains is not None:
        for work in works:
            said = f"^local: the {type(work).__name__} given would be replaced by the .* of {kind.__name__}, [^\\n]*$"
            with pytest.raises(UserError, match=said):
                algorithm(name, local=work)
        return
    pull = {"mu": 0.2} if name in ("fedprox", "robust_fedprox") else {}  # 0.1 with half of a gradient: twice as strong
    half, whole = run(name, local(lr=0.1), **pull), run(name, local(lr=0.2))
    assert not torch.allclose(half, whole, rtol=1e-4, atol=1e-6)
    for work in works:
        torch.testing.assert_close(run(name, work), half, rtol=1e-4, atol=1e-6)


def test_numbers_of_a_known_work_are_not_dropped() -> None:
    with pytest.raises(UserError, match="the PulledSGD given would be replaced by the DittoSGD of Ditto"):
        turnout.algorithms.Ditto(PulledSGD(0.1, mu=0.5))
    with pytest.raises(UserError, match="the Share given would be replaced by KeptModelSGD"):
        KeptModelSGD.extend(Share(0.1))
    assert Share.extend(Share(0.1, share=0.25)) == Share(0.1, share=0.25)


def overriding(part: str) -> type[LocalSGD]:
    """A work that does one part in another way: twice as much of what comes out first."""
    usual = getattr(LocalSGD, part)

    def changed(self: LocalSGD, *arguments: Any) -> Any:
        found = usual(self, *arguments)
        first, *rest = found if isinstance(found, tuple) else (found,)
        twice = {name: 2 * value for name, value in first.items()} if isinstance(first, dict) else 2 * first + 0.1
        return (twice, *rest) if rest else twice

    return type("Changed", (LocalSGD,), {part: changed})


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_every_part_of_a_work_is_asked_for(engine: str) -> None:
    """Also of one that has no momentum, no report and nothing else to it: no faster path replaces what it does."""

    def after(kind: type[LocalSGD], momentum: float) -> Tensor:
        method = FedAvg(kind(**vars(local(momentum=momentum))), Full())
        return turnout.execute(experiment("fedavg", 2, algorithm=method, plan=Plan(engine=engine, threads=1))).model

    plain, heavy = after(LocalSGD, 0.0), after(LocalSGD, 0.5)
    for part in ("start", "objective", "gradient", "step", "descend", "finish", "answer"):
        assert not torch.allclose(after(overriding(part), 0.0), plain), part
    assert not torch.allclose(after(overriding("start_momentum"), 0.5), heavy)


def test_who_predicts_in_another_way_must_be_asked() -> None:
    """By an algorithm of one's own; those that are here would serve their own models."""

    class Own(FedAvg):
        def predictor(self) -> LocalSGD:
            return self.local

    work, usual = overriding("predict")(**vars(local())), local()
    for name in NAMES:
        with pytest.raises(UserError, match=r"^local: "):
            algorithm(name, local=work)
    with pytest.raises(UserError, match="FedAvg would never ask HeadSGD to predict"):
        FedAvg(HeadSGD(0.1))
    losses = [turnout.execute(experiment("fedavg", 2, algorithm=Own(each, Full()))).measures for each in (work, usual)]
    assert losses[0]["test_loss"] != losses[1]["test_loss"]


def test_what_has_no_use_is_said() -> None:
    for name in ("l2sgd", "robust_momentum"):
        events = turnout.execute(experiment(name, 1)).summary()["audit"]["events"]
        assert events["unused_option"] == 1  # two epochs


@dataclass(frozen=True)
class Listed(Share):
    """With a list, and with what no file and no message can hold."""

    shares: list[float] = field(default_factory=lambda: [0.5, 0.5])
    hook: Any = None

    def gradient(self, task: Task, params: Tensor, carry: Any, batch: Batch) -> Tensor:
        return sum(self.shares) * super().gradient(task, params, carry, batch)


def test_a_work_of_ones_own_survives_a_checkpoint(tmp_path: Path) -> None:
    """With jobs of several rounds in flight; or it cannot, and one sentence says why."""

    def result(rounds: int, folder: Path | None = None, resume: bool = False) -> Tensor:
        plan = experiment("windowed", rounds, algorithm=Windowed(Listed(**vars(local()))))
        return turnout.execute(plan, folder, checkpoint_every=1, resume=resume).model

    result(2, tmp_path)
    assert torch.equal(result(4, tmp_path, resume=True), result(4))
    hooked = experiment("windowed", 2, algorithm=Windowed(Listed(**vars(local()), hook=print)))
    with pytest.raises(UserError, match=r"^local\.hook: the builtin_function_or_method that Listed has there can"):
        turnout.execute(hooked, tmp_path / "hooked", checkpoint_every=1)
