"""A trained model made personal by a memory of one's own samples: for any `torch.nn.Module`, after any training.

Marfoq, Neglia, Kameni, Vidal, "Personalized federated learning through local memorization", ICML 2022. The model stays
as it is, nothing is sent, and whoever comes late needs one pass over its samples.

>>> personal = KNNPersonaliser(model).fit(inputs, targets)
>>> personal.predict_proba(others)                              # [B, classes]
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from turnout.core import random
from turnout.core.allowed import Count
from turnout.core.errors import UserError
from turnout.core.files import write_tensors
from turnout.core.spelling import Spelt
from turnout.local.datastore import Datastore, check_capacity, check_growth, fingerprint, room
from turnout.local.neighbours import KNN, check_votes, flat, mixed
from turnout.task.inside import look_inside

Embedding = Callable[[nn.Module, Tensor], Tensor]  # (model, inputs [B, ...]) -> [B, p]


class Represented(NamedTuple):
    """Samples as a frozen model sees them."""

    keys: Tensor  # [n, p]
    served: Tensor  # [n, outputs] what the model says: probabilities, or the values of a regression
    values: Tensor  # [n, ...] what is true

    def rows(self, which: Tensor) -> Represented:
        """Take some of the samples."""
        return Represented(*(part[which] for part in self))

    def asked(self, store: Datastore, knn: KNN) -> Held:
        """Ask a memory that does not hold these samples of them."""
        return Held(store.vote(self.keys, knn, self.served.shape[1], store.model), self.served, self.values)


class Held(NamedTuple):
    """Samples that a memory was asked about while it did not hold them: what lambda is tuned on."""

    local: Tensor  # [m, outputs] by the neighbours
    served: Tensor  # [m, outputs] by the model
    values: Tensor  # [m, ...]

    def best(self, knn: KNN) -> float:
        """Find lambda; the one to fall back on where nothing is held."""
        if not len(self.values):
            return knn.interpolation
        return float(knn.tuned(*self, torch.ones(len(self.values), dtype=torch.bool, device=self.local.device)))

    def newest(self, newer: Held, count: int) -> Held:
        """Keep the last of both."""
        both = (torch.cat(pair) for pair in zip(self, newer, strict=True))
        return Held(*(part[max(0, len(part) - count) :] for part in both))


def memorise(
    samples: Represented,
    knn: KNN,
    capacity: float | int | None = None,
    keep: str = "random",
    seed: int = 0,
    model: str = "",
    index: str = "exact",
) -> tuple[Datastore, Held]:
    """Make the memory of these samples, and ask what one without a random `knn.fraction` of them says of those."""
    count = len(samples.keys)
    order = torch.as_tensor(random.permutation(random.key(seed, "held back"), count), device=samples.keys.device)
    held, fit = order[: knn.held_back(count)], order[knn.held_back(count) :].sort().values

    def store(part: Represented) -> Datastore:
        return Datastore(part.keys, part.values, model, index).limited(room(capacity, count), keep, seed)

    return store(samples), samples.rows(held).asked(store(samples.rows(fit)), knn)


@dataclass
class KNNPersonaliser(Spelt):
    """Serve a model with a memory. `layer` names the one whose output represents a sample, or computes it; without it,
    what the last fully connected layer is given. `capacity` is how many samples are kept, as a share (a float) or a
    number (an int), and `keep` which (see `Datastore.limited`). Integer targets are classes and the model's outputs
    logits; real ones are a regression.
    """

    model: nn.Module
    knn: KNN = field(default_factory=KNN)
    layer: str | Embedding | None = None
    capacity: float | int | None = None
    keep: str = "random"
    index: str = "exact"
    seed: int = 0
    batch_size: Count = 256
    store: Datastore | None = field(default=None, init=False)
    interpolation: float = field(default=0.0, init=False)  # lambda
    held: Held | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_capacity("capacity", self.capacity)

    def fit(self, inputs: Tensor, targets: Tensor) -> Self:
        """Remember these samples, and tune lambda on some of them."""
        samples = self.represent(inputs, targets)
        self.store, self.held = memorise(
            samples, self.knn, self.capacity, self.keep, self.seed, self._fingerprint(), self.index
        )
        self.interpolation = self.held.best(self.knn) if len(self.store) else 0.0
        return self

    def update(self, inputs: Tensor, targets: Tensor, policy: str = "growing", retune: bool = True) -> Self:
        """Add samples that have arrived: see `Datastore.update`. To `retune`, they are asked about before they are
        remembered, and lambda is the best one for the newest of all that were, `knn.fraction` of the memory. A memory
        that is empty and may grow starts with them; one that has no room for them may not grow."""
        store, held = self._fitted()
        if not len(store) and policy == "growing":
            return self.fit(inputs, targets)
        samples = self.represent(inputs, targets)
        if policy == "growing":
            check_growth(self.capacity, len(store), len(samples.keys))
        self.store = store.update(samples.keys, samples.values, policy)
        if retune and len(store):
            self.held = held.newest(samples.asked(store, self.knn), self.knn.held_back(len(self.store)))
            self.interpolation = self.held.best(self.knn)
        return self

    def predict_proba(self, inputs: Tensor) -> Tensor:
        """Predict `[B, classes]` lambda local + (1 - lambda) global; of a regression the same of values."""
        store, _ = self._fitted()
        keys, served = self._look(inputs, store.values.is_floating_point())
        if len(store):
            return mixed(store.vote(keys, self.knn, served.shape[1], store.model), served, self.interpolation)
        if not self._warned:
            warnings.warn("the memory is empty: the global model serves alone", stacklevel=2)
            self._warned = True
        return served

    def predict(self, inputs: Tensor) -> Tensor:
        """Predict `[B]` the likeliest class; of a regression `[B, outputs]`."""
        mixture = self.predict_proba(inputs)
        assert self.store is not None
        return mixture if self.store.values.is_floating_point() else mixture.argmax(1)

    def represent(self, inputs: Tensor, targets: Tensor) -> Represented:
        """Look at these samples as the model sees them."""
        if len(inputs) != len(targets):
            raise UserError(f"targets: {len(targets)} of them for {len(inputs)} inputs")
        keys, served = self._look(inputs, targets.is_floating_point())
        values = targets.to(keys.device)
        check_votes(values, served)
        if not values.is_floating_point():
            values = values.long()
            wrong = (values < 0) | (values >= served.shape[1])
            if wrong.any():
                raise UserError(f"targets: {int(values[wrong][0])} is none of the model's {served.shape[1]} classes")
        return Represented(keys, served, values)

    @torch.no_grad()
    def _look(self, inputs: Tensor, regression: bool) -> tuple[Tensor, Tensor]:
        """Compute keys and what the model says, in evaluation mode, some samples at a time."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            parts = [self._pass(part.to(self._device)) for part in torch.split(inputs, self.batch_size)]
        finally:
            for module, training in modes.items():
                module.training = training
        outputs, keys = (torch.cat(column) for column in zip(*parts, strict=True))
        return flat(keys).float(), flat(outputs) if regression else outputs.softmax(1)

    def _pass(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.layer is None or isinstance(self.layer, str):
            return look_inside(self.model, self.layer, lambda: self.model(inputs))
        return self.model(inputs), self.layer(self.model, inputs)

    def _fingerprint(self) -> str:
        named = "" if self.layer is None else repr(self.layer)
        if callable(self.layer):
            named = getattr(self.layer, "__qualname__", type(self.layer).__qualname__)
        return fingerprint(self.model, named)

    @property
    def _device(self) -> torch.device | None:
        return next((parameter.device for parameter in self.model.parameters()), None)

    def _fitted(self) -> tuple[Datastore, Held]:
        if self.store is None or self.held is None:
            raise UserError("personaliser: it has no memory yet; call fit or load first")
        if self.store.model != self._fingerprint():
            raise UserError(
                "personaliser: the model or its layer has changed since the memory was made; call fit again"
            )
        return self.store, self.held

    def save(self, path: Path) -> None:
        """Save memory, lambda and how to vote, as safetensors; not the model."""
        store, held = self._fitted()
        tensors = {"keys": store.keys, "values": store.values}
        tensors |= {f"held.{name}": part for name, part in held._asdict().items()}
        facts = {"model": store.model, "interpolation": self.interpolation, "knn": asdict(self.knn)}
        ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        write_tensors(Path(path), ready, {"facts": json.dumps(facts)})

    def load(self, path: Path) -> Self:
        """Load what was saved, for the same model."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt", device=str(self._device or "cpu")) as file:
                facts = json.loads(file.metadata()["facts"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.knn, self.interpolation = KNN(**facts["knn"]), facts["interpolation"]
            self.store = Datastore(tensors["keys"], tensors["values"], facts["model"], self.index)
            self.held = Held(*(tensors[f"held.{name}"] for name in Held._fields))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"personaliser: {path} holds no memory that can be read ({error})") from error
        self._fitted()
        return self
