"""What the tests promise on a CPU, tried on a CUDA device: same integers, same updates, same bits twice, resume.

python benchmarks/cuda_check.py          # prints a line a check; exit code 1 if one fails
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import turnout
from turnout import FedAvg, LocalSGD, Plan, Population, Ragged, Stopping, Task, Uniform, random
from turnout.models import cnn_mnist, linear
from turnout.random import GOLDEN, bits, key, mix


def people(shape: tuple[int, ...]) -> Population:
    sizes = np.arange(17, 57)  # at least 6 steps each: captured steps first, eager ones for the rest
    count = int(sizes.sum())
    inputs = (
        torch.from_numpy(random.normal(key(0, "inputs"), count * int(np.prod(shape)))).reshape(count, *shape).float()
    )
    targets = torch.arange(count) % 10
    rows = Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(count))
    return Population(inputs, targets, rows, crashes=turnout.Crashes(0.1), devices=turnout.devices.lognormal(1.0, 0.5))


def smooth() -> nn.Module:
    convolutions = (nn.Conv2d(1, 8, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 5), nn.Tanh(), nn.AvgPool2d(2))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 10))


def experiment(model: str, device: str, precision: str, rounds: int = 4) -> turnout.Experiment:
    factory, shape = {
        "linear": (lambda: linear(20, 10), (20,)),
        "smooth": (smooth, (1, 28, 28)),  # where a maximum is nearly tied, rounding decides: compare without any
        "cnn": (cnn_mnist, (1, 28, 28)),
    }[model]
    algorithm = FedAvg(LocalSGD(0.05, epochs=2, batch_size=8), Uniform(12))
    plan = Plan(device=device, precision=precision, engine="vectorised", memory_mib=8192)
    return turnout.Experiment(Task(factory), people(shape), algorithm, stopping=Stopping(rounds), plan=plan)


def run(model: str, device: str, precision: str) -> torch.Tensor:
    return turnout.execute(experiment(model, device, precision)).model.cpu()


def main() -> None:
    checks: dict[str, bool] = {}
    keys = torch.from_numpy(key(3, "check", np.arange(1000)))
    on_device = mix(keys.cuda()[:, None] + torch.arange(1, 9).cuda() * GOLDEN).cpu().numpy()
    checks["same integers on numpy and CUDA"] = bool((on_device == bits(keys.numpy(), 8)).all())
    for model in ("linear", "smooth"):
        exact, start = run(model, "cpu", "float64"), experiment(model, "cpu", "float64").task.initial.double()
        for precision, bound in (("float64", 1e-9), ("float32", 1e-4), ("tf32", 1e-2)):
            once, twice = run(model, "cuda", precision), run(model, "cuda", precision)
            error = float((once.double() - exact).norm() / (exact - start).norm())
            checks[f"{model} {precision}: relative error {error:.1e} at most {bound:.0e}"] = error <= bound
            checks[f"{model} {precision}: same bits twice"] = torch.equal(once, twice)
    for precision in ("float32", "tf32"):
        once, twice = run("cnn", "cuda", precision), run("cnn", "cuda", precision)
        checks[f"cnn {precision}: same bits twice"] = torch.equal(once, twice)
    with tempfile.TemporaryDirectory() as folder:
        turnout.execute(experiment("cnn", "cuda", "float32", rounds=2), Path(folder), checkpoint_every=1)
        resumed = turnout.execute(experiment("cnn", "cuda", "float32"), Path(folder), checkpoint_every=1, resume=True)
    checks["cnn float32: resumed to the same bits"] = torch.equal(resumed.model.cpu(), run("cnn", "cuda", "float32"))
    for name, passed in checks.items():
        print("ok  " if passed else "FAIL", name)
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
