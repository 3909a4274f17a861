"""The devices, links and crashes of the SAFA experiments, with every constant.

Wu's thesis (Warwick), section 3.5 and tables 3.2, 3.3. Speeds, sizes and crashes are functions of the population's
seed, so that every algorithm meets the same clients and the same crash in the same round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turnout.clients import devices
from turnout.clients.availability import Crashes
from turnout.clients.links import Links
from turnout.local.sgd import LocalSGD

MODEL_BYTES = 10_000_000  # compressed, all tasks
CLIENT_BITS, SERVER_BITS = 1.4e6, 10e9  # a second


@dataclass(frozen=True)
class SafaTask:
    """One of the three tasks: its clients, rounds, deadline and local work."""

    clients: int
    rounds: int
    deadline: float  # T_lim, seconds
    epochs: int
    batch_size: int
    lr: float
    slowest: float  # batches a second: slower devices are drawn again
    train_share: float  # of a client's shard; the published times count the whole shard

    @property
    def local(self) -> LocalSGD:
        return LocalSGD(self.lr, epochs=self.epochs, batch_size=self.batch_size)

    def world(self, crash: float) -> dict[str, Any]:
        """Columns of a population: `Population.of(data, task.clients, "gaussian_sizes", **task.world(crash=0.3))`.

        A client takes epochs * (shard / batch size) / s_k seconds, s_k ~ Exp(1) batches a second.
        """
        samples_a_second = self.batch_size * self.train_share / self.epochs  # of the training part, at s_k = 1
        return {
            "devices": devices.exponential(
                samples_a_second,
                each="client",
                per="sample",
                rate=True,
                minimum=self.slowest * samples_a_second,
                redraw_below=True,
            ),
            "links": Links(down=CLIENT_BITS, up=CLIENT_BITS, server=SERVER_BITS),
            "crashes": Crashes(crash, clock="round"),
            "model_bytes": MODEL_BYTES,
        }


TASKS = {
    "boston": SafaTask(5, 100, 830.0, epochs=3, batch_size=5, lr=1e-4, slowest=0.05, train_share=0.7),
    "mnist": SafaTask(100, 50, 5600.0, epochs=5, batch_size=40, lr=1e-3, slowest=0.016, train_share=6 / 7),
    "kdd99": SafaTask(500, 100, 1620.0, epochs=5, batch_size=100, lr=1e-2, slowest=0.012, train_share=0.7),
}
