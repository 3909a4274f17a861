"""Sensitivity tracking: an observer that any run can switch on.

After every round it adds a `Turn` to the branch's `Table` and keeps the model, as far as the retention says. What the
bound's proof needs and a run may not grant is noted in `facts`, for the certificate. With a folder: `table.jsonl`,
`facts.json` and `models/`, written at every checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.files import append_lines, as_json_text, write_text
from turnout.core.random import FloatArray
from turnout.local.modifiers import Proximal
from turnout.local.optimisers import SGD
from turnout.local.sgd import LocalSGD
from turnout.record.branch import Models, Table, Turn, superseded
from turnout.record.signed import record_resume
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Watch
from turnout.server.jobs import Job
from turnout.server.observer import Observer, Round
from turnout.server.privacy import prying
from turnout.server.updates import Updates

if TYPE_CHECKING:
    from turnout.algorithms._algorithm import Algorithm
    from turnout.clients.population import Population
    from turnout.server.server import Server
    from turnout.task.task import Task

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
            "largest_pull": 0.0,
            **dict.fromkeys(("momentum", "clipped", "transformed", "client_state", "proximal", "other_work"), False),
            "prying": [],
        }
        self._psi = np.zeros(0)  # [M] of every client now, where the retention asks for it
        self._written = 0  # turns in the file
        self._hash = hashlib.sha256()  # of the file

    def on_start(self, server: Server) -> None:
        for client in (client for group in self.table.groups for client in group):
            if not 0 <= client < server.population.size:
                raise UserError(f"unlearning.groups: {client} is not one of the {server.population.size} clients")
        self.facts["prying"] = sorted({*self.facts["prying"], *_prying(server)})
        self.facts["other_work"] |= server.population.behaviour is not None
        self._before = server.model
        if not server.begun:
            self._go_on(0)
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
        clients, lr, contraction = np.array([job.client for job in jobs], np.int64), server.optimiser.lr, 1.0
        if self.settings.bound == "contracted":
            step = lr * float(weights.sum())
            contraction = abs(1 - step) + step * max(map(self._local_contraction, jobs))
        return Turn.of(
            clients,
            weights,
            Updates.computed(jobs, server.version, server.model).deltas,
            lr,
            shares=server.importance[clients] if self.settings.weights == "population" else None,
            contraction=contraction,
            groups=self.table.groups,
        )

    def _local_contraction(self, job: Job) -> float:
        """(1 - lr (lambda + mu))^steps"""
        curvature = float(job.work.bind(job.options).weight_decay) + self.settings.strong_convexity
        return float(abs(1 - _lr(job) * curvature) ** job.steps)

    def _note(self, server: Server, record: Round, jobs: list[Job], turn: Turn) -> None:
        """Whether the round was as the proof has it."""
        facts, kinds = self.facts, {(id(job.work), job.version, *job.options.values()): job for job in jobs}.values()
        moved = (server.model - self._before).norm()
        explained = record.linear and abs(float(moved) - turn.moved) <= _EXPLAINED * float(moved) and bool(turn.clients)
        facts["unexplained_rounds"] += bool(moved > 0) and not explained
        received = {id(job.received): job.received for job in jobs}.values()
        facts["stale_rounds"] += not all(r is self._before or torch.equal(r, self._before) for r in received)
        facts["largest_step"] = max(facts["largest_step"], server.optimiser.lr * float(record.weights.sum()))
        facts["largest_lr"] = max([facts["largest_lr"], *map(_lr, kinds)])
        facts["everybody"] &= bool(len(set(turn.clients)) == np.count_nonzero(server.importance))
        for work in (job.work.bind(job.options) for job in kinds):
            facts["full_batches"] &= work.batching == "full"
            facts["largest_pull"] = max(facts["largest_pull"], float(work.pull))
            facts["momentum"] |= bool(work.momentum)
            facts["clipped"] |= work.clip_norm is not None
            facts["transformed"] |= bool(work.transforms)
            facts["client_state"] |= bool(work.stored_shapes(server.task))
            facts["proximal"] |= bool(work.pull > work.weight_decay)
            facts["other_work"] |= type(work) is not LocalSGD or any(type(part) is not Proximal for part in work.active)
            facts["other_work"] |= type(work.optimiser) is not SGD or bool(work.paces)
        smooth = self.settings.smoothness
        if smooth is not None and "expansive" not in facts:
            whole = smooth + facts["largest_pull"]
            if facts["largest_lr"] * whole > 2:
                facts["expansive"] = True
                server.log("expansive_steps", lr=facts["largest_lr"], smoothness=whole, allowed=2 / whole)

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
        lines = list(self.table.lines(self._written))
        append_lines(self.folder / "table.jsonl", lines, sync=True)
        for line in lines:
            self._hash.update(f"{line}\n".encode())
        self._written = len(self.table)

    on_end = on_checkpoint

    def _go_on(self, turns: int) -> None:
        """Begin, or go on after so many turns: what was written after them is cut off."""
        self._written, self._hash = turns, hashlib.sha256()
        if self.folder is None:
            return
        record_resume(self.folder.parent)
        if (path := self.folder / "table.jsonl").exists():
            write_text(path, "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:turns]))

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts = {"facts": self.facts, "rounds": self.models.rounds, "turns": len(self.table)}
        facts |= {"digests": self.models.digests, "digest": self._hash.hexdigest()}
        if self.folder is None:
            facts["table"] = list(self.table.lines())
        return facts, {"psi": torch.as_tensor(self._psi), **self.models.save()}

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.facts, self._psi = facts["facts"], tensors.pop("psi").numpy().copy()
        self._go_on(facts["turns"])
        lines = read_lines(self.folder / "table.jsonl") if self.folder is not None else facts["table"]
        self._hash = hashlib.sha256("".join(lines).encode() if self.folder is not None else b"")
        if facts.get("digest", self._hash.hexdigest()) != self._hash.hexdigest():
            raise UserError(
                f"resume: {self.folder}/table.jsonl is not what the checkpoint was written with; restore it"
            )
        self.table = Table.read(lines, self.facts)
        digests = {int(number): digest for number, digest in facts.get("digests", {}).items()}
        self.models.cut_back(facts["rounds"], {int(number): model for number, model in tensors.items()}, digests)


def _prying(server: Server) -> list[str]:
    """What may let the data of clients decide who takes part, or how much others count."""
    acting = [
        type(one).__name__
        for one in server.observers
        if type(one).on_step is not Observer.on_step and not (type(one) is Watch and not one.settings.automatic)
    ]
    return [*prying(server.algorithm, server.population), *(f"observer {name}" for name in acting)]


def check_forgettable(algorithm: Algorithm, task: Task, population: Population, from_scratch: bool = False) -> None:
    """Raise where a run has no clients that can be left out, or no one global model that can be rolled back."""
    name = type(algorithm).__name__
    if algorithm.training_population(population).size != population.size:
        raise UserError(f"unlearning: {name} trains on everybody's data together; nobody can be left out")
    if not from_scratch and algorithm.trained_task(task).size != task.size:
        raise UserError(f"unlearning: {name} trains several models, and none can be rolled back; --from-scratch only")
    if population.mattering < 2:
        raise UserError("unlearning: nobody would remain to train with; it takes two clients that matter")


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
