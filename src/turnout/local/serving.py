"""What a client serves, where that is not what the method says."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.core.errors import UserError
from turnout.core.spelling import Spelt
from turnout.local.datastore import check_capacity, check_keep
from turnout.local.knn import MemoryOfSamples
from turnout.local.neighbours import KNN
from turnout.local.own import OwnModelSGD
from turnout.local.sgd import LocalSGD


@dataclass(frozen=True)
class Serve(Spelt):
    """Make the local work that a client adapts the global model with before it serves; None: it serves that model."""

    def adaptation(self, local: LocalSGD) -> LocalSGD | None:
        raise NotImplementedError


@dataclass(frozen=True)
class GlobalModel(Serve):
    """Every client serves the global model."""

    def adaptation(self, local: LocalSGD) -> LocalSGD | None:
        return None


@dataclass(frozen=True)
class FineTuned(Serve):
    """Every client, also one that never trained, trains the global model on its own samples (Jiang et al., 2019)."""

    epochs: int = 1  # passes over the client's samples

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UserError(f"serve.epochs: {self.epochs} must be at least 1")

    def adaptation(self, local: LocalSGD) -> OwnModelSGD:
        return OwnModelSGD.extend(local.bind({"epochs": self.epochs, "steps": None}))


@dataclass(frozen=True)
class Neighbours(Serve):
    """Every client lets the nearest of its own samples vote beside the global model (kNN-Per: Marfoq et al., ICML
    2022)."""

    k: int = 10  # neighbours that vote
    kernel: str = "laplace"  # laplace, gaussian or uniform: how a vote falls with distance
    scale: float = 1.0  # distance at which it has fallen by e
    layer: str | None = None  # whose output represents a sample; none: what the last fully connected layer is given
    capacity: float | int | None = None  # samples a client keeps: a share, a number, or all
    keep: str = "random"  # random, balanced or coreset: which samples are kept
    tune: str = "grid"  # grid or loglik: how lambda is found
    fraction: float = 0.2  # of the training samples, to tune lambda on
    interpolation: float = 0.5  # lambda, where it is not tuned
    index: str = "exact"  # exact, faiss or faiss:FACTORY

    def __post_init__(self) -> None:
        self.knn.check("serve")
        check_capacity("serve.capacity", self.capacity)
        check_keep("serve.keep", self.keep)

    @property
    def knn(self) -> KNN:
        """How neighbours vote."""
        return KNN(self.k, self.kernel, self.scale, self.tune, self.fraction, self.interpolation, self.index)

    def adaptation(self, local: LocalSGD) -> MemoryOfSamples:
        kept = {"layer": self.layer, "capacity": self.capacity, "keep": self.keep}
        return MemoryOfSamples.like(local, knn=self.knn, **kept)


SERVES: dict[str, type[Serve]] = {"global_model": GlobalModel, "fine_tuned": FineTuned, "knn": Neighbours}
