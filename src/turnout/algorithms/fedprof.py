"""FedProf: clients whose data look like the server's own are more likely to take part.

Wu, He, Lin, Mao, "FedProf: selective federated learning based on distributional representation profiling", IEEE
Transactions on Parallel and Distributed Systems 2023; Wu's thesis (Warwick), chapter 5, algorithm 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal

from turnout.algorithms.fedavg import FedAvg, Normalise
from turnout.clients.columns import PerClient
from turnout.core.allowed import Count, Positive, Range, Share
from turnout.core.errors import renamed
from turnout.core.random import FloatArray
from turnout.sampling._sampler import Selection
from turnout.sampling.profiled import Profiled
from turnout.server.server import Server
from turnout.theory.matching import VAR_FLOOR


@dataclass
class FedProf(FedAvg):
    """FedAvg with the sampler `profiled` as its own, whose options are here."""

    FORMER: ClassVar[dict[str, str]] = {  # where version 0.1 kept them
        f"{name}@numpy": f"sampler/{name}@numpy" for name in ("divergences", "versions", "matched")
    }

    sampler: Profiled = field(default_factory=Profiled, init=False, repr=False)
    normalise: Normalise = "responders"  # responders: the weight of the silent goes to the others; invited: it is lost
    clients_per_round: Count = 10  # draws of a round
    preference: Annotated[PerClient, Range(least=0)] = 10.0  # alpha: how strongly data like the server's is preferred
    layer: str | None = None  # whose outputs are profiled; none: the first fully connected one
    reference: FloatArray | None = None  # [m, ...] inputs that the server holds; none: the central test set
    aggregation: Literal["full", "partial"] = "full"  # full: who is not drawn counts as unchanged; partial: the mean
    replace: bool = True  # whether a client can be drawn twice
    refresh_every: Count | None = None  # rounds after which a profile is asked for anew; none: never
    min_prob: Share = 0.0  # least chance of a client to be drawn
    var_floor: Positive = VAR_FLOOR  # least variance of an element of a profile
    cipher: Literal["plain", "additive"] = "plain"  # additive: the server never reads a profile

    def check_own(self) -> None:
        self.sampler = Profiled(**{part.name: getattr(self, part.name) for part in fields(Profiled) if part.init})
        super().check_own()

    def choose(self, server: Server) -> Selection:
        with renamed({"sampler.": "algorithm."}):
            return super().choose(server)
