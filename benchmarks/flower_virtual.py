"""What a Flower app costs besides its own computing in virtual time: (wall - wall inside the ClientApp) / client tasks.

The same in seconds of the processor does not depend on who else uses the machine. The app is that of
`examples/flower-quickstart`, without a change, under its own strategy and under algorithms of Turnout.

    python benchmarks/flower_virtual.py [--json] [--clients 50] [--rounds 20]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from turnout.cli.flower import build
from turnout.config import config
from turnout.core.random import FloatArray
from turnout.deploy.app import Clients
from turnout.run.experiment import execute

APP = Path(__file__).parent.parent / "examples" / "flower-quickstart"
LEADERS: dict[str, list[str]] = {
    "the app's FedAvg": [],
    "fedavg": ["algorithm.name=fedavg", "sampler.name=full"],
    "fedbuff": ["algorithm.name=fedbuff"],
    "fedbuff, restart": ["algorithm.name=fedbuff", "algorithm.mode=restart"],
    "fedfix": ["algorithm.name=fedfix"],
}


def clocks() -> FloatArray:
    """Seconds of the wall and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


class Watched:
    """A ClientApp with a stopwatch."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app, self.calls, self.seconds = app, 0, np.zeros(2)

    def __call__(self, message: Any, context: Any) -> Any:
        begun = clocks()
        try:
            return self.app(message, context)
        finally:
            self.calls, self.seconds = self.calls + 1, self.seconds + clocks() - begun


def measure(overrides: list[str], clients: int, rounds: int) -> dict[str, float]:
    settings = config.read("digits")
    settings = {name: settings[name] for name in ("devices", "links", "availability", "crashes")}
    settings |= {
        "flower": {"app": str(APP)},
        "clients": {"count": clients},
        "run": {"rounds": rounds},
        "engine": {"threads": 1},
    }
    for override in overrides:
        config.apply(settings, override)
    experiment, _, _, simulation = build(settings)
    people: Clients = simulation.args[0]  # type: ignore[attr-defined]
    watched = Watched(people.app.client)
    object.__setattr__(people.app, "client", watched)
    begun = clocks()
    execute(experiment, kind=simulation)
    overhead = (clocks() - begun - watched.seconds) / watched.calls
    return {
        "tasks": watched.calls,
        "app_ms": 1e3 * watched.seconds[0] / watched.calls,
        "overhead_ms": 1e3 * overhead[0],
        "overhead_cpu_ms": 1e3 * overhead[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    found = {name: measure(overrides, options.clients, options.rounds) for name, overrides in LEADERS.items()}
    if options.json:
        print(json.dumps({"clients": options.clients, "rounds": options.rounds, "leaders": found}, indent=2))
        return
    print(f"{'ms a client task':20} {'tasks':>6} {'app':>8} {'overhead':>10} {'overhead, cpu':>14}")
    for name, row in found.items():
        print(
            f"{name:20} {row['tasks']:6.0f} {row['app_ms']:8.2f} {row['overhead_ms']:10.2f} "
            f"{row['overhead_cpu_ms']:14.2f}"
        )


if __name__ == "__main__":
    main()
