"""The devices, links, drop-outs, regions and energy of the HybridFL experiments, with every constant.

Wu's thesis (Warwick), section 4.5, table 4.2, equations 4.38 to 4.42. With s in GHz, bw in MHz, tau epochs:

    T_c2e2c = 3 msize M / BR                            cloud to edges and back
    T_comm  = 3 msize / (bw log2(1 + SNR))              down at that rate, up at half of it
    T_train = |D| tau BPS CPB / s                       bits a sample, cycles a bit
    T_lim   = T_comm + T_train                          of a client three deviations slow, with an average share
    E       = P_trans T_comm + P_comp s^3 T_train

A client drops out of a round with probability dr_k, at any moment of it alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.clients.availability import Crashes
from turnout.clients.devices import AtLeast, Devices, Gaussian, Table, sample
from turnout.clients.links import Links
from turnout.clients.power import Power
from turnout.clients.regions import deal
from turnout.core import random
from turnout.local.sgd import LocalSGD
from turnout_studies.worlds.fedprof import BITS_A_HERTZ

BACKHAUL = 1e9  # BR, bits a second
DROPOUT_SD, REGION_SD = 0.05, 0.3  # the latter relative
CLOUD_INTERVAL = 10  # kappa_2 of HierFAVG


@dataclass(frozen=True)
class HybridFLTask:
    """One of the two tasks: its clients, edges, rounds, local work and device constants."""

    clients: int
    edges: int
    rounds: int
    target: float  # accuracy to be reached
    samples: float  # of a client, on average, those it is tested on included
    train_share: float  # of them; the published times count all
    speed: float  # mean of s (GHz) and of bw (MHz); both vary by `spread`
    spread: float
    bits: int  # a sample, BPS
    cycles: int  # a bit, CPB
    model_bytes: int
    lr: float
    epochs: int = 5
    batching: str = "epochs"  # neither is printed
    batch_size: int = 10

    @property
    def local(self) -> LocalSGD:
        return LocalSGD(self.lr, epochs=self.epochs, batch_size=self.batch_size, batching=self.batching)

    @property
    def slowest(self) -> float:
        """mu - 3 sigma: slower speeds and bandwidths are raised to it."""
        return self.speed - 3 * self.spread

    @property
    def deadline(self) -> float:
        """T_lim, seconds."""
        transfers = 3 * self.model_bytes * 8 / (self.slowest * 1e6 * BITS_A_HERTZ)
        return transfers + self.samples / (self.slowest * self.samples_a_second)

    @property
    def samples_a_second(self) -> float:
        """|D| / T_train at 1 GHz."""
        return 1e9 / (self.epochs * self.bits * self.cycles)

    def world(self, dropout: float, seed: int = 0) -> dict[str, Any]:
        """Columns of a population, E[dr] = `dropout`: `Population.of(data, task.clients, ..., **task.world(0.3))`."""
        ids = np.arange(self.clients)
        draw = AtLeast(Gaussian(self.speed, self.spread), self.slowest)
        speed, bandwidth = (sample(draw, seed, f"hybridfl {what}", ids) for what in ("speed", "bandwidth"))
        down = bandwidth * 1e6 * BITS_A_HERTZ
        chance = dropout + DROPOUT_SD * random.normal(random.key(seed, "hybridfl dropout", ids), 1)[:, 0]
        return {
            "devices": Devices(Table(speed * self.train_share * self.samples_a_second), per="sample", rate=True),
            "links": Links(down=down, up=down / 2, backhaul=BACKHAUL),
            "crashes": Crashes(np.clip(chance, 0.0, 1.0), clock="round", during="job"),
            "power": Power(speed),
            "regions": deal(self.clients, self.edges, seed, relative_sd=REGION_SD),
            "model_bytes": self.model_bytes,
        }


TASKS = {
    "aerofoil": HybridFLTask(
        clients=15,
        edges=3,
        rounds=600,
        target=0.7,
        samples=100.2,
        train_share=0.8,
        speed=0.5,
        spread=0.1,
        bits=6 * 8 * 8,
        cycles=300,
        model_bytes=5_000_000,
        lr=1e-4,
        batching="full",
    ),
    "mnist": HybridFLTask(
        clients=500,
        edges=10,
        rounds=400,
        target=0.9,
        samples=140.0,
        train_share=6 / 7,
        speed=1.0,
        spread=0.3,
        bits=28 * 28 * 8,
        cycles=400,
        model_bytes=10_000_000,
        lr=1e-3,
    ),
}
