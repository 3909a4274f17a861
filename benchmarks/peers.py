"""The workloads in other simulators, for `rounds.py`; needs an interpreter with `flwr[simulation]` or `pfl[pytorch]`.

    python benchmarks/peers.py W2 10

prints `{"flwr": {"ms": ..., "ms_min": ..., "peak_mib": ...}, "pfl": {...}}` as its last line. Each side runs in its own
process, written as its documentation has it and with what helps it: data resident in memory, the local steps of
`plain_loop.py`, no evaluation, one round of warm-up dropped. Flower has its Ray engine and two actors of one CPU, which
keep data and module between clients; it is timed where the server has aggregated, and its memory is that of all its
processes. pfl has `SimulatedBackend` in one process, with one thread and with two, of which the faster counts; as the
clients are equal, its plain mean over users is the weighted one. Of Turnout, only the models are imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from workloads import Workload

SIDES = {"flwr": ["flwr1"], "pfl": ["pfl1", "pfl2"]}  # a package's measurements, with threads of a training process
NEEDS = {"flwr": ["flwr", "ray"], "pfl": ["pfl"]}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PFL_PYTORCH_DEVICE": "cpu"}


def find_workload(name: str) -> Workload:
    """Import the workloads under an empty `turnout` package, whose other dependencies a side environment lacks."""
    package = ModuleType("turnout")
    package.__path__ = [str(Path(__file__).resolve().parents[1] / "src" / "turnout")]
    sys.modules.setdefault("turnout", package)
    from workloads import WORKLOADS

    return WORKLOADS[name]


@cache
def workbench(name: str) -> tuple[Workload, nn.Module, Tensor]:
    """What a Flower actor keeps: the workload with its data, one module, the rows of each client."""
    torch.set_num_threads(1)
    workload = find_workload(name)
    return workload, workload.model(), workload.index


def flower_client(name: str, message: Any, context: Any) -> Any:
    """Train one client; pickled by reference, so that no message carries the data."""
    flwr = importlib.import_module("flwr.app")
    workload, module, index = workbench(name)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), workload.lr)
    rows = index[context.node_config["partition-id"]]
    for _ in range(workload.epochs):
        order = rows[torch.randperm(len(rows))]
        batches = (torch.split(data[order], workload.batch) for data in (workload.inputs, workload.targets))
        for x, y in zip(*batches, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimiser.step()
    content = {
        "arrays": flwr.ArrayRecord(module.state_dict()),
        "metrics": flwr.MetricRecord({"num-examples": len(rows)}),
    }
    return flwr.Message(content=flwr.RecordDict(content), reply_to=message)


def flower(name: str, rounds: int) -> tuple[list[float], float]:
    """Times at which the server had aggregated a round, and peak MiB."""
    flwr = importlib.import_module("flwr.app")
    serverapp = importlib.import_module("flwr.serverapp")
    workload, times, peak = find_workload(name), list[float](), list[float]()
    server, client = serverapp.ServerApp(), importlib.import_module("flwr.clientapp").ClientApp()
    client.train()(partial(flower_client, name))

    def aggregated(replies: list[Any], _: str) -> Any:
        if len(replies) != workload.cohort:
            raise RuntimeError(f"flwr: {len(replies)} of {workload.cohort} clients replied; see its log above")
        times.append(time.perf_counter())
        return flwr.MetricRecord()

    def serve(grid: Any, _: Any) -> None:
        strategy = importlib.import_module("flwr.serverapp.strategy").FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
            train_metrics_aggr_fn=aggregated,
        )
        strategy.start(grid, flwr.ArrayRecord(workload.model().state_dict()), num_rounds=rounds)
        peak.append(tree_mib())

    server.main()(serve)
    importlib.import_module("flwr.simulation").run_simulation(
        server,
        client,
        num_supernodes=workload.clients,
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return times, peak[0]


def tree_mib() -> float:
    """Peak MiB of this process and all below it: their high-water marks, less what they share."""
    parents, total = {}, 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    tree = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= children
    for pid in tree:
        with contextlib.suppress(OSError):
            lines = "".join(Path(f"/proc/{pid}/{file}").read_text() for file in ("status", "smaps_rollup")).splitlines()
            kib = {line.split()[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
            total += kib["VmHWM:"] - kib["Rss:"] + kib["Pss:"]
    return total / 1024


class Objective(nn.Module):
    """A module with the two methods pfl asks for; it evaluates in the round of warm-up whatever the frequency."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.module(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            loss = len(inputs) * self.loss(inputs, targets).item()
        return {"loss": importlib.import_module("pfl.metrics").Weighted(loss, len(inputs))}


