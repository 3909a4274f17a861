"""The watch over updates: detectors look at every step before it counts, and what they say has the response asked for.

    >>> watch = Watch(Screening(["update_persistence", "replay"], response="exclude", automatic=True))
    >>> turnout.simulate(task, people, algorithm, observers=[watch])
    >>> watch.suspects
    {3: ['update_persistence']}

Nobody is expelled by a machine unless that was asked for: a response touches clients that an operator has `confirmed`,
and suspects only where it is `automatic`. Clients whose data are nearly redundant, or few, look like free-riders to
some detectors; `cleared` ones are watched and left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core.allowed import Range, WholeNumber
from turnout.core.errors import UserError, unknown
from turnout.core.random import FloatArray
from turnout.core.spelling import Spelt
from turnout.record.detectors import DETECTORS, SURE, Averaging, Detector, Reading, Step
from turnout.record.history import Table
from turnout.server.observer import Observer, Round
from turnout.server.state import load_state, nest, save_state, unnest
from turnout.server.updates import Updates

if TYPE_CHECKING:
    from turnout.server.server import Server

BoolArray = NDArray[np.bool_]
_DONE = {"exclude": "excluded", "down_weight": "down_weighted"}


@dataclass(frozen=True)
class Screening(Spelt):
    """Which detectors look, those that accuse few unless `names` are given, and what follows for whom they suspect.

    `report` only logs; `exclude` gives no weight to a suspect's update; `down_weight` gives it `factor` times its
    weight. Either way the others' weights grow so that the sum is what it was. `limits` are scores above which a
    detector suspects, by its name; `start` is the first update of a client that averaging detectors count.
    """

    section: ClassVar[str] = "detectors"
    names: Sequence[str] = SURE  # which detectors look: see `turnout list detectors`
    response: Literal["report", "exclude", "down_weight"] = "report"  # what follows for suspects
    automatic: bool = False  # the response needs nobody's consent
    confirmed: Sequence[int] = ()  # clients that an operator wants to have the response
    cleared: Sequence[int] = ()  # clients that an operator has found to be honest
    factor: Annotated[float, Range(least=0, below=1)] = 0.1  # of a suspect's weight, with down_weight
    limits: Mapping[str, float] = field(default_factory=dict)  # scores above which a detector suspects, by its name
    start: WholeNumber = 5  # first update of a client that averaging detectors count

    def __post_init__(self) -> None:
        for name in (*self.names, *self.limits):
            if name not in DETECTORS:
                raise unknown("detectors.names", name, DETECTORS)

    def make(self) -> dict[str, Detector]:
        """New detectors, by name."""
        made = {}
        for name in self.names:
            kind = DETECTORS[name]
            options = {"limit": self.limits[name]} if name in self.limits else {}
            made[name] = kind(**options, start=self.start) if issubclass(kind, Averaging) else kind(**options)
        return made


class Watch(Observer):
    """`records` has a row for every update looked at: its client, what that declares, a hash and the norm of the
    upload, every detector's score and p-value, and the decision. With a folder it is written there."""

    def __init__(self, settings: Screening, folder: Path | None = None) -> None:
        self.settings = settings
        self.detectors = settings.make()
        self.records = Table(folder)
        self._flags = np.zeros((0, 0), bool)  # [detectors, N] whom each suspected when it last looked
        self._round: set[tuple[int, int]] = set()  # jobs looked at since the last round closed

    def on_start(self, server: Server) -> None:
        clients = server.population.size
        for name in ("confirmed", "cleared"):
            for client in getattr(self.settings, name):
                if not 0 <= client < clients:
                    raise UserError(f"detectors.{name}: {client} is not one of the {clients} clients")
        if server.begun and self._flags.size:
            return
        self.records.cut_back([], {})
        self._flags, self._round = np.zeros((len(self.detectors), clients), bool), set()
        for detector in self.detectors.values():
            detector.begin(clients)

    @property
    def suspects(self) -> dict[int, list[str]]:
        """Clients, and who suspected them when it last looked."""
        names = list(self.detectors)
        found = np.flatnonzero(self._flags.any(0)).tolist()
        return {client: [names[row] for row in np.flatnonzero(self._flags[:, client])] for client in found}

    # -- looking ----------------------------------------------------------------------------------------------

    def on_step(self, server: Server, updates: Updates, weights: FloatArray) -> FloatArray:
        touched = self._look(server, updates)
        if self.settings.response == "report" or not touched.any():
            return weights
        left = weights.copy()
        left[touched] *= self.settings.factor if self.settings.response == "down_weight" else 0
        return left * (weights.sum() / left.sum()) if left.sum() else left

    def on_round(self, server: Server, record: Round) -> None:
        """Rules that publish a model of their own have no step; their updates are looked at here, too late to act."""
        used = [record.jobs[row] for row in np.flatnonzero(record.weights).tolist()]
        new = (job for job in used if job.name not in self._round and not job.logged)
        jobs = [job for job in new if job.result is not None and "delta" in job.result[0]]
        self._round = set()
        if not jobs:
            return
        if self.settings.response != "report":
            raise UserError(
                f"detectors.response: {self.settings.response} acts on the weights of a step, and this algorithm has a "
                "rule of its own; use report"
            )
        self._look(server, Updates.computed(jobs, server.version, server.model))
        self._round.clear()

    def _look(self, server: Server, updates: Updates) -> BoolArray:
        """Which of the updates have the response."""
        touched = np.isin(updates.clients, self.settings.confirmed)
        if not len(updates):
            return touched
        self._round |= {job.name for job in updates.jobs}
        deltas = updates.deltas
        fine = torch.isfinite(deltas).all(1)
        known = fine.cpu().numpy()
        if not known.any():
            return touched
        layout = server.task.layout
        sizes = layout.sizes * (deltas.shape[1] // layout.size)  # a mixture has several models
        step = Step(updates.clients[known], updates.versions[known], deltas[fine], server.model, sizes)
        readings = {name: detector.look(step) for name, detector in self.detectors.items()}
        suspected = np.zeros(len(step.clients), bool)
        for row, (name, reading) in enumerate(readings.items()):
            flagged = reading.score > self.detectors[name].limit  # NaN is not
            self._report(server, name, step, reading, flagged & ~self._flags[row, step.clients])
            self._flags[row, step.clients] = flagged
            suspected |= flagged
        consent = self.settings.automatic & suspected & ~np.isin(step.clients, self.settings.cleared)
        touched[known] |= consent
        self._record(server, step, readings, suspected, touched[known])
        return touched

    @staticmethod
    def _report(server: Server, name: str, step: Step, reading: Reading, new: BoolArray) -> None:
        for row in np.flatnonzero(new).tolist():
            seen = {"score": reading.score, "p_value": reading.p_value, **reading.evidence}
            numbers = {what: float(f"{values[row]:.6g}") for what, values in seen.items()}
            server.log("suspected", client=int(step.clients[row]), detector=name, **numbers)

    def _record(
        self, server: Server, step: Step, readings: dict[str, Reading], suspected: BoolArray, touched: BoolArray
    ) -> None:
        response = self.settings.response
        waiting = "suspected" if response == "report" else "waiting"
        decisions = np.where(suspected, waiting, "counts").astype(object)
        decisions[suspected & np.isin(step.clients, self.settings.cleared)] = "cleared"
        if response != "report":
            decisions[touched] = _DONE[response]
        uploads = step.deltas.cpu().numpy()
        columns: dict[str, Sequence[Any]] = {
            "round": [server.version] * len(step.clients),
            "client": step.clients.tolist(),
            "declared": server.population.declared[step.clients].tolist(),
            "upload": [blake2b(row.tobytes(), digest_size=8).hexdigest() for row in uploads],
            "norm": step.deltas.norm(dim=1).tolist(),
            "decision": decisions.tolist(),
        }
        for name, reading in readings.items():
            columns |= {name: reading.score.tolist(), f"{name}_p": reading.p_value.tolist()}
        self.records.append(tuple(columns), list(zip(*columns.values(), strict=True)))

    # -- on disk and in checkpoints ---------------------------------------------------------------------------

    def on_checkpoint(self, server: Server) -> None:
        self.records.flush()

    on_end = on_checkpoint

    def save(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts: dict[str, Any] = {"segments": self.records.segments, "detectors": {}}
        facts["rows"] = self.records.columns if self.records.folder is None else {}
        tensors = {"flags": torch.as_tensor(self._flags)}
        for name, detector in self.detectors.items():
            facts["detectors"][name], state = save_state(detector)
            tensors |= nest(name, state)
        return facts, tensors

    def load(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.records.cut_back(facts["segments"], facts["rows"])
        self._flags = tensors["flags"].numpy().copy()
        for name, detector in self.detectors.items():
            load_state(detector, facts["detectors"][name], unnest(name, tensors), "cpu")
