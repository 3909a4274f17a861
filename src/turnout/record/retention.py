"""Which models of a branch are kept to roll back to, and what that takes.

P parameters, N rounds, M clients:

    all         every model                                     (N + 1) P
    thinned     every k-th and the newest; rollbacks go down     (N / k + 2) P
    frugal      for each client the last admissible one          at most min(N + 1, M + 2) P

Kept in memory, or in a folder: then no more than a few wait in memory to be written.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from turnout.core.errors import UserError, unknown
from turnout.core.files import sha256, write_tensors

_WAITING = 16  # models in memory at most, where there is a folder


def stored_bytes(
    retention: str, parameters: int, rounds: int, clients: int, *, every: int = 10, per_round: int = 0, width: int = 4
) -> int:
    """Bytes that models (or, for `updates`, the updates of `per_round` clients a round) take at most."""
    vectors = {
        "all": rounds + 1,
        "thinned": min(rounds + 1, rounds // every + 2),
        "frugal": min(rounds + 1, clients + 2),
        "updates": rounds * per_round,
    }
    if retention not in vectors:
        raise unknown("unlearning.retention", retention, vectors)
    return vectors[retention] * parameters * width


def write_model(path: Path, model: Tensor) -> None:
    write_tensors(path, {"model": model.detach().cpu().contiguous().clone()})


def read_model(path: Path) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)["model"]
    except (OSError, KeyError, SafetensorError) as error:
        raise UserError(f"unlearn: {path} holds no model that can be read ({error}); restore the file") from error


class Models:
    """The models kept of one branch, by round."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[int, Tensor] = {}
        self._written = set[int]()
        self.digests: dict[int, str] = {}  # SHA-256 of the files, when they were written

    @classmethod
    def open(cls, folder: Path, last: int) -> Models:
        """Those up to a round that a run has left in a folder."""
        models = cls(folder)
        numbers = (int(path.stem) for path in folder.glob("*.safetensors") if path.stem.isdigit())
        models._written = {number for number in numbers if number <= last}
        return models

    @property
    def rounds(self) -> list[int]:
        return sorted(self._written | self._memory.keys())

    @property
    def memory_bytes(self) -> int:
        return sum(model.numel() * model.element_size() for model in self._memory.values())

    def __getitem__(self, number: int) -> Tensor:
        return self._memory[number] if number in self._memory else read_model(self.path(number))

    def path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{number:09d}.safetensors"

    def put(self, number: int, model: Tensor) -> None:
        self._memory[number] = model.detach().cpu()
        if self.folder is not None and len(self._memory) > _WAITING:
            self.flush()

    def drop(self, number: int) -> None:
        self._memory.pop(number, None)
        if number in self._written:
            self.path(number).unlink(missing_ok=True)
            self._written.remove(number)
            self.digests.pop(number, None)

    def flush(self) -> None:
        """Write those that wait in memory."""
        if self.folder is None:
            return
        for number in sorted(self._memory):
            write_model(self.path(number), self._memory[number])
            self._written.add(number)
            self.digests[number] = sha256(self.path(number))
        self._memory.clear()

    def cut_back(self, rounds: list[int], memory: dict[int, Tensor], digests: dict[int, str] | None = None) -> None:
        """Keep these rounds and no other: what was kept when a checkpoint was written."""
        self._memory, self.digests = memory, digests or {}
        if self.folder is not None and self.folder.exists():
            for path in self.folder.iterdir():
                if path.suffix != ".safetensors" or int(path.stem) not in rounds:
                    path.unlink()
        self._written = set(rounds) - memory.keys()

    def save(self) -> dict[str, Tensor]:
        return {str(number): model for number, model in self._memory.items()}


def superseded(retention: str, every: int, newest: int, *, crossed: bool) -> bool:
    """Whether the model before the newest is not needed once the newest is there; `crossed`: some client's bound was
    within the threshold before and is not now."""
    before = newest - 1
    if retention == "all" or before == 0:
        return False
    return before % every != 0 if retention == "thinned" else not crossed