def pfl(name: str, rounds: int, threads: int) -> tuple[list[float], float]:
    """Times at which a central iteration ended, and peak MiB."""
    torch.set_num_threads(threads)
    workload, times = find_workload(name), list[float]()
    model = importlib.import_module("pfl.model.pytorch")  # first: it makes PyTorch the framework
    algorithm, data = importlib.import_module("pfl.algorithm.base"), importlib.import_module("pfl.data")
    averaging = importlib.import_module("pfl.algorithm.federated_averaging")
    metrics, dataset = importlib.import_module("pfl.metrics"), importlib.import_module("pfl.data.pytorch")
    sampling, hyperparam = importlib.import_module("pfl.data.sampling"), importlib.import_module("pfl.hyperparam")
    inputs, targets, index = workload.inputs, workload.targets, workload.index

    def make_user(user: int) -> Any:
        order = index[user][torch.randperm(workload.samples_per_client)]  # pfl keeps a user's order over epochs
        return dataset.PyTorchTensorDataset((inputs[order], targets[order]), user_id=str(user))

    def ended(*_: Any, **__: Any) -> tuple[bool, Any]:
        times.append(time.perf_counter())
        return False, metrics.Metrics()

    people = data.FederatedDataset(make_user, sampling.get_user_sampler("minimize_reuse", range(workload.clients)))
    base = importlib.import_module("pfl.callback.base").TrainingProcessCallback
    module = Objective(workload.model())
    averaging.FederatedAveraging().run(
        algorithm.NNAlgorithmParams(rounds, 10**9, workload.cohort, 0),
        importlib.import_module("pfl.aggregate.simulate").SimulatedBackend(people, people),
        model.PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        hyperparam.NNTrainHyperParams(
            local_num_epochs=workload.epochs, local_learning_rate=workload.lr, local_batch_size=workload.batch
        ),
        callbacks=[type("Stopwatch", (base,), {"after_central_iteration": ended})()],
        send_metrics_to_platform=False,
    )
    return times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(side: str, name: str, rounds: int) -> dict[str, float]:
    times, peak = flower(name, rounds + 1) if side == "flwr1" else pfl(name, rounds + 1, int(side[-1]))
    ms = [1e3 * (end - start) for start, end in pairwise(times)]
    if len(ms) != rounds:
        raise RuntimeError(f"{side}: {len(ms)} of {rounds} rounds were timed")
    return {"ms": statistics.median(ms), "ms_min": min(ms), "peak_mib": round(peak)}


def main() -> None:
    name, rounds = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:  # one side, in this process
        os.environ |= QUIET
        with contextlib.redirect_stdout(sys.stderr):
            report = importlib.import_module("peers").measure(sys.argv[3], name, rounds)  # not __main__: see the client
        print(json.dumps(report))
        return
    reports: dict[str, dict[str, float]] = {}
    for package, sides in SIDES.items():
        if not all(importlib.util.find_spec(needed) for needed in NEEDS[package]):
            continue
        tried = []
        for side in sides:
            command = [sys.executable, str(Path(__file__).resolve()), name, str(rounds), side]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            tried.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{name} {side}: {tried[-1]}", file=sys.stderr, flush=True)
        reports[package] = min(tried, key=lambda report: float(report["ms"]))
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
