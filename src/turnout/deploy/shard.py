"""What each machine of a deployment knows of the data: a client its own samples, the server their shape and its own
central test set. A safetensors file each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.clients.population import Population
from turnout.core.errors import UserError
from turnout.core.files import write_tensors
from turnout.core.ragged import Ragged
from turnout.data.dataset import Dataset

SPLITS = ("train", "test", "validation")


def _write(path: Path, tensors: dict[str, Tensor], classes: int | None) -> None:
    whole = {name: value.contiguous().clone() for name, value in tensors.items()}
    metadata = {"classes": "" if classes is None else str(classes)}
    write_tensors(path, whole, metadata)


def _read(path: Path) -> tuple[dict[str, Tensor], int | None]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            classes = (file.metadata() or {}).get("classes", "")
            return {name: file.get_tensor(name) for name in file.keys()}, int(classes) if classes else None  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"deploy: {path} cannot be read ({error}); turnout deploy init writes it") from error


def write_shard(path: Path, population: Population, client: int, classes: int | None) -> None:
    """One client's samples: `inputs`, `targets`, and the rows of each split."""
    splits = {name: getattr(population, name) for name in SPLITS}
    rows = {name: index.row(client) for name, index in splits.items() if index is not None}
    own = np.unique(np.concatenate(list(rows.values())))
    index = torch.as_tensor(own.astype(np.int64))
    tensors = {"inputs": population.inputs[index], "targets": population.targets[index]}
    tensors |= {name: torch.as_tensor(np.searchsorted(own, row)) for name, row in rows.items()}
    _write(path, tensors, classes)


def read_shard(path: Path) -> tuple[Dataset, Population]:
    """The population of one client."""
    tensors, classes = _read(path)
    splits: dict[str, Any] = {name: Ragged.from_rows([tensors[name].numpy()]) for name in SPLITS if name in tensors}
    dataset = Dataset(path.stem, tensors["inputs"], tensors["targets"], classes)
    return dataset, Population(dataset.inputs, dataset.targets, **splits)


def write_outline(path: Path, population: Population, classes: int | None) -> None:
    """What the server may know: what a sample looks like, and the central test set."""
    tensors = {"inputs": torch.zeros_like(population.inputs[:1]), "targets": torch.zeros_like(population.targets[:1])}
    if population.central is not None:
        tensors |= {"central_inputs": population.central[0], "central_targets": population.central[1]}
    _write(path, tensors, classes)


def read_outline(path: Path, sizes: list[int], **columns: Any) -> tuple[Dataset, Population]:
    """The population as the server knows it: clients of those sizes, whose samples are elsewhere."""
    tensors, classes = _read(path)
    dataset = Dataset(path.stem, tensors["inputs"], tensors["targets"], classes)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    elsewhere = Ragged(offsets, np.zeros(offsets[-1], np.int64))
    central = (tensors["central_inputs"], tensors["central_targets"]) if "central_inputs" in tensors else None
    return dataset, Population(dataset.inputs, dataset.targets, elsewhere, central=central, **columns)
