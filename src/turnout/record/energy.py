"""What the clients' devices spend, where the population says what they draw. A round's row of the history gets

energy_wh       watt hours of the jobs that ended in it
wasted_wh       of those among them that did not count: lost, cut short, or not used
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from turnout.clients.power import Power
from turnout.server.jobs import together
from turnout.server.observer import Observer, Round

if TYPE_CHECKING:
    from turnout.server.server import Server


class Energy(Observer):
    """Adds its columns to every round; `findings` sums them up."""

    columns = ("energy_wh", "wasted_wh")

    def __init__(self, power: Power) -> None:
        self._power = power
        self.findings = dict.fromkeys(self.columns, 0.0)

    def on_round(self, server: Server, record: Round) -> None:
        crew = together(record.jobs)
        if crew is None:
            ended = [row for row, job in enumerate(record.jobs) if not job.logged]
            clients = [record.jobs[row].client for row in ended]
            seconds = np.array([record.jobs[row].seconds for row in ended]).reshape(-1, 3)
        else:
            ended, clients, seconds = list(range(len(record.jobs))), crew.client.tolist(), crew.seconds
        down, compute, up = seconds.T
        spent = self._power.watt_hours(
            {
                "client": clients,
                "download_seconds": down,
                "compute_seconds": compute,
                "upload_seconds": up,
            }
        )
        wasted = spent[record.weights[ended] == 0]
        record.facts |= {"energy_wh": float(spent.sum()), "wasted_wh": float(wasted.sum())}
        for name in self.columns:
            self.findings[name] += record.facts[name]

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return dict(self.findings), {}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.findings = dict(facts)
