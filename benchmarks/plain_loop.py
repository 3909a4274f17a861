"""The loop Turnout is measured against: federated averaging, one client after another, in good plain PyTorch.

Data is resident on the device, one module is reused, each epoch is gathered once, nothing is logged or synchronised.
The optimiser is `torch.optim.SGD` as it comes: on a CPU a loop over parameters, measured 5 to 8 % faster than `foreach`
and `fused` on W2, up to 3 % on W3-mlp and equal on W1 and W3; on CUDA it is `foreach`.

    python benchmarks/plain_loop.py --workload W2 --rounds 5 --threads best --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workloads import WORKLOADS, Workload


def plain_round(
    module: nn.Module,
    model: list[Tensor],
    inputs: Tensor,
    targets: Tensor,
    index: Sequence[Tensor] | Tensor,
    cohort: Sequence[int],
    batch_size: int,
    epochs: int,
    lr: float,
    generator: torch.Generator | None = None,
) -> None:
    """Train `cohort` from the global parameters `model` and average into them in place; `module` is the workbench.

    `index[client]` holds the client's rows; a client weighs its share of the cohort's samples. As the weights sum to
    one, model + sum of weighted deltas is the weighted sum of the returned models. `generator` lives with the data.
    """
    parameters = [parameter.detach() for parameter in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr)
    average = [torch.zeros_like(value) for value in model]
    total = sum(len(index[client]) for client in cohort)
    module.train()
    for client in cohort:
        torch._foreach_copy_(parameters, model)
        rows = index[client]
        for _ in range(epochs):
            order = rows[torch.randperm(len(rows), generator=generator, device=rows.device)]
            batches = zip(torch.split(inputs[order], batch_size), torch.split(targets[order], batch_size), strict=True)
            for x, y in batches:
                optimiser.zero_grad(set_to_none=True)
                F.cross_entropy(module(x), y).backward()
                optimiser.step()
        torch._foreach_add_(average, parameters, alpha=len(rows) / total)
    torch._foreach_copy_(model, average)


def measure(workload: Workload, rounds: int, threads: int, device: str = "cpu") -> list[float]:
    """Milliseconds of each of `rounds` rounds, after one round of warm-up."""
    torch.set_num_threads(threads)
    torch.manual_seed(workload.seed)
    module = workload.model().to(device)
    model = [parameter.detach().clone() for parameter in module.parameters()]
    inputs, targets, index = (data.to(device) for data in (workload.inputs, workload.targets, workload.index))
    generator = torch.Generator(device).manual_seed(workload.seed)
    times = []
    for _ in range(rounds + 1):
        cohort = torch.randperm(workload.clients)[: workload.cohort].tolist()
        start = _now(device)
        plain_round(
            *(module, model, inputs, targets, index, cohort),
            *(workload.batch, workload.epochs, workload.lr, generator),
        )
        times.append(1e3 * (_now(device) - start))
    return times[1:]


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description="Milliseconds a round of the plain sequential loop (median).")
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", choices=["1", "2", "best"], default="best")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()

    workload = WORKLOADS[options.workload]
    tried = [1, 2] if options.threads == "best" else [int(options.threads)]
    times = {threads: measure(workload, options.rounds, threads, options.device) for threads in tried}
    medians = {threads: statistics.median(values) for threads, values in times.items()}
    best = min(medians, key=medians.__getitem__)
    if options.json:
        print(
            json.dumps(
                {
                    "benchmark": "plain_loop",
                    "workload": workload.name,
                    "device": options.device,
                    "torch": torch.__version__,
                    "rounds_ms": times,
                    "median_ms": medians,
                    "best_threads": best,
                    "best_ms": medians[best],
                }
            )
        )
        return
    for threads, median in medians.items():
        fastest = min(times[threads])
        print(f"{workload.name}  {options.device}  {threads} thread(s)  {median:.1f} ms a round (min {fastest:.1f})")
    print(f"{workload.name}  {options.device}  best of {tried}: {medians[best]:.1f} ms a round")


if __name__ == "__main__":
    main()
