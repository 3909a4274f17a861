"""One place chooses how local work is computed; plan.json, the log and `turnout inspect` say the same of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import turnout
from cli.terminal import QUICK
from support import conv, experiment, images, local, mlp, population
from turnout import FedAvg, Full, LocalSGD, Plan, Task
from turnout.cli.commands import app
from turnout.core.errors import UserError
from turnout.engine.paths import CHAIN, RAY, STREAMS, THREADS, VMAP, falls_back, select_path
from turnout.engine.paths import Path as Choice
from turnout.engine.train import Cohort
from turnout.engine.trial import Trial
from turnout.local.modifiers import SharpnessAware
from turnout.local.own import OwnModelSGD
from turnout.local.schedules import Cosine, RoundStep
from turnout.local.transforms import TopK
from turnout.record.run_folder import damage


def relu() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 33_000), nn.Tanh(), nn.Linear(33_000, 3))


def recurrent() -> nn.Module:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(1, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x[..., None])[0][:, -1])

    return Last()


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that looks at the other samples."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none") * outputs.std()


def path(model: Callable[[], nn.Module], work: LocalSGD, plan: Plan | None = None, *own: str, **options: Any) -> Choice:
    people, plan = images() if model is conv else population(), plan or Plan(threads=1)
    cohort = Cohort(Task(model, seed=1, **options), people.inputs, people.targets, plan)
    return cohort.path(work, own, plan if plan.engine == "ray" else None)


PLAIN, SLOW = local(), "the model has convolutions and the device is a CPU"
ALONE = Plan(engine="sequential", threads=1)


@pytest.mark.parametrize(
    ("found", "name", "why"),
    [
        (lambda: path(relu, PLAIN), CHAIN, "plain SGD through linear, relu"),
        (lambda: path(relu, PLAIN, ALONE), CHAIN, "plain SGD through linear, relu"),
        (lambda: path(relu, local(report="loss")), CHAIN, "plain SGD through linear, relu"),
        (
            lambda: path(conv, PLAIN),
            CHAIN,
            "plain SGD through convolution, max pooling, relu, linear; blocks of clients on threads",
        ),
        (lambda: path(mlp, PLAIN), VMAP, "chain does not know Tanh (1)"),
        (lambda: path(relu, PLAIN, Plan(kernels="general", threads=1)), VMAP, "engine.kernels is general"),
        (lambda: path(relu, local(momentum=0.5)), VMAP, "local.momentum changes the steps of plain SGD"),
        (lambda: path(relu, PLAIN, None, "clip_norm"), VMAP, "local.clip_norm changes the steps of plain SGD"),
        (
            lambda: path(relu, local(modifiers=(SharpnessAware(),))),
            VMAP,
            "local.modifiers change the steps of plain SGD (SharpnessAware)",
        ),
        (lambda: path(relu, local(modifiers=(TopK(0.1),))), CHAIN, "plain SGD through linear, relu"),
        (
            lambda: path(relu, local(optimiser="adam")),
            VMAP,
            "local.optimiser is adam, which takes no steps of plain SGD",
        ),
        (
            lambda: path(conv, local(schedules=[Cosine()])),
            THREADS,
            f"{SLOW}; local.schedules change the learning rate in a job (Cosine)",
        ),
        (lambda: path(relu, local(schedules=[RoundStep(3)])), CHAIN, "plain SGD through linear, relu"),
        (lambda: path(relu, OwnModelSGD(0.1)), VMAP, "OwnModelSGD is more than plain SGD"),
        (
            lambda: path(conv, local(momentum=0.5)),
            THREADS,
            f"{SLOW}; local.momentum changes the steps of plain SGD",
        ),
        (lambda: path(conv, local(report="loss")), THREADS, f"{SLOW}; clients report loss beside their updates"),
        (lambda: path(conv, OwnModelSGD(0.1)), THREADS, f"{SLOW}; OwnModelSGD is more than plain SGD"),
        (
            lambda: path(recurrent, PLAIN),
            THREADS,
            "the model or the loss cannot be mapped over clients (Batching rule not implemented for aten::gru.input)",
        ),
        (lambda: path(mlp, PLAIN, ALONE), THREADS, "engine.engine is sequential; chain does not know Tanh (1)"),
        (
            lambda: path(wide, PLAIN),
            THREADS,
            "layers give 66,006 numbers a sample, and those of one client fill the caches of a CPU; "
            "chain does not know Tanh (1)",
        ),
        (lambda: path(wide, PLAIN, Plan(engine="vectorised", threads=1)), VMAP, "chain does not know Tanh (1)"),
        (lambda: path(relu, PLAIN, loss=spread), THREADS, "the loss looks at the other samples of a batch"),
        (
            lambda: path(relu, PLAIN, Plan(engine="ray", threads=1)),
            RAY,
            "engine.engine is ray; its workers take chain: plain SGD through linear, relu",
        ),
    ],
)
def test_a_path_is_chosen_with_its_reason(found: Callable[[], Choice], name: str, why: str) -> None:
    chosen = found()
    assert (chosen.name, chosen.why) == (name, why)


def test_on_cuda_graphs_are_named() -> None:
    task, plan = Task(relu), Plan("cuda", engine="vectorised")
    task.activations(torch.zeros(1, 5))
    assert select_path(task, PLAIN, (), plan).why == "plain SGD through linear, relu; CUDA graphs replay it"
    assert "graphs" not in select_path(task, PLAIN, (), Plan("cuda", engine="vectorised", graphs=False)).why
    assert "graphs" not in select_path(task, local(momentum=0.5), (), plan).why


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Linear(1, 2), nn.Flatten(), nn.Linear(10, 3)),
            "outputs of 1",
        ),
        (lambda: nn.Sequential(nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 3)), "does not know GELU (1)"),
        (lambda: Tied(), "share no parameters"),
        (lambda: Hooked(), "1 has hooks"),
    ],
)
def test_why_a_model_is_no_chain(model: Callable[[], nn.Module], why: str) -> None:
    assert why in path(model, PLAIN).why


class Tied(nn.Sequential):
    def __init__(self) -> None:
        one = nn.Linear(5, 5)
        super().__init__(one, nn.ReLU(), one, nn.Linear(5, 3))


class Hooked(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
        self[1].register_forward_hook(lambda *_: None)


def the_run(folder: Path, rounds: int = 3, resume: bool = False) -> turnout.Result:
    return turnout.execute(experiment("fedprof", rounds), folder, checkpoint_every=1, resume=resume)


def test_plan_log_and_inspect_agree(tmp_path: Path) -> None:
    """Two kinds of work in one run: each is told once."""
    folder = tmp_path / "run"
    the_run(folder)
    paths = json.loads((folder / "plan.json").read_text())["paths"]
    assert [path["work"] for path in paths] == ["ProfileReport", "LocalSGD"]
    told = [line for line in (folder / "log.txt").read_text().splitlines() if ": path (" in line]
    assert [line.partition(": path ")[2] for line in told] == [
        f"(work {path['work']}, name {path['name']}, why {path['why']})" for path in paths
    ]
    assert not damage(folder)
    (folder / "config.toml").write_text("")
    shown = CliRunner().invoke(app, ["inspect", str(folder)]).output
    for path in paths:
        assert f"Path of {path['work']}: {path['name']}: {path['why']}.\n" in shown
    assert json.loads(CliRunner().invoke(app, ["inspect", str(folder), "--json"]).output)["paths"] == paths


def test_a_path_is_no_event_of_the_audit(tmp_path: Path) -> None:
    assert "path" not in the_run(tmp_path / "run").summary()["audit"]["events"]


def test_a_resumed_run_keeps_what_was_known(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    the_run(folder, 1)
    before = json.loads((folder / "plan.json").read_text())
    before["trial_seconds"] = {"grouped": 0.5}
    (folder / "plan.json").write_text(json.dumps(before))
    (folder / "manifest.json").unlink()
    result = the_run(folder, 3, resume=True)
    after = json.loads((folder / "plan.json").read_text())
    assert after["trial_seconds"] == {"grouped": 0.5}
    assert after["paths"][: len(before["paths"])] == before["paths"]
    assert all(path in after["paths"] for path in result.server.paths)
    assert not damage(folder)


def test_a_plan_of_version_0_1_is_resumed_with_the_same_bits(tmp_path: Path) -> None:
    """It has no paths, no times and no format."""
    whole, folder = the_run(tmp_path / "whole"), tmp_path / "run"
    the_run(folder, 1)
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(
        json.dumps({name: value for name, value in plan.items() if name not in ("paths", "trial_seconds", "format")})
    )
    (folder / "manifest.json").unlink()
    result = the_run(folder, 3, resume=True)
    assert torch.equal(result.model, whole.model)
    assert json.loads((folder / "plan.json").read_text())["paths"] == result.server.paths != []


def test_times_of_a_trial_are_in_the_plan_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"grouped": 0.0015, "patches": float("inf")}
    monkeypatch.setattr("turnout.engine.trial.convolution", lambda *_: Trial("grouped", seconds))
    folder = tmp_path / "run"
    people, work = images(), FedAvg(local(), Full())
    turnout.execute(
        turnout.Experiment(Task(conv), people, work, stopping=turnout.Stopping(1), plan=Plan(threads=1)), folder
    )
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["convolution"], plan["trial_seconds"]) == ("grouped", {"grouped": 0.0015, "patches": None})
    (folder / "config.toml").write_text("")
    shown = CliRunner().invoke(app, ["inspect", str(folder)]).output
    assert "Convolutions tried: grouped 1.5 ms, patches failed.\n" in shown


def test_a_run_of_the_command_line_tells_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["run", "digits", *QUICK]).output
    assert "Path of LocalSGD: chain: plain SGD through linear" in shown


@pytest.mark.parametrize(
    ("model", "options", "work", "name"),
    [
        (recurrent, {}, {}, STREAMS),  # it cannot be mapped
        (recurrent, {}, {"momentum": 0.5}, THREADS),  # and is no plain SGD
        (recurrent, {"loss": spread}, {}, THREADS),  # a batch would not be padded
        (nn.Tanh, {}, {}, VMAP),
    ],
)
def test_ordinary_passes_run_side_by_side_on_cuda(
    model: Callable[[], nn.Module], options: dict[str, Any], work: dict[str, Any], name: str
) -> None:
    people = population()
    task = Task((lambda: nn.Sequential(nn.Linear(5, 3), model())) if model is nn.Tanh else model, seed=1, **options)
    task.examine(people.inputs, people.targets)
    plan = Plan(device="cuda")
    assert select_path(task, local(**work), (), plan).name == name
    assert falls_back(task, plan) is (model is recurrent and "loss" in options)
    without = replace(plan, graphs=False)
    assert select_path(task, local(**work), (), without).name == (VMAP if model is nn.Tanh else THREADS)


@pytest.mark.parametrize("form", ["implicit", "patches_triton"])
def test_forms_of_our_own_are_for_cuda(form: str) -> None:
    with pytest.raises(UserError, match=rf"engine\.convolution: {form} is for a CUDA device"):
        Plan(convolution=form).resolve()
