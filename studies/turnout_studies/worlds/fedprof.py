"""The devices, links and energy of the FedProf experiments, with every constant.

Wu's thesis (Warwick), section 5.5, equations 5.27 to 5.34. With M epochs, |D| samples, s in GHz, bw in MHz:

    T_comm  = 3 msize / (bw log2(1 + SNR))              down at that rate, up at half of it
    T_train = M |D| BPS CPB / s                         bits a sample, cycles a bit
    T_RP    = T_train / M + 8 q / (bw log2(1 + SNR) / 2)        profiling; for FedProf alone
    energy  = P_trans (T_comm + T_RPup) + P_f s^3 (T_train + T_RPgen)

All that trained are charged, whether they counted or not (the published energies of CFCFM charge only those that did).
Nobody drops out. Model sizes are not printed; these reproduce the published times and energies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.clients.devices import AtLeast, Devices, Gaussian, Table, sample
from turnout.clients.links import Links
from turnout.clients.power import Power
from turnout.core.random import FloatArray
from turnout.local.sgd import LocalSGD

BITS_A_HERTZ = math.log2(1 + 100)  # SNR = 100


@dataclass(frozen=True)
class FedProfTask:
    """One of the two tasks: its clients, rounds, local work and device constants."""

    clients: int
    rounds: dict[str, int]  # by aggregation
    target: float  # accuracy to be reached
    epochs: int
    samples: int  # of a client, on average
    speed: float  # mean of s (GHz) and of bw (MHz); both vary by `spread`
    bits: int  # a sample, BPS
    cycles: int  # a bit, CPB
    model_bytes: int
    spread: float = 0.1
    lr: float = 1e-2
    batch_size: int = 32  # not printed

    @property
    def local(self) -> LocalSGD:
        return LocalSGD(self.lr, epochs=self.epochs, batch_size=self.batch_size)

    def speeds(self, clients: int | None = None, seed: int = 0) -> tuple[FloatArray, FloatArray]:
        """`[N]` s_k in GHz and bw_k in MHz: N(mean, spread^2), at least a fifth of the mean."""
        ids = np.arange(clients or self.clients)
        draw = AtLeast(Gaussian(self.speed, self.spread), self.speed / 5)
        return sample(draw, seed, "fedprof speed", ids), sample(draw, seed, "fedprof bandwidth", ids)

    def world(self, clients: int | None = None, seed: int = 0) -> dict[str, Any]:
        """Columns of a population: `Population.of(data, task.clients, ..., **task.world(seed=1))`."""
        speed, bandwidth = self.speeds(clients, seed)
        down = bandwidth * 1e6 * BITS_A_HERTZ
        samples_a_second = speed * 1e9 / (self.epochs * self.bits * self.cycles)
        return {
            "devices": Devices(Table(samples_a_second), per="sample", rate=True),
            "links": Links(down=down, up=down / 2),
            "power": Power(speed),
            "model_bytes": self.model_bytes,
        }


TASKS = {
    "S": FedProfTask(
        clients=50,
        rounds={"full": 100, "partial": 100},
        target=0.8,
        epochs=2,
        samples=514,
        speed=0.5,
        bits=11 * 8 * 8,
        cycles=300,
        model_bytes=5_000_000,
    ),  # gas turbine emissions
    "L": FedProfTask(
        clients=1000,
        rounds={"full": 300, "partial": 50},
        target=0.9,
        epochs=5,
        samples=240,
        speed=1.0,
        bits=28 * 28 * 8,
        cycles=400,
        model_bytes=10_000_000,
    ),  # handwritten digits
}
