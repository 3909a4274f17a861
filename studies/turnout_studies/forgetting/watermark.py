"""A watermark to see whether a client is forgotten: ten chosen pixels of all its samples are set to the maximum.

Fraboni et al., "SIFU: sequential informed federated unlearning", AISTATS 2024, section 5. Labels stay as they are. A
model that has learnt the mark of a client serves its stamped samples better than one that never met the client: after
forgetting, `accuracy_on` them should be that of retraining from scratch, not that of the original model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from turnout.clients.population import Population
from turnout.core import random
from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.random import IntArray
from turnout.server.server import Server


def places(client: int, size: int, *, pixels: int = 10, marks: int = 10, seed: int = 42) -> IntArray:
    """Which numbers of a sample carry the client's mark: clients `i` and `i + marks` share theirs."""
    if not 1 <= pixels <= size:
        raise UserError(f"watermark: {pixels} pixels of samples with {size} numbers; allowed: 1 to {size}")
    return random.subset(random.key(seed, "watermark", client % marks), pixels, size)


def stamped(population: Population, *, pixels: int = 10, marks: int = 10, seed: int = 42) -> Population:
    """The same clients, every sample of theirs with their mark: each number there is the largest of its sample."""
    inputs, targets, start = [], [], 0
    parts: dict[str, Any] = {}
    for name in ("train", "test", "validation"):
        rows: Ragged | None = getattr(population, name)
        if rows is None:
            continue
        index = torch.as_tensor(rows.values.astype(np.int64), device=population.inputs.device)
        samples = population.inputs[index].clone()
        flat = samples.view(len(samples), -1)
        owner = np.repeat(population.ids, rows.counts)
        for client in population.ids.tolist():
            mine = torch.from_numpy(np.flatnonzero(owner == client))
            where = torch.from_numpy(places(client, flat.shape[1], pixels=pixels, marks=marks, seed=seed))
            flat[mine[:, None], where] = flat[mine].amax(1, keepdim=True)
        inputs.append(samples)
        targets.append(population.targets[index])
        parts[name] = Ragged(rows.offsets, start + np.arange(len(samples)))
        start += len(samples)
    return replace(population, inputs=torch.cat(inputs), targets=torch.cat(targets), **parts)


def accuracy_on(server: Server, clients: Sequence[int], split: str = "train") -> float:
    """Accuracy over the samples of these clients, each counting once."""
    table = server.clients()
    rows = np.isin(table["client"], clients)
    return float(np.average(table[f"{split}_accuracy"][rows], weights=table[f"{split}_samples"][rows]))
