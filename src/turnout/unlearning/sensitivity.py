"""Sensitivity tracking: an observer that any run can switch on.

After every round it adds a `Turn` to the branch's `Table` and keeps the model, as far as the retention says. What the
bound's proof needs and a run may not grant is noted in `facts`, for the certificate. With a folder: `table.jsonl`,
`facts.json` and `models/`, written at every checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from turnout.errors import UserError
from turnout.files import append_lines, as_json_text, write_text
from turnout.observe.observer import Observer, Round
from turnout.random import FloatArray
from turnout.server.updates import Job, Updates
from turnout.unlearning.retention import Models, superseded
from turnout.unlearning.settings import Unlearning
from turnout.unlearning.table import Table, Turn

if TYPE_CHECKING:
    from turnout.server.server import Server

_EXPLAINED = 1e-3  # relative: a move this near to the weighted sum of the updates is that sum, rounded


class Sensitivity(Observer):
    """`table`, `models` and `facts` of one branch."""

    def __init__(self, settings: Unlearning, folder: Path | None = None) -> None:
        self.settings, self.folder = settings, folder
        self.table = Table([sorted(group) for group in settings.groups])
        self.models = Models(None if folder is None else folder / "models")
        self.facts: dict[str, Any] = {
            "groups": self.table.groups,
            "stale_rounds": 0,
            "unexplained_rounds": 0,
            "largest_step": 0.0,
            "largest_lr": 0.0,
            "everybody": True,
            "full_batches": True,
            "momentum": False,
            "clipped": False,
            "client_state": False,
        }
        self._psi = np.zeros(0)  # [M] of every client now, where the retention asks for it
        self._written = 0  # turns in the file

    def on_start(self, server: Server) -> None:
        for client in (client for group in self.table.groups for client in group):
            if not 0 <= client < server.population.size:
                raise UserError(f"unlearning.groups: {client} is not one of the {server.population.size} clients")
        self._before = server.model
        if not server.begun:
            self._cut_file(0)
            self.models.cut_back([], {})
            self._psi = np.zeros(server.population.size)
        self.models.put(len(self.table), server.model)

    def on_round(self, server: Server, record: Round) -> None:
        rows = np.flatnonzero(record.weights)
        jobs, weights = [record.jobs[row] for row in rows.tolist()], record.weights[rows]
        turn = self._turn(server, jobs, weights)
        self._note(server, record, jobs, turn)
        self.table.turns.append(turn)
        self._before = server.model
        newest = len(self.table)
        self.models.put(newest, server.model)
        if superseded(self.settings.retention, self.settings.every, newest, crossed=self._crossed(turn)):
            self.models.drop(newest - 1)

    def _turn(self, server: Server, jobs: list[Job], weights: FloatArray) -> Turn:
        known = all(job.result is not None and "delta" in job.result[0] for job in jobs)
        if not jobs or not known:
            return Turn(moved=float((server.model - self._before).norm()))
        clients = np.array([job.client for job in jobs], np.int64)
        lr = server.optimiser.lr
        contraction = 1.0
        if self.settings.bound == "contracted":
            step = lr * float(weights.sum())
            contraction = abs(1 - step) + step * self._local_contraction(jobs)
        return Turn.of(
            clients,
            weights,
            Updates.computed(jobs, server.version, server.model).deltas,
            lr,
            shares=server.importance[clients] if self.settings.weights == "population" else None,
            contraction=contraction,
            groups=self.table.groups,
        )

    def _local_contraction(self, jobs: Sequence[Job]) -> float:
        """The largest (1 - lr (lambda + mu))^steps of the jobs."""
        curvature = self.settings.strong_convexity
        return max(abs(1 - _lr(job) * (float(job.work.weight_decay) + curvature)) ** job.steps for job in jobs)

    def _note(self, server: Server, record: Round, jobs: list[Job], turn: Turn) -> None:
        """Whether the round was as the proof has it."""
        facts, kinds = self.facts, {(id(job.work), job.version, job.options.get("lr")): job for job in jobs}.values()
        moved = (server.model - self._before).norm()
        explained = record.linear and abs(float(moved) - turn.moved) <= _EXPLAINED * float(moved) and bool(turn.clients)
        facts["unexplained_rounds"] += bool(moved > 0) and not explained
        received = {id(job.received): job.received for job in jobs}.values()
        facts["stale_rounds"] += not all(r is self._before or torch.equal(r, self._before) for r in received)
        facts["largest_step"] = max(facts["largest_step"], server.optimiser.lr * float(record.weights.sum()))
        facts["largest_lr"] = max([facts["largest_lr"], *map(_lr, kinds)])
        facts["everybody"] &= bool(len(set(turn.clients)) == np.count_nonzero(server.importance))
        for work in (job.work for job in kinds):
            facts["full_batches"] &= work.batching == "full"
            facts["momentum"] |= bool(np.any(np.asarray(work.momentum)))
            facts["clipped"] |= work.clip_norm is not None
            facts["client_state"] |= bool(work.stored_shapes(server.task))
        smooth = self.settings.smoothness
        if smooth is not None and facts["largest_lr"] * smooth > 2 and "expansive" not in facts:
            facts["expansive"] = True
            server.log("expansive_steps", lr=facts["largest_lr"], smoothness=smooth, allowed=2 / smooth)

    def _crossed(self, turn: Turn) -> bool:
        """Whether some client was within the threshold until now."""
        if self.settings.retention != "frugal":
            return False
        within = self._psi <= self.settings.threshold
        if turn.clients:
            clients, increments = turn.alone()
            self._psi[clients] += increments
        else:
            self._psi += turn.moved
        return bool((within & (self._psi > self.settings.threshold)).any())

    # -- on disk and in checkpoints ---------------------------------------------------------------------------

    def on_checkpoint(self, server: Server) -> None:
        self.models.flush()
        if self.folder is None:
            return
        write_text(self.folder / "facts.json", as_json_text(self.facts))
        append_lines(self.folder / "table.jsonl", self.table.lines(self._written), sync=True)
        self._written = len(self.table)

    def on_end(self, server: Server) -> None:
        self.on_checkpoint(server)

    def _cut_file(self, turns: int) -> None:
        self._written = turns
        if self.folder is not None and (path := self.folder / "table.jsonl").exists():
            write_text(path, "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:turns]))

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts = {"facts": self.facts, "rounds": self.models.rounds, "turns": len(self.table)}
        if self.folder is None:
            facts["table"] = list(self.table.lines())
        return facts, {"psi": torch.as_tensor(self._psi), **self.models.save()}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.facts, self._psi = facts["facts"], tensors.pop("psi").numpy().copy()
        self._cut_file(facts["turns"])
        lines = read_lines(self.folder / "table.jsonl") if self.folder is not None else facts["table"]
        self.table = Table.read(lines, self.facts)
        self.models.cut_back(facts["rounds"], {int(number): model for number, model in tensors.items()})


def read_lines(path: Path) -> list[str]:
    """The whole lines: a crash may have left a part of one."""
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def read_table(folder: Path) -> tuple[Table, dict[str, Any]]:
    """Table and facts that a run has left in a folder."""
    try:
        facts: dict[str, Any] = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        return Table.read(read_lines(folder / "table.jsonl"), facts), facts
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"unlearn: {folder} holds no table that can be read ({error}); restore its files") from error


def _lr(job: Job) -> float:
    """The learning rate of a job."""
    return float(job.options.get("lr", job.work.lr) * job.work.lr_factor(job.version))
