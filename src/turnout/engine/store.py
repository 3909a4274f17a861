"""What clients keep between their jobs: named rows, created on first use, spilled to disk when large."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.local.sgd import Named


class ClientStore:
    """Rows of client state. A client that was never stored reads zeros.

    Rows live in the device's memory up to `memory_mib` in all, beyond that in memory-mapped temporary files.
    """

    def __init__(self, clients: int, device: str, dtype: torch.dtype, memory_mib: int) -> None:
        self.device, self.dtype, self.limit = device, dtype, memory_mib << 20
        self._row = np.full(clients, -1, np.int64)  # where each client's rows are
        self._used = 0
        self._columns: dict[str, Tensor] = {}  # [capacity, ...]
        self._files: dict[str, Path] = {}  # of the columns that are not in memory
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def resident(self) -> int:
        """Count the bytes in memory."""
        return sum(column.nbytes for name, column in self._columns.items() if name not in self._files)

    def get(self, shapes: dict[str, tuple[int, ...]], clients: NDArray[np.int64]) -> Named:
        """Read the rows of these clients, `[len(clients), *shape]` for each name."""
        rows = torch.as_tensor(self._row[clients])
        state = {}
        for name, shape in shapes.items():
            state[name] = torch.zeros((len(clients), *shape), dtype=self.dtype, device=self.device)
            if name in self._columns:
                column = self._columns[name]
                stored = (rows >= 0) & (rows < len(column))
                found = column[rows[stored].to(column.device)].to(self.device)
                state[name][stored.to(self.device)] = found
        return state

    def put(self, clients: NDArray[np.int64], state: Named) -> None:
        """Replace the named rows of these clients."""
        new = clients[self._row[clients] < 0]
        self._row[new] = np.arange(self._used, self._used + len(new))
        self._used += len(new)
        rows = torch.as_tensor(self._row[clients])
        for name, values in state.items():
            self._reserve(name, values.shape[1:])
            column = self._columns[name]
            column[rows.to(column.device)] = values.to(column.device, self.dtype)

    def _reserve(self, name: str, shape: torch.Size) -> None:
        """Make room for all rows used: twice what there was, in a file where memory cannot hold both."""
        column, file = self._columns.get(name), self._files.get(name)
        if column is not None and len(column) >= self._used:
            return
        capacity = max(16, 1 << (self._used - 1).bit_length())
        larger = self._allocate(name, (capacity, *shape))
        if column is not None:
            larger[: len(column)] = column
        if file is not None:
            file.unlink()
        self._columns[name] = larger

    def _allocate(self, name: str, shape: tuple[int, ...]) -> Tensor:
        numbers = torch.Size(shape).numel()
        if self.resident + numbers * self.dtype.itemsize <= self.limit and name not in self._files:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="turnout-store-")
        self._files[name] = Path(self._folder.name) / f"{name}-{shape[0]}"
        return torch.from_file(str(self._files[name]), shared=True, size=numbers, dtype=self.dtype).view(shape)

    def save(self) -> Named:
        """Give everything stored, as tensors."""
        rows = {f"column.{name}": column[: self._used] for name, column in self._columns.items()}
        return {"row": torch.as_tensor(self._row), **rows}

    def load(self, saved: Named) -> None:
        """Replace everything by what `save` gave."""
        self._row = saved["row"].numpy().copy()
        self._used = int(self._row.max(initial=-1)) + 1
        for file in self._files.values():
            file.unlink()
        self._columns, self._files = {}, {}
        for key, values in saved.items():
            if key.startswith("column."):
                name = key.removeprefix("column.")
                self._reserve(name, values.shape[1:])
                self._columns[name][: len(values)] = values
