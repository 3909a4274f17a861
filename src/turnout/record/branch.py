"""What is kept of one branch of training, its sensitivity table and models; and where to roll back to.

The table has what each round's updates say of how far each client moved the model.

Fraboni et al., "SIFU: sequential informed federated unlearning", AISTATS 2024, theorem 1 and corollary 1. A round that
moves the model by a step `a` times the mean update, mean over shares p_i, would have moved it without the clients W by

    d(W) <= sum over i in W of p_i / (1 - p_W) * a * |update_i - mean update|          (equal for one client)

further away, or by all of its move where nobody else took part. Where local work does not drive models apart,

    psi(0, W) = 0,      psi(n + 1, W) = contraction * psi(n, W) + d_n(W)

bounds the distance to the model that was trained without W, on the same draws. The contraction is 1 for the plain
bound; with losses of curvature at least lambda + mu it is |1 - a| + a (1 - lr (lambda + mu))^steps.

Models take, with P parameters, N rounds and M clients,

    all         every model                                     (N + 1) P
    thinned     every k-th and the newest; rollbacks go down     (N / k + 2) P
    frugal      for each client the last admissible one          at most min(N + 1, M + 2) P

in memory, or in a folder: then no more than a few wait in memory to be written.

Algorithm 7 of Fraboni's thesis (2023) chooses a branch and a round. Branch 0 is the original training, branch r the
retraining after request r. The *lineage* O(r) is the list of cuts (branch, round) through which the model of branch r
came to be. Request r looks for the first cut at which the bound psi of its clients exceeds the threshold psi*, and cuts
that branch earlier:

    T_r = max { n : psi(n) <= psi* },      O(r) = the cuts before, and (branch, T_r)

If none exceeds it, the branch now alive is cut. IFU is the first request. The cuts of a branch never move up again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.files import sha256, write_tensors
from turnout.core.random import FloatArray, IntArray
from turnout.record.unlearning import Budget, Retention


@dataclass(frozen=True)
class Turn:
    """One round: its updates, row by row."""

    clients: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # p_i
    distances: list[float] = field(default_factory=list)  # a * |update_i - mean update|
    moved: float = 0.0  # a * |mean update|
    contraction: float = 1.0
    joint: list[float] = field(default_factory=list)  # d of the groups known beforehand

    @classmethod
    def of(
        cls,
        clients: IntArray,
        weights: FloatArray,
        updates: Tensor,
        server_lr: float = 1.0,
        *,
        shares: FloatArray | None = None,
        contraction: float = 1.0,
        groups: Sequence[Sequence[int]] = (),
    ) -> Turn:
        """`updates` is `[k, P]`; other `shares` than the realised ones are for comparison with the paper's code."""
        total = float(weights.sum())
        if not len(clients):
            return cls()
        if total <= 0:  # nobody can be left out of such a mean
            return cls(moved=server_lr * float((torch.as_tensor(weights).to(updates) @ updates).norm()))
        step, shares = server_lr * total, weights / total if shares is None else shares
        mean = torch.tensordot(torch.as_tensor(weights / total).to(updates), updates, dims=1)
        apart = updates - mean
        moved = step * float(mean.norm())
        joint = []
        for group in groups:
            part = np.where(np.isin(clients, group), shares, 0.0)
            left = 1 - float(part.sum())
            change = torch.tensordot(torch.as_tensor(part).to(apart), apart, dims=1)
            joint.append(step * float(change.norm()) / left if left > 1e-12 else moved)
        distances = apart.norm(dim=1).double().mul(step)
        return cls(clients.tolist(), shares.tolist(), distances.tolist(), moved, contraction, joint)

    def increment(self, group: Collection[int]) -> float:
        """d of clients that leave together, by the triangle inequality; exact for one."""
        if not self.clients:  # nobody knows whose move it was
            return self.moved
        gone = [row for row, client in enumerate(self.clients) if client in group]
        if not gone:
            return 0.0
        left = 1 - sum(self.shares[row] for row in gone)
        if len(gone) == len(self.clients) or left < 1e-12:
            return self.moved
        return sum(self.shares[row] * self.distances[row] for row in gone) / left

    def alone(self) -> tuple[IntArray, FloatArray]:
        """The clients of the round, and d of each that leaves alone."""
        clients, place = np.unique(self.clients, return_inverse=True)
        left = 1 - np.bincount(place, self.shares)
        parts = np.bincount(place, np.multiply(self.shares, self.distances))
        others = (left >= 1e-12) & (len(clients) > 1)
        return clients, np.divide(parts, left, out=np.full(len(clients), self.moved), where=others)


