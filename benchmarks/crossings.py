"""Calls from one package of Turnout to another in one round: FedAvg over clients that are absent, crash and are late.

    python benchmarks/crossings.py               # each call with its count
    python benchmarks/crossings.py --json

A crossing is a call whose caller and callee lie in different packages (`turnout.server`, `turnout.engine`, ...), the
resumption of a generator included. Counted is one steady round, without observers and evaluation. `docs/pictures`
draws it; a test holds the number.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

from turnout import Evaluation, FedAvg, LocalSGD, Observer, Population, Ragged, Server, Simulation, Stopping, Task
from turnout import Uniform as Sampler
from turnout.clients import Bernoulli, Crashes, devices
from turnout.core.random import key, normal
from turnout.server.observer import Round

CLIENTS, SAMPLES, FEATURES = 60, 20, 5
STEADY = 6  # the round that is counted: what is asked once has been asked


class Crossing(NamedTuple):
    """One call, by the packages and the names of caller and callee."""

    above: str
    caller: str
    below: str
    callee: str


class Profile(Observer):
    """Note the crossings of round `STEADY`."""

    def __init__(self) -> None:
        self.found: list[Crossing] = []

    def on_round(self, server: Server, record: Round) -> None:
        sys.setprofile(self._note if record.number == STEADY - 1 else None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back
        if event != "call" or caller is None:
            return
        above, below = package(caller), package(frame)
        if above and below and above != below:
            self.found.append(Crossing(above, caller.f_code.co_qualname, below, frame.f_code.co_qualname))


def package(frame: FrameType) -> str:
    """Name the package of Turnout that a frame runs in; empty: none."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.split(".")[1] if name.startswith("turnout.") else ""


def crossings() -> list[Crossing]:
    """List the crossings of one round, in their order."""
    total = CLIENTS * SAMPLES
    inputs = torch.from_numpy(normal(key(1, "crossings"), total * FEATURES)).reshape(total, FEATURES).float()
    rows = Ragged(np.arange(CLIENTS + 1) * SAMPLES, np.arange(total))
    people = Population(
        inputs,
        (inputs.sum(1) > 0).long(),
        rows,
        devices=devices.table(np.linspace(0.5, 2.0, CLIENTS)),
        availability=Bernoulli(0.7),
        crashes=Crashes(0.2),
    )
    counter = Profile()
    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what is cleared away in the round would be called by whoever is at work
    try:
        Simulation(
            Task(lambda: torch.nn.Linear(FEATURES, 2)),
            people,
            FedAvg(LocalSGD(0.1), Sampler(20), deadline=1.5),
            stopping=Stopping(STEADY + 1),
            evaluation=Evaluation(rounds=None, clients=1),
            observers=[counter],
        ).run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return counter.found


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls between packages in one round.")
    parser.add_argument("--json", action="store_true")
    found = crossings()
    if parser.parse_args().json:
        print(json.dumps({"crossings": len(found), "calls": [each._asdict() for each in found]}, indent=1))
        return
    for (above, caller, below, callee), count in Counter(found).items():
        print(f"{count:3}  {above:12} {caller:40} -> {below:12} {callee}")
    print(f"{len(found):3}  in all")


if __name__ == "__main__":
    main()
