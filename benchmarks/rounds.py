"""Milliseconds a server round: Turnout beside the plain loop of `plain_loop.py`, in one run, with peak memory.

    python benchmarks/rounds.py                                  # all workloads, on the CPU
    python benchmarks/rounds.py --workload W2 --rounds 30 --json
    python benchmarks/rounds.py --device cuda --precision tf32
    python benchmarks/rounds.py --workload million               # a million clients, ten rounds

A Turnout round is a full one: sampling, virtual time, training, aggregation, history and audit; evaluation is off. Both
sides run in processes of their own, one after the other, so that neither warms or fragments memory for the other. With
`TURNOUT_PEERS` set to an interpreter that has `pfl` or `flwr[simulation]`, those run too (`peers.py`). Ratios say how
many times as long as Turnout each of the others takes for a round, by medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import turnout
from plain_loop import measure
from turnout import (
    Evaluation,
    FedAvg,
    LocalSGD,
    Observer,
    Plan,
    Population,
    Ragged,
    Simulation,
    Stopping,
    Task,
    Uniform,
)
from turnout.core.random import integers, key
from turnout.record.audit import Audit
from turnout.record.history import History
from turnout.server.observer import Round
from workloads import WORKLOADS, Workload


class Stopwatch(Observer):
    """The time at which every round closed."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_round(self, server: turnout.Server, record: Round) -> None:
        self.times.append(time.perf_counter())  # the server has looked at the new model: the device has done it


def turnout_rounds(workload: Workload, rounds: int, plan: Plan) -> list[float]:
    """Seconds of each round after the first."""
    offsets = np.arange(workload.clients + 1) * workload.samples_per_client
    people = Population(workload.inputs, workload.targets, Ragged(offsets, np.arange(workload.samples)))
    return _run(Task(workload.model), people, workload, rounds, plan)


def million(rounds: int, plan: Plan) -> list[float]:
    """A million clients, each with 60 indices into a shared pool of 60,000 samples; a fixed panel is evaluated."""
    workload, clients = WORKLOADS["W2"], 1_000_000
    index = integers(key(0, "million", np.arange(clients)), 60, 60_000).astype(np.int32)
    people = Population(workload.inputs, workload.targets, Ragged(np.arange(clients + 1) * 60, index.reshape(-1)))
    return _run(Task(workload.model), people, workload, rounds, plan, Evaluation(rounds=5, clients=1000))


def _run(
    task: Task, people: Population, workload: Workload, rounds: int, plan: Plan, evaluation: Evaluation | None = None
) -> list[float]:
    watch = Stopwatch()
    Simulation(
        task,
        people,
        FedAvg(LocalSGD(workload.lr, workload.epochs, batch_size=workload.batch), Uniform(workload.cohort)),
        plan=plan,
        stopping=Stopping(rounds + 2),
        evaluation=evaluation or Evaluation(rounds=10**9, clients=10, train=True),
        observers=[History(), Audit(), watch],
    ).run()
    return np.diff(watch.times)[:-1].tolist()  # the last round is always evaluated


def child(side: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one side in this process."""
    plan = Plan(arguments.device, "auto", arguments.precision, arguments.threads, arguments.memory)
    workload = WORKLOADS["W2" if side == "million" else arguments.workload]
    workload = replace(workload, cohort=arguments.cohort or workload.cohort)
    if side == "million":
        seconds = million(arguments.rounds, plan)
    elif side == "turnout":
        seconds = turnout_rounds(workload, arguments.rounds, plan)
    else:
        threads = int(side.removeprefix("plain"))
        seconds = [ms / 1e3 for ms in measure(workload, arguments.rounds, threads, arguments.device)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report = {"ms": 1e3 * statistics.median(seconds), "ms_min": 1e3 * min(seconds), "peak_mib": round(peak)}
    if arguments.device != "cpu":
        report["gpu_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return report


def spawn(side: str, workload: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", side, "--workload", workload, "--rounds", str(arguments.rounds)]
    for option in ("device", "precision", "threads", "memory", "cohort"):
        command += [f"--{option}", str(getattr(arguments, option))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def peers(workload: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Other simulators, where a side environment has them."""
    python = os.environ.get("TURNOUT_PEERS")
    if not python:
        return {}
    script = Path(__file__).with_name("peers.py")
    done = subprocess.run([python, str(script), workload, str(rounds)], check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Turnout rounds beside a plain PyTorch loop.")
    parser.add_argument("--workload", choices=[*WORKLOADS, "million"], action="append")
    parser.add_argument("--rounds", type=int, default=0, help="rounds to time (default: by workload)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bf16", "float64"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=2048, help="MiB for one training call")
    parser.add_argument("--cohort", type=int, default=0, help="clients a round (default: by workload)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        arguments.workload = arguments.workload[0]
        print(json.dumps(child(arguments.side, arguments)))
        return
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    default = {
        "W1": 5,
        "W2": 100,
        "W3": 8,
        "W3-mlp": 40,
        "million": 10,
        "ResNet-18": 2,
        "GPT": 4,
        "ViT": 3,
        "LoRA": 1,
        "LSTM": 4,
        "LeNet": 3,
        "W4": 5,
    }
    asked = arguments.rounds
    for workload in arguments.workload or list(WORKLOADS):
        arguments.rounds = asked or default[workload]
        sides = ["million"] if workload == "million" else ["turnout", "plain1"]
        sides += ["plain2"] if arguments.device == "cpu" and workload != "million" else []
        rows[workload] = {side: spawn(side, workload, arguments) for side in sides}
        rows[workload] |= peers(workload, arguments.rounds) if workload != "million" else {}
        if not arguments.json:
            _show(workload, rows[workload])
    if arguments.json:
        found = {"device": arguments.device, "precision": arguments.precision, "rows": rows}
        print(json.dumps(found | {"ratios": {name: ratios(sides) for name, sides in rows.items()}}, indent=1))


def ratios(sides: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Say how many times as long as Turnout the others take, the better plain loop among them."""
    took = {side: report["ms"] for side, report in sides.items() if side not in ("turnout", "million")}
    plain = [ms for side, ms in took.items() if side.startswith("plain")]
    took |= {"plain": min(plain)} if plain else {}
    return {side: ms / sides["turnout"]["ms"] for side, ms in took.items()}


def _show(workload: str, sides: dict[str, dict[str, Any]]) -> None:
    beside = ratios(sides)
    for side, report in sides.items():
        ratio = f"Turnout is {beside[side]:6.2f} times as fast" if side in beside else ""
        memory = f"peak {report['peak_mib']} MiB" + (f", GPU {report['gpu_mib']} MiB" if "gpu_mib" in report else "")
        print(f"{workload:8} {side:10} {report['ms']:9.2f} ms a round (min {report['ms_min']:9.2f})  {memory}  {ratio}")
    if "plain" in beside:
        print(f"{workload:8} the better plain loop: Turnout is {beside['plain']:6.2f} times as fast")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