@dataclass
class Table:
    """The turns of one branch."""

    groups: list[list[int]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.turns)

    def psi(self, clients: Iterable[int], rule: str = "sum") -> FloatArray:
        """`[N + 1]` the bound of these clients after 0, 1, ... rounds."""
        gone = frozenset(clients)
        if rule == "max":
            return np.asarray(np.max([self.psi([client]) for client in gone], axis=0))
        group = self._group(gone) if rule == "joint" and len(gone) > 1 else None
        psi = np.zeros(len(self.turns) + 1)
        for number, turn in enumerate(self.turns):
            increment = turn.increment(gone) if group is None else turn.joint[group]
            psi[number + 1] = turn.contraction * psi[number] + increment
        return psi

    def _group(self, clients: frozenset[int]) -> int:
        known = [frozenset(group) for group in self.groups]
        if clients not in known:
            raise UserError(
                f"unlearning.group_rule: joint needs the clients {sorted(clients)} to be a group in unlearning.groups "
                "when the run begins; use sum"
            )
        return known.index(clients)

    def lines(self, first: int = 0) -> Iterable[str]:
        """The turns from that one on, as JSON, a line each."""
        return (json.dumps(asdict(turn)) for turn in self.turns[first:])

    @classmethod
    def read(cls, lines: Iterable[str], facts: Mapping[str, Any]) -> Table:
        return cls([list(group) for group in facts["groups"]], [Turn(**json.loads(line)) for line in lines])


_WAITING = 16  # models in memory at most, where there is a folder


def stored_bytes(retention: Retention, parameters: int, rounds: int, clients: int, *, every: int = 10) -> int:
    """Bytes that models of four bytes a parameter take at most."""
    vectors = {"all": rounds + 1, "thinned": rounds // every + 2, "frugal": clients + 2}
    return min(rounds + 1, vectors[retention]) * parameters * 4


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


def superseded(retention: Retention, every: int, newest: int, *, crossed: bool) -> bool:
    """Whether the model before the newest is not needed once the newest is there; `crossed`: some client's bound was
    within the threshold before and is not now."""
    before = newest - 1
    if retention == "all" or before == 0:
        return False
    return before % every != 0 if retention == "thinned" else not crossed


Bound = Callable[[int, int], float]  # psi of some clients, by branch and round


class Cut(NamedTuple):
    branch: int
    round: int


def roll_back(
    lineage: Sequence[Cut],
    stored: Sequence[Sequence[int]],
    bound: Bound,
    threshold: float,
    *,
    budget: Budget = "per_branch",
    earlier: Sequence[Bound] = (),
) -> list[Cut]:
    """The new lineage; its last cut is where to roll back to.

    `stored[s]` are the rounds of branch s whose models are kept, 0 always among them; the last branch is the one alive.
    A bound may fall again (the contracted one does), so the rounds chosen are also checked for the requests `earlier`.
    With the budget `per_client_total` the cuts of a client share one threshold: sqrt(sum psi^2) <= psi*.
    """
    current = Cut(len(stored) - 1, max(stored[-1]))
    kept: list[Cut] = []

    def fits(each: Bound, cut: Cut) -> bool:
        spent = kept if budget == "per_client_total" else []
        return math.hypot(*(each(*one) for one in (*spent, cut))) <= threshold

    for cut in (*lineage, current):
        if cut.branch < current.branch and fits(bound, cut):
            kept.append(cut)
            continue
        earlier_cuts = (Cut(cut.branch, number) for number in sorted(stored[cut.branch], reverse=True))
        candidates = (one for one in earlier_cuts if one.round <= cut.round)
        chosen = next(one for one in candidates if one.round == 0 or all(fits(each, one) for each in (bound, *earlier)))
        return [*kept, chosen]
    raise AssertionError("the branch alive is always cut")


def alive(lineage: Sequence[Cut], branch: int, number: int) -> bool:
    """Whether a model is part of the history that is left: a later request may roll back to it."""
    return any(cut.branch == branch and number <= cut.round for cut in lineage)
