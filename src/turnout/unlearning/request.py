"""A request on a run's folder, step by step: planned, noised, retrained, dead files destroyed, certified.

Every step is done, then logged; a step that the log has is never done again. The noised model is drawn once, written
and synced before the log knows of it, and retraining always begins with the file: after a crash the noise is neither
drawn again nor used for anything else.

    RUN/sensitivity/             table.jsonl, facts.json, models/: branch 0
    RUN/unlearning/log.jsonl     the audit log
    RUN/unlearning/start1.safetensors, branch1/, certificate1.json, certificate1.html
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import turnout
from turnout.errors import UserError
from turnout.files import as_json_text, remove_durably, write_durably, write_text
from turnout.observe.observer import Observer
from turnout.run import Experiment, execute
from turnout.unlearning.assumptions import assumptions
from turnout.unlearning.certificate import Certificate, page, statement
from turnout.unlearning.forget import Branches, Rollback, check_forgettable, retraining
from turnout.unlearning.guarantee import guarantee
from turnout.unlearning.lineage import Cut, alive
from turnout.unlearning.log import AuditLog, Entry
from turnout.unlearning.retention import Models, read_model, write_model
from turnout.unlearning.sensitivity import read_table
from turnout.unlearning.settings import Unlearning

ENTROPY, SEED, NONE = "the operating system's entropy", "a seed that was given", "none: the model has seen no data"
BUDGET = ("epsilon", "delta", "sigma", "calibration", "bound", "group_rule", "budget", "weights", "retention")
_REPLACED = ("model.safetensors", "clients.parquet", "result.json")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Run:
    """A tracked run and its requests so far."""

    folder: Path
    experiment: Experiment

    def __post_init__(self) -> None:
        self.settings: Unlearning = check_forgettable(self.experiment)
        if not (self.folder / "sensitivity" / "facts.json").exists():
            raise UserError(f"unlearn: {self.folder} holds no sensitivity table; the run was not tracked")
        self.log = AuditLog(self.folder / "unlearning" / "log.jsonl")
        first = self.log.find("requested", 1)
        if first is not None:
            self._check_budget(first["settings"])

    def _check_budget(self, fixed: dict[str, Any]) -> None:
        """What was promised to the first who were forgotten holds for all."""
        for name, value in json.loads(as_json_text(asdict(self.settings))).items():
            if fixed[name] != value:
                raise UserError(
                    f"unlearning.{name}: {value} is not what the first request of this run fixed, {fixed[name]}"
                )

    @property
    def answered(self) -> int:
        """Requests that are done."""
        return sum(entry["event"] == "certified" for entry in self.log.entries)

    @property
    def pending(self) -> Entry | None:
        """A request that was begun and not finished."""
        return self.log.find("requested", self.answered + 1)

    def home(self, branch: int) -> Path:
        return self.folder if branch == 0 else self.folder / "unlearning" / f"branch{branch}"

    def start_path(self, branch: int) -> Path:
        return self.folder / "unlearning" / f"start{branch}.safetensors"

    def planned(self, request: int) -> list[Cut]:
        """The lineage after a request."""
        entry = self.log.find("planned", request)
        return [] if entry is None else [Cut(*cut) for cut in entry["lineage"]]

    @cached_property
    def facts(self) -> list[dict[str, Any]]:
        return [read_table(self.home(branch) / "sensitivity")[1] for branch in range(self.answered + 1)]

    @cached_property
    def branches(self) -> Branches:
        """As they were when the next request came, less what it has destroyed."""
        homes = [self.home(branch) / "sensitivity" for branch in range(self.answered + 1)]
        tables = [read_table(home)[0] for home in homes]
        models = [Models.open(home / "models", len(table)) for home, table in zip(homes, tables, strict=True)]
        requests = [self.log.find("requested", number) for number in range(1, self.answered + 1)]
        return Branches(
            self.settings,
            self.experiment.population.size,
            tables,
            models,
            self.planned(self.answered),
            [entry["clients"] for entry in requests if entry is not None],
        )

    def dead(self, lineage: Sequence[Cut]) -> Iterator[Path]:
        """Every file with parameters that is no part of the history left: models, and whole states of servers."""
        for branch in range(self.answered + 1):
            home = self.home(branch)
            yield from sorted((home / "checkpoints").glob("*"))
            for path in sorted((home / "sensitivity" / "models").glob("*")):
                if not (path.stem.isdigit() and alive(lineage, branch, int(path.stem))):
                    yield path
            if branch:
                yield from (path for path in (self.start_path(branch), home / "model.safetensors") if path.exists())


def plan(run: Run, clients: Sequence[int]) -> Rollback:
    """What a request would do; nothing is written."""
    if run.pending is not None:
        raise _unfinished(run)
    return run.branches.plan(clients)


def _unfinished(run: Run) -> UserError:
    assert run.pending is not None
    names = " ".join(f"--client {client}" for client in run.pending["clients"])
    return UserError(f"unlearn: request {run.answered + 1} is not finished; go on with: {run.folder} {names}")


def _check_new(run: Run) -> None:
    """Raise if the next request left something behind before: its noise must not be used again."""
    number = run.answered + 1
    for path in (run.start_path(number), run.home(number)):
        if path.exists():
            raise UserError(f"unlearn: the log does not know of {path}; lines were cut off, restore {run.log.path}")


def unlearn(
    run: Run,
    clients: Sequence[int],
    *,
    noise_seed: int | None = None,
    checkpoint_every: int = 10,
    observers: Sequence[Observer] = (),
) -> Certificate:
    """Carry a request out, or go on with one that was interrupted."""
    asked = sorted(set(clients))
    if run.pending is None:  # refuse before anything is written
        _check_new(run)
        run.branches.plan(asked)
    elif run.pending["clients"] != asked:
        raise _unfinished(run)
    return _Request(run, asked, noise_seed).carry_out(checkpoint_every, observers)


class _Request:
    def __init__(self, run: Run, clients: list[int], noise_seed: int | None) -> None:
        self.run, self.log, self.clients, self.noise_seed = run, run.log, clients, noise_seed
        self.branches = run.branches
        self.number = run.answered + 1
        self.home = run.home(self.number)

    def _once(self, event: str, facts: Callable[[], dict[str, Any]]) -> Entry:
        """Do a step and log it, unless the log has it."""
        found = self.log.find(event, self.number)
        return self.log.append(event, self.number, **json.loads(as_json_text(facts()))) if found is None else found

    def carry_out(self, checkpoint_every: int, observers: Sequence[Observer]) -> Certificate:
        requested = self._once("requested", self._requested)
        planned = self._once("planned", self._planned)
        if planned["noise"] in (ENTROPY, SEED) and planned["noise"] != self._source(True):
            raise UserError(f"--noise-seed: this request was begun with {planned['noise']}; go on the same way")
        lineage = [Cut(*cut) for cut in planned["lineage"]]
        noised = self._once("noised", lambda: self._noised(lineage, planned["noise"]))
        retrained = self._once("retrained", lambda: self._retrained(checkpoint_every, observers))
        dead = self._once("destroying", lambda: {"files": self._hashes(self.run.dead(lineage))})["files"]
        self._once("destroyed", lambda: self._destroyed(dead))
        self._once("superseded", self._superseded)
        certificate = self._certificate(requested, planned, noised, retrained, len(dead), lineage)
        self._once("certified", lambda: self._certified(certificate))
        return certificate

    def _requested(self) -> dict[str, Any]:
        model = self.run.folder / "model.safetensors"
        return {
            "clients": self.clients,
            "settings": asdict(self.run.settings),
            "version": turnout.__version__,
            "model": sha256(model) if model.exists() else None,
            "served": _served(self.run.folder, self.clients),
        }

    def _planned(self) -> dict[str, Any]:
        rollback = self.branches.plan(self.clients)
        homes = [self.run.home(branch) / "sensitivity" for branch in range(self.number)]
        return {
            "lineage": rollback.lineage,
            "stored": [models.rounds for models in self.branches.models],
            "tables": [sha256(home / "table.jsonl") for home in homes],
            "facts": [sha256(home / "facts.json") for home in homes],
            "threshold": self.run.settings.threshold,
            "noise": self._source(rollback.noised),
        }

    def _source(self, noised: bool) -> str:
        return NONE if not noised else ENTROPY if self.noise_seed is None else SEED

    def _noised(self, lineage: list[Cut], source: str) -> dict[str, Any]:
        branch, number = lineage[-1]
        path = self.run.start_path(self.number)
        if not path.exists():
            promised = guarantee(self.run.settings, self.branches.tables, lineage, self.clients)
            rollback = Rollback(self.number, self.clients, lineage, promised, source != NONE)
            write_model(path, self.branches.start(rollback, self.noise_seed))
        return {"rolled_back_to": sha256(self.branches.models[branch].path(number)), "start": sha256(path)}

    def _hashes(self, paths: Iterator[Path]) -> dict[str, str]:
        return {str(path.relative_to(self.run.folder)): sha256(path) for path in paths}

    def _destroyed(self, dead: dict[str, str]) -> dict[str, Any]:
        remove_durably(self.run.folder / name for name in dead)
        return {"count": len(dead)}

    def _retrained(self, checkpoint_every: int, observers: Sequence[Observer]) -> dict[str, Any]:
        gone = sorted([*self.branches.forgotten, *self.clients])
        experiment = retraining(self.run.experiment, read_model(self.run.start_path(self.number)), gone)
        result = execute(
            replace(experiment, fingerprint=f"{experiment.fingerprint}-{self.number}"),
            self.home,
            checkpoint_every=checkpoint_every,
            resume=self.home.exists(),
            observers=observers,
        )
        model = sha256(self.home / "model.safetensors")
        return {"rounds": result.server.version, "stopped": result.server.stopped, "forgotten": gone, "model": model}

    def _superseded(self) -> dict[str, Any]:
        """What RUN serves is now what retraining has made."""
        for name in _REPLACED:
            write_durably(self.run.folder / name, partial(shutil.copyfile, self.home / name))
        return {"model": sha256(self.run.folder / "model.safetensors")}

    def _certificate(
        self, requested: Entry, planned: Entry, noised: Entry, retrained: Entry, destroyed: int, lineage: list[Cut]
    ) -> Certificate:
        settings, tables = self.run.settings, self.branches.tables
        summed = replace(settings, group_rule="sum")
        found = assumptions(settings, [self.run.facts[cut.branch] for cut in lineage])
        superseded = self.log.find("superseded", self.number)
        assert superseded is not None
        before, after = (
            {f"{name} of the forgotten, {when}": value for name, value in served.items()}
            for when, served in (("before", requested["served"]), ("after", _served(self.home, self.clients)))
        )
        certificate: Certificate = {
            "version": requested["version"],
            "request": self.number,
            "received": requested["at"],
            "forgotten": retrained["forgotten"],
            "budget": {name: requested["settings"][name] for name in BUDGET},
            "threshold": planned["threshold"],
            "guarantee": guarantee(settings, tables, lineage, self.clients).as_dict(),
            "earlier": [guarantee(settings, tables, lineage, group).as_dict() for group in self.branches.requests],
            "together": guarantee(summed, tables, lineage, retrained["forgotten"]).as_dict(),
            "rollback": lineage[-1],
            "lineage": lineage,
            "noise": {"sigma": settings.sigma, "source": planned["noise"], "private": planned["noise"] != SEED},
            "assumptions": [asdict(one) for one in found],
            "retraining": {"rounds": retrained["rounds"], "stopped": retrained["stopped"]},
            "destroyed": destroyed,
            "models": {
                "before": requested["model"],
                "rolled back to": noised["rolled_back_to"],
                "retraining began with": noised["start"],
                "after": retrained["model"],
            },
            "audit": before | after,
            "log": {"entry": superseded["number"], "hash": superseded["hash"]},
        }
        certificate = json.loads(as_json_text(certificate))
        return {"statement": statement(certificate, found), **certificate}

    def _certified(self, certificate: Certificate) -> dict[str, Any]:
        stem = self.run.folder / "unlearning" / f"certificate{self.number}"
        write_text(stem.with_suffix(".json"), as_json_text(certificate))
        write_text(stem.with_suffix(".html"), page(certificate))
        return {name: sha256(stem.with_suffix(f".{name}")) for name in ("json", "html")}


def _served(folder: Path, clients: Sequence[int]) -> dict[str, float]:
    """Mean loss and metrics of these clients under the model of a finished run."""
    import pyarrow.parquet as pq

    if not (path := folder / "clients.parquet").exists():
        return {}
    table = pq.read_table(path).to_pydict()
    rows = [row for row, client in enumerate(table["client"]) if client in clients]
    names = [name for name in table if name.endswith(("_loss", "_accuracy")) and rows]
    return {name: sum(table[name][row] for row in rows) / len(rows) for name in names}
