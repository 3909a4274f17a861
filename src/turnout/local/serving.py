"""What a client serves, where that is not what the method says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from turnout.core.allowed import Count
from turnout.core.spelling import Spelt
from turnout.local.datastore import Capacity, Keeping, check_capacity
from turnout.local.knn import MemoryOfSamples
from turnout.local.neighbours import KNN
from turnout.local.own import OwnModelSGD
from turnout.local.sgd import LocalSGD


@dataclass(frozen=True)
class Serve(Spelt):
    """Make the local work that a client adapts the global model with before it serves; None: it serves that model."""

    section: ClassVar[str] = "serve"

    def adaptation(self, local: LocalSGD) -> LocalSGD | None:
        raise NotImplementedError


@dataclass(frozen=True)
class GlobalModel(Serve):
    """Serve the global model at every client."""

    def adaptation(self, local: LocalSGD) -> LocalSGD | None:
        return None


@dataclass(frozen=True)
class FineTuned(Serve):
    """Train the global model on a client's own samples, also at one that never trained (Jiang et al., 2019)."""

    epochs: Count = 1  # passes over the client's samples

    def adaptation(self, local: LocalSGD) -> OwnModelSGD:
        return OwnModelSGD.extend(local.bind({"epochs": self.epochs, "steps": None}))


@dataclass(frozen=True)
class Neighbours(Serve, KNN):
    """Let the nearest of a client's own samples vote beside the global model (kNN-Per: Marfoq et al., ICML
    2022)."""

    layer: str | None = None  # whose output represents a sample; none: what the last fully connected layer is given
    capacity: Capacity | None = None  # samples a client keeps: a share, a number, or all
    keep: Keeping = "random"  # which samples are kept

    def __post_init__(self) -> None:
        super().__post_init__()
        check_capacity("serve.capacity", self.capacity)

    def adaptation(self, local: LocalSGD) -> MemoryOfSamples:
        kept = {"layer": self.layer, "capacity": self.capacity, "keep": self.keep}
        return MemoryOfSamples.like(local, knn=self, **kept)


SERVES: dict[str, type[Serve]] = {"global_model": GlobalModel, "fine_tuned": FineTuned, "knn": Neighbours}
