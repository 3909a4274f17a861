"""What the tests promise on a CPU, tried on another device: same integers, same updates, same bits twice, resume;
transformers; and every algorithm, sampler, robust rule, lie, transform and memory once.

    python benchmarks/cuda_check.py                      # prints a line a check; exit code 1 if one fails
    python benchmarks/cuda_check.py --device cpu         # the checks themselves, where there is no such device
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import turnout
from small_transformers import CONTEXT, GPT, SYMBOLS, ViT, lora
from turnout import (
    Evaluation,
    Experiment,
    FedAvg,
    LocalSGD,
    Plan,
    Population,
    Privacy,
    Ragged,
    Screening,
    Stopping,
    Task,
    Uniform,
    Unlearning,
)
from turnout.aggregation.rules import RULES
from turnout.algorithms import RobustMean, StreamFedAvg
from turnout.clients import adversary, arriving, behaviour, memories
from turnout.config import registry
from turnout.core import random
from turnout.core.random import GOLDEN, bits, key, mix
from turnout.local import KNNPersonaliser
from turnout.local.transforms import former
from turnout.record.detectors import DETECTORS
from turnout.record.unlearning import Retention
from turnout.task.models import cnn_mnist, linear
from turnout_studies.forgetting import baselines

Checks = Iterator[tuple[str, bool]]
WITHIN = 1e-4  # of what the CPU's model has moved by, in float32

# -- the engine -----------------------------------------------------------------------------------------------


def people(shape: tuple[int, ...], equal: bool = False) -> Population:
    sizes = np.full(40, 24) if equal else np.arange(17, 57)  # in one graph, or piece by piece
    count = int(sizes.sum())
    inputs = torch.from_numpy(random.normal(key(0, "inputs"), count * int(np.prod(shape))))
    rows = Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(count))
    return Population(
        inputs.reshape(count, *shape).float(),
        torch.arange(count) % 10,
        rows,
        crashes=turnout.Crashes(0.0 if equal else 0.1),
        devices=turnout.devices.lognormal(1.0, 0.5),
    )


def smooth() -> nn.Module:
    convolutions = (nn.Conv2d(1, 8, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 5), nn.Tanh(), nn.AvgPool2d(2))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 10))


class Normed(nn.Module):
    """Convolutions of three kinds and what normalises them: no chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(1, 16, 5, padding=2, bias=False), nn.Conv2d(16, 64, 3, stride=2, padding=1)
        self.beside, self.one, self.two = nn.Conv2d(16, 64, 1, stride=2), nn.GroupNorm(8, 16), nn.GroupNorm(32, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.tanh(self.one(self.wide(images)))
        x = torch.tanh(self.two(self.deep(x)) + self.beside(x))
        out: Tensor = self.out(x.mean((2, 3)))
        return out


class Rows(nn.Module):
    """A recurrent network over the rows of an image, as torch has it: it cannot be mapped over clients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.LSTM(28, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.out(self.inner(images[:, 0])[0][:, -1])
        return out


def texts() -> Population:
    """Sequences in which a symbol follows from the one before, mostly."""
    sizes = np.arange(5, 25)
    steps = torch.from_numpy(np.abs(key(0, "steps", np.arange(sizes.sum() * (CONTEXT + 1)))) % 3)
    symbols = steps.view(-1, CONTEXT + 1).cumsum(1) % SYMBOLS
    rows = Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(len(symbols)))
    return Population(symbols[:, :-1], symbols[:, 1:], rows)


def experiment(model: str, device: str, precision: str, rounds: int = 4) -> Experiment:
    kind, equal = model.removesuffix(" of equals"), model.endswith(" of equals")
    factory, shape = {
        "linear": (lambda: linear(20, 10), (20,)),
        "augmented": (smooth, (1, 28, 28)),
        "smooth": (smooth, (1, 28, 28)),  # where a maximum is nearly tied, rounding decides: compare without any
        "cnn": (cnn_mnist, (1, 28, 28)),
        "normed": (Normed, (1, 28, 28)),
        "recurrent": (Rows, (1, 28, 28)),
        "images": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10, bias=False)), (1, 28, 28)),
        "gpt": (GPT, ()),
        "vit": (ViT, (1, 28, 28)),
        "lora": (lora, ()),
    }[kind]
    local = LocalSGD(0.05, epochs=2, batch_size=8)
    algorithm = turnout.FedBuff(local, buffer_size=12) if kind == "images" else FedAvg(local, Uniform(12))
    engine = "auto" if device == "cpu" or kind == "recurrent" else "vectorised"
    plan = Plan(device=device, precision=precision, engine=engine, memory_mib=8192)
    world = people(shape, equal) if shape else texts()
    shown: dict[str, Any] = {
        "loss": turnout.tasks.CrossEntropy(smoothing=0.1, weights=tuple(1.0 + np.arange(10))),
        "prepare": turnout.tasks.Normalise(mean=(0.1,), std=(2.0,)),
        "augment": "crop,flip,noise,cutout",
    }
    task = Task(factory, **shown if kind == "augmented" else {})
    return Experiment(task, world, algorithm, stopping=Stopping(rounds), plan=plan)


def run(model: str, device: str, precision: str) -> Tensor:
    return turnout.execute(experiment(model, device, precision)).model.cpu()


def engine(device: str) -> Checks:
    keys = torch.from_numpy(key(3, "check", np.arange(1000)))
    on_device = mix(keys.to(device)[:, None] + torch.arange(1, 9, device=device) * GOLDEN).cpu().numpy()
    yield "same integers as numpy", bool((on_device == bits(keys.numpy(), 8)).all())
    alike = (
        "linear",
        "smooth",
        "linear of equals",
        "smooth of equals",
        "images of equals",
        "normed",
        "recurrent",
        "recurrent of equals",
        "gpt",
        "vit",
        "lora",
        "augmented",
    )
    for model in alike:
        exact, start = run(model, "cpu", "float64"), experiment(model, "cpu", "float64").task.initial.double()
        for precision, bound in (("float64", 1e-9), ("float32", WITHIN), ("tf32", 1e-2)):
            once, twice = run(model, device, precision), run(model, device, precision)
            error = float((once.double() - exact).norm() / (exact - start).norm())
            yield f"{model} {precision}: relative error {error:.1e} at most {bound:.0e}", error <= bound
            yield f"{model} {precision}: same bits twice", torch.equal(once, twice)
    for model, precision in itertools.product(("cnn", "linear of equals", "images of equals"), ("float32", "tf32")):
        whole = run(model, device, precision)
        yield f"{model} {precision}: same bits twice", torch.equal(whole, run(model, device, precision))
        with tempfile.TemporaryDirectory() as folder:
            turnout.execute(experiment(model, device, precision, rounds=2), Path(folder), checkpoint_every=1)
            going_on = experiment(model, device, precision)
            resumed = turnout.execute(going_on, Path(folder), checkpoint_every=1, resume=True)
        yield f"{model} {precision}: resumed to the same bits", torch.equal(whole, resumed.model.cpu())


class Looking(turnout.Observer):
    """Look at every round, so that none is passed with others."""

    def on_round(self, server: turnout.Server, record: Any) -> None:
        pass


def asynchrony(device: str) -> Checks:
    """Rounds that are passed together, and one event after another."""
    local = LocalSGD(0.05, batch_size=8)
    methods: dict[str, Callable[[], turnout.Algorithm]] = {
        "async_fedavg": lambda: turnout.AsyncFedAvg(local, weight_rule="naive", server_lr=0.3),
        "fedbuff": lambda: turnout.FedBuff(local, buffer_size=5),
        "fedfix": lambda: turnout.FedFix(local, window=0.7),
    }
    for (name, method), precision in itertools.product(methods.items(), ("float64", "tf32")):
        models = []
        for observers in ([], [Looking()]):
            made = experiment("images of equals", device, precision, rounds=150 if name == "async_fedavg" else 30)
            models.append(turnout.execute(replace(made, algorithm=method()), observers=observers).model)
        yield f"{name} {precision}: the bits of one event after another", torch.equal(*models)


# -- everything once ------------------------------------------------------------------------------------------

SIZES = (3, 17, 8, 2, 25, 10, 6, 12)
LIARS = [1, 4, 6]
REFERENCE = random.normal(key(1, "reference"), 100).reshape(20, 5)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedbuff": {"buffer_size": 3},
    "fedcs": {"deadline": 2.0},
    "fedprof": {"clients_per_round": 4, "reference": REFERENCE},
    "hierfavg": {"deadline": 2.0, "fraction": 0.5, "cloud_interval": 2},
    "hybridfl": {"deadline": 2.0, "fraction": 0.4},
    "pfedme": {"inner_steps": 2},
}  # what a population of eight needs
SAMPLERS: dict[str, dict[str, Any]] = {
    "cafed": {"bias_weight": 0.1},
    "poisson_binomial": {"cap": True},
    "power_of_choice": {"candidates": 6},
    "profiled": {"reference": REFERENCE},
    "target": {"groups": [0, 1, 0, 1, 0, 1, 0, 1]},
}
RULE_OPTIONS: dict[str, dict[str, Any]] = {
    "trimmed_mean": {"trim": 0.2},
    "norm_clipping": {"radius": 0.1},
    "centred_clipping": {"radius": 0.1},
}
TRANSFORMS = ("clip:0.1", "clip:0.1,noise:0.01:4", "top_k:0.2", "quantise:6", "clip:0.1,noise:0.01:4,top_k:0.2")
LIES: tuple[type[behaviour.Behaviour], ...] = (
    behaviour.FreeRider,
    behaviour.DisguisedConstant,
    behaviour.DisguisedSGDLike,
    behaviour.DisguisedDecay,
    behaviour.Replay,
    behaviour.SignFlip,
    behaviour.GaussianNoise,
    behaviour.LittleIsEnough,
)


def small(**columns: Any) -> Population:
    """Eight clients of ragged, separable data: some are slow, some away, some crash."""
    total = sum(SIZES)
    inputs = torch.from_numpy(random.normal(key(1, "small inputs"), total * 5)).reshape(total, 5)
    rule = torch.from_numpy(random.normal(key(1, "small rule"), 15)).reshape(5, 3)
    rows = Ragged(np.concatenate([[0], np.cumsum(SIZES)]), np.arange(total))
    world: dict[str, Any] = {
        "devices": turnout.devices.lognormal(0.5, 0.7),
        "links": turnout.Links(down=1e5, up=1e5, latency=0.01, server=1e6, backhaul=1e5),
        "availability": turnout.Bernoulli(0.8),
        "crashes": turnout.Crashes(0.15),
        "regions": np.array([0, 1, 0, 1, 0, 0, 1, 0]),
    }
    return Population(inputs.float(), (inputs @ rule).argmax(1), rows, test=rows, **world | columns)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def local(**options: Any) -> LocalSGD:
    return LocalSGD(0.1, epochs=2, batch_size=4, **options)


def trial(algorithm: turnout.Algorithm, plan: Plan, **options: Any) -> Experiment:
    return Experiment(
        Task(mlp, seed=3),
        options.pop("population", None) or small(),
        algorithm,
        seed=5,
        stopping=Stopping(options.pop("rounds", 3)),
        evaluation=Evaluation(rounds=None),
        plan=plan,
        **options,
    )


def named(name: str) -> turnout.Algorithm:
    kind, options = registry.find("algorithm", name), dict(ALGORITHMS.get(name, {}))
    if "sampler" in inspect.signature(kind).parameters and name not in ("local", "centralised"):
        options["sampler"] = turnout.MD(4)
    made: turnout.Algorithm = kind(local(), **options)
    return made


def sampled(name: str) -> turnout.Algorithm:
    kind, options = registry.find("sampler", name), dict(SAMPLERS.get(name, {}))
    if "clients_per_round" in inspect.signature(kind).parameters:
        options["clients_per_round"] = 4
    return FedAvg(local(), kind(**options))


Outcome = dict[str, Any]  # `model`, `start` and `numbers` are tensors; `decided` must be the same everywhere


def outcome(made: Experiment) -> Outcome:
    """The model, how every client is served, and what detectors saw."""
    result = turnout.execute(made)
    served = result.clients()
    found: Outcome = {"model": result.model.double().cpu(), "start": made.task.initial.double()}
    found["numbers"] = torch.as_tensor(served["train_loss"], dtype=torch.float64).nan_to_num(0.0)
    if result.watch is not None:
        found["decided"] = result.watch.suspects
    return found


def compared(name: str, device: str, made: Callable[[Plan], Outcome]) -> Checks:
    """Twice on the device, all clients at once, and once on the CPU, one client after another."""
    vectorised = Plan(device, "vectorised", threads=1)
    once, twice, exact = made(vectorised), made(vectorised), made(Plan("cpu", "sequential", threads=1))
    same = all(torch.equal(once[part], twice[part]) for part in ("model", "numbers"))
    yield f"{name}: same bits twice", same and once.get("decided") == twice.get("decided")
    moved = float((exact["model"] - exact["start"]).norm()) if len(exact["model"]) == len(exact["start"]) else 1.0
    model = float((once["model"] - exact["model"]).norm()) / (moved or 1.0)
    numbers = float((once["numbers"] - exact["numbers"]).norm() / exact["numbers"].norm())
    good = model <= WITHIN and numbers <= WITHIN and once.get("decided") == exact.get("decided")
    yield f"{name}: model {model:.1e} and numbers {numbers:.1e} from the CPU's, at most {WITHIN:.0e}", good


def everything() -> Iterator[tuple[str, Callable[[Plan], Outcome]]]:
    """What is compared, by name."""

    def of(algorithm: Callable[[], turnout.Algorithm], **options: Any) -> Callable[[Plan], Outcome]:
        return lambda plan: outcome(trial(algorithm(), plan, **options))

    for name in registry.names("algorithm"):
        yield f"algorithm {name}", of(lambda name=name: named(name))  # type: ignore[misc]
    for name in registry.names("sampler"):
        yield f"sampler {name}", of(lambda name=name: sampled(name))  # type: ignore[misc]
    reliable = small(availability=turnout.Always(), crashes=turnout.Crashes())
    for rule, buckets in itertools.product(RULES, (0, 3)):
        if rule == "mean" and buckets:
            continue  # refused: the mean of means is the mean
        options = {**RULE_OPTIONS.get(rule, {}), "rule": rule, "buckets": buckets}
        robust = of(lambda o=options: RobustMean(local(), turnout.Full(), **o), population=reliable)  # type: ignore[misc]
        yield f"rule {rule}, {buckets} buckets", robust
    for lie in LIES:
        watch = Screening(tuple(DETECTORS), response="down_weight", automatic=True, start=0)
        liars = small(behaviour=lie(clients=LIARS))
        fedavg = of(lambda: FedAvg(local(), turnout.Full()), population=liars, screening=watch, rounds=6)
        yield f"behaviour {lie.__name__}, every detector", fedavg
    for foe in (adversary.Random, adversary.LargestNorm, adversary.WorstCase, adversary.Starve):
        attacked = small(adversary=foe(0.4))
        yield f"adversary {foe.__name__}", of(lambda: FedAvg(local(), turnout.Full()), population=attacked)
    for chain in TRANSFORMS:
        work = local(modifiers=former(chain).values())
        yield f"transform {chain}", of(lambda work=work: FedAvg(work, turnout.Full()))  # type: ignore[misc]
    noise = Privacy(noise=0.1, clip=0.1, noise_seed=1)
    yield "central noise", of(lambda: FedAvg(local(), Uniform(4)), privacy=noise)
    arrives = small().streaming(arriving.poisson(0.3), memories.Reservoir(8), fresh=[0, 1, 2, 4, 5, 7], seconds=0.2)
    for name in ("fedavg", "fem_omd"):
        yield f"stream, {name}", of(lambda name=name: named(name), population=arrives)  # type: ignore[misc]
    weighted = of(lambda: StreamFedAvg(local(), turnout.Full(), weighting="optimal", ratio=0.5), population=arrives)
    yield "stream, optimal weights", weighted
    for retention in get_args(Retention):
        yield f"forgetting, {retention}", lambda plan, kept=retention: forgotten(plan, kept)  # type: ignore[misc]
    yield "fedaccum and federaser", erased
    yield "KNNPersonaliser", personal
    yield "samples that stay on the host", sent


def forgotten(plan: Plan, retention: Retention) -> Outcome:
    """Two requests, the first of two clients."""
    settings = Unlearning(sigma=0.02, retention=retention, every=2, groups=[[1, 4]])
    made = trial(FedAvg(local(), turnout.Full()), plan, unlearning=settings, rounds=6)
    sifu = turnout.trust.SIFU(made)
    sifu.train()
    sifu.forget([1, 4], noise_seed=2)
    result = sifu.forget([2], noise_seed=2)
    psi = np.concatenate([table.psi([0]) for table in sifu.branches.tables])
    return {
        "model": result.model.double().cpu(),
        "start": made.task.initial.double(),
        "numbers": torch.from_numpy(psi),
        "decided": sifu.branches.lineage,
    }


def erased(plan: Plan) -> Outcome:
    made = trial(FedAvg(local(), turnout.Full()), plan)
    archive = baselines.Archive()
    turnout.execute(made, observers=[archive])
    added = baselines.fedaccum(archive, [1])
    model = baselines.federaser(made, archive, [1])
    return {"model": model.double().cpu(), "start": made.task.initial.double(), "numbers": added.double()}


def sent(plan: Plan) -> Outcome:
    """What is too large for the device: batches are sent to it."""
    with mock.patch("turnout.engine.train.stays", return_value=True):
        return outcome(trial(FedAvg(local(momentum=0.5), turnout.Full()), plan))


def personal(plan: Plan) -> Outcome:
    clients, module = small(), Task(mlp, seed=3).module.to(plan.device)
    knn = KNNPersonaliser(module).fit(clients.inputs[:40], clients.targets[:40])
    knn.update(clients.inputs[40:60], clients.targets[40:60], "fifo")
    served = knn.predict_proba(clients.inputs[60:]).double().cpu()
    return {"model": served, "start": torch.zeros_like(served), "numbers": torch.tensor([1.0 + knn.interpolation])}


def all_checks(device: str) -> Checks:
    yield from engine(device)
    yield from asynchrony(device)
    for name, made in everything():
        try:
            yield from compared(name, device, made)
        except Exception as error:  # the others are still worth a look
            yield f"{name}: {type(error).__name__}: {error}", False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device, started, failed = parser.parse_args().device, time.perf_counter(), 0
    for name, passed in all_checks(device):
        print("ok  " if passed else "FAIL", name, flush=True)
        failed += not passed
    print(f"{failed} failed, {time.perf_counter() - started:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
