"""How long bytes take between server and client: latency + 8 * bytes / rate.

>>> safa = Links(down=1.4e6, up=1.4e6, server=10e9)
>>> safa.download_seconds(0, np.arange(1), 10e6)          # 80 Mbit at 1.4 Mbit/s
array([57.14285714])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from turnout.clients.columns import Once, PerClient, option, require
from turnout.clients.devices import Draw, sample
from turnout.core.allowed import Range
from turnout.core.random import FloatArray, IntArray
from turnout.core.spelling import Spelt

Quantity = PerClient | Draw  # one for everybody, one a client, or drawn once a client


@dataclass(frozen=True)
class OrDrawn(Range):
    """Numbers in the range, or a distribution: what is drawn from it is looked at then."""

    def check(self, option: str, value: Any) -> None:
        """Raise unless every number is in the range."""
        if not hasattr(value, "at"):
            super().check(option, value)


Rate = Annotated[float, Range(above=0)]  # bits a second; infinite where nothing waits for it
Rates = Annotated[Quantity, OrDrawn(above=0)]


@dataclass(frozen=True, eq=False)
class Links(Spelt):
    """Rates in bits per second, latency in seconds; the server's own rate is shared by the copies it pushes at once,
    `backhaul` by the models that travel between the cloud and its edges."""

    section: ClassVar[str] = "links"

    down: Rates = np.inf  # bits a second to a client: one, or one a client
    up: Rates = np.inf  # bits a second from a client: one, or one a client
    latency: Annotated[Quantity, OrDrawn(least=0)] = 0.0  # seconds either way: one, or one a client
    server: Rate = np.inf  # bits a second, shared by the copies it pushes at once
    backhaul: Rate = np.inf  # bits a second between the cloud and its edges

    def download_seconds(self, seed: int, ids: IntArray, nbytes: ArrayLike) -> FloatArray:
        """From server to client, the server's push not included."""
        return self._seconds("down", seed, ids, nbytes)

    def upload_seconds(self, seed: int, ids: IntArray, nbytes: ArrayLike) -> FloatArray:
        """From client to server."""
        return self._seconds("up", seed, ids, nbytes)

    def push_seconds(self, copies: int, nbytes: float) -> float:
        """Until the server has sent `copies` of `nbytes` each: T_dist = copies * size / server rate."""
        return copies * nbytes * 8 / self.server

    def backhaul_seconds(self, edges: int, nbytes: float) -> float:
        """Until every edge has had a model from the cloud and sent one back, at half the rate:
        T_c2e2c = 3 * edges * size / backhaul (Wu et al., HybridFL, IEEE TPDS 2021)."""
        return 3 * edges * nbytes * 8 / self.backhaul

    def rates(self, name: Literal["down", "up"], seed: int, ids: IntArray) -> FloatArray:
        """`[k]` bits a second of these clients."""
        rates = self._each(name, seed, ids)
        require(f"links.{name}", rates, rates > 0, "a positive rate", ids)
        return rates

    def latencies(self, seed: int, ids: IntArray) -> FloatArray:
        """`[k]` seconds of these clients."""
        latency = self._each("latency", seed, ids)
        require("links.latency", latency, latency >= 0, "at least 0", ids)
        return latency

    def _seconds(self, name: Literal["down", "up"], seed: int, ids: IntArray, nbytes: ArrayLike) -> FloatArray:
        return self.latencies(seed, ids) + 8 * np.asarray(nbytes, np.float64) / self.rates(name, seed, ids)

    def _each(self, name: str, seed: int, ids: IntArray) -> FloatArray:
        return self._drawn[name](seed, ids) if name in self._drawn else option(self, name, ids)

    @cached_property
    def _drawn(self) -> dict[str, Once]:
        quantities = {name: getattr(self, name) for name in ("down", "up", "latency")}
        return {
            name: Once(partial(sample, cast(Draw, quantity), purpose=f"link {name}"))
            for name, quantity in quantities.items()
            if hasattr(quantity, "at")
        }
