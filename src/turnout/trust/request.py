"""A request on a run's folder, step by step: planned, noised, retrained, dead files destroyed, certified.

Every step is done, then logged; a step that the log has is never done again. The noised model is drawn once, written
and synced before the log knows of it, and retraining always begins with the file: after a crash the noise is neither
drawn again nor used for anything else.

    RUN/sensitivity/             table.jsonl, facts.json, models/, log.jsonl: branch 0
    RUN/unlearning/log.jsonl     the audit log
    RUN/unlearning/start1.safetensors, branch1/, certificate1.json, certificate1.html

A request from scratch needs no tables: it retrains from the initial model. One of clients that never took part needs
no branch of its own, so that branches may be fewer than requests.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from turnout.core.errors import UserError
from turnout.core.files import as_json_text, remove_durably, sha256, write_durably, write_text
from turnout.core.version import VERSION
from turnout.record.branch import Cut, Models, Table, alive, read_model, write_model
from turnout.record.run_folder import reseal, unseal
from turnout.record.sensitivity import check_forgettable, read_table
from turnout.record.signed import AuditLog, Entry, changes, files_left, log_of
from turnout.record.unlearning import Unlearning
from turnout.run.experiment import Experiment, execute
from turnout.server.observer import Observer
from turnout.server.stopping import Stopping
from turnout.trust.assumptions import ABSENT, PREPARED, Assumption, assumptions, unchanged
from turnout.trust.certificate import Certificate, page, served, statement
from turnout.trust.forget import Branches, Rollback, retraining, tracked_settings
from turnout.trust.guarantee import guarantee

ENTROPY, SEED, NONE = "the operating system's entropy", "a seed that was given", "none: the model has seen no data"
NOBODY = "none: no client of the request ever took part"
BUDGET = ("epsilon", "delta", "sigma", "calibration", "bound", "group_rule", "budget", "weights", "retention")
_REPLACED = ("model.safetensors", "clients.parquet", "result.json")


@dataclass
class Run:
    """A run and its requests so far; one that was not tracked can forget `from_scratch` only."""

    folder: Path
    experiment: Experiment
    from_scratch: bool = False

    def __post_init__(self) -> None:
        experiment = self.experiment
        check_forgettable(experiment.algorithm, experiment.task, experiment.population, self.from_scratch)
        self.settings = experiment.unlearning or Unlearning(track=False)
        if not self.from_scratch:
            self.settings = tracked_settings(experiment)
            if not (self.folder / "sensitivity" / "facts.json").exists():
                raise UserError(
                    f"unlearn: {self.folder} holds no sensitivity table, the run was not tracked; forget --from-scratch"
                )
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

    @property
    def retrained(self) -> int:
        """The branch that is alive: so many requests needed one."""
        return sum(entry["event"] == "retrained" and entry["request"] <= self.answered for entry in self.log.entries)

    def home(self, branch: int) -> Path:
        return self.folder if branch == 0 else self.folder / "unlearning" / f"branch{branch}"

    def start_path(self, branch: int) -> Path:
        return self.folder / "unlearning" / f"start{branch}.safetensors"

    def planned(self, request: int) -> list[Cut]:
        """The lineage after a request."""
        entry = self.log.find("planned", request)
        return [] if entry is None else [Cut(*cut) for cut in entry["lineage"]]

    @cached_property
    def needed(self) -> list[int]:
        """The branches whose tables the next request rests on: where a cut is the initial model, none is needed."""
        cuts = self.planned(self.answered)
        return [] if self.from_scratch else sorted({cut.branch for cut in cuts if cut.round} | {self.retrained})

    @cached_property
    def tables(self) -> list[tuple[Table, dict[str, Any]]]:
        """Of every branch, with its facts; empty where it is not needed."""
        homes = enumerate(self.home(branch) / "sensitivity" for branch in range(self.retrained + 1))
        return [read_table(home) if branch in self.needed else (Table(), {}) for branch, home in homes]

    @cached_property
    def ended(self) -> bool:
        """Whether all that the next request rests on was hashed when its run ended; raises where it is no longer so."""
        left = {branch: files_left(self.home(branch)) for branch in self.needed}
        for branch, files in left.items():
            for sentence in changes(self.home(branch), files or {}, skip=self.spent(branch)):
                raise UserError(f"unlearn: {sentence}; restore the file, or forget --from-scratch")
        return all(files is not None for files in left.values())

    def spent(self, branch: int) -> set[str]:
        """Files of a branch that requests have destroyed or replaced."""
        prefix = "" if branch == 0 else f"unlearning/branch{branch}/"
        gone = (name for entry in self.log.entries if entry["event"] == "destroying" for name in entry["files"])
        replaced = _REPLACED if branch == 0 and any(e["event"] == "destroyed" for e in self.log.entries) else ()
        return {name.removeprefix(prefix) for name in gone if name.startswith(prefix)} | set(replaced)

    @cached_property
    def branches(self) -> Branches:
        """As they were when the next request came, less what it has destroyed."""
        homes = [self.home(branch) / "sensitivity" for branch in range(self.retrained + 1)]
        requests = [self.log.find("requested", number) for number in range(1, self.answered + 1)]
        return Branches(
            self.settings,
            self.experiment.population.size,
            [table for table, _ in self.tables],
            [Models.open(home / "models", len(table)) for home, (table, _) in zip(homes, self.tables, strict=True)],
            self.planned(self.answered),
            [entry["clients"] for entry in requests if entry is not None],
            [facts for _, facts in self.tables] if self.ended else [],
        )

    def plan(self, clients: Sequence[int]) -> Rollback:
        return self.branches.plan(clients, self.from_scratch)

    def dead(self, lineage: Sequence[Cut]) -> Iterator[Path]:
        """Every file with parameters that is no part of the history left: models, and whole states of servers."""
        for branch in range(self.retrained + 1):
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
    return run.plan(clients)


def _unfinished(run: Run) -> UserError:
    assert run.pending is not None
    names = " ".join(f"--client {client}" for client in run.pending["clients"])
    names += " --from-scratch" if run.pending.get("from_scratch") else ""
    return UserError(f"unlearn: request {run.answered + 1} is not finished; go on with: {run.folder} {names}")


def _check_new(run: Run) -> None:
    """Raise if the next request left something behind before: its noise must not be used again."""
    number = run.retrained + 1
    for path in (run.start_path(number), run.home(number)):
        if path.exists():
            raise UserError(f"unlearn: the log does not know of {path}; lines were cut off, restore {run.log.path}")


def unlearn(
    run: Run,
    clients: Sequence[int],
    *,
    noise_seed: int | None = None,
    stopping: Stopping | None = None,
    checkpoint_every: int = 10,
    observers: Sequence[Observer] = (),
) -> Certificate:
    """Carry a request out, or go on with one that was interrupted. Retraining stops as the run did, unless said."""
    asked, begun = sorted(set(clients)), run.pending
    if begun is None:  # refuse before anything is written
        _check_new(run)
        run.plan(asked)
    elif begun["clients"] != asked or begun.get("from_scratch", False) != run.from_scratch:
        raise _unfinished(run)
    elif stopping is not None and json.loads(as_json_text(asdict(stopping))) != begun.get("stopping"):
        raise UserError(f"--rounds, --target: this request was begun with {begun.get('stopping')}; go on the same way")
    return _Request(run, asked, noise_seed, stopping).carry_out(checkpoint_every, observers)


class _Request:
    def __init__(self, run: Run, clients: list[int], noise_seed: int | None, stopping: Stopping | None) -> None:
        self.run, self.log, self.clients, self.noise_seed = run, run.log, clients, noise_seed
        self.stopping = stopping or run.experiment.stopping
        self.branches = run.branches
        self.number, self.branch = run.answered + 1, run.retrained + 1
        self.home = run.home(self.branch)

    def _once(self, event: str, facts: Callable[[], dict[str, Any]]) -> Entry:
        """Do a step and log it, unless the log has it."""
        found = self.log.find(event, self.number)
        return self.log.append(event, self.number, **json.loads(as_json_text(facts()))) if found is None else found

    def carry_out(self, checkpoint_every: int, observers: Sequence[Observer]) -> Certificate:
        folder = self.run.folder
        unseal(folder, self.log.path.relative_to(folder).as_posix(), *_REPLACED)
        certificate = self._carry_out(checkpoint_every, observers)
        for home in {self.run.home(branch) for branch in range(self.branch + 1)} - {folder}:
            reseal(home)
        reseal(folder)
        return certificate

    def _carry_out(self, checkpoint_every: int, observers: Sequence[Observer]) -> Certificate:
        requested = self._once("requested", self._requested)
        planned = self._once("planned", self._planned)
        if planned["noise"] == NOBODY:
            certificate = self._certificate(requested, planned)
            self._once("certified", lambda: self._certified(certificate))
            return certificate
        if planned["noise"] in (ENTROPY, SEED) and planned["noise"] != self._source(True):
            raise UserError(f"--noise-seed: this request was begun with {planned['noise']}; go on the same way")
        lineage = [Cut(*cut) for cut in planned["lineage"]]
        noised = self._once("noised", lambda: self._noised(lineage, planned["noise"]))
        retrained = self._once("retrained", lambda: self._retrained(requested, checkpoint_every, observers))
        dead = self._once("destroying", lambda: {"files": self._hashes(self.run.dead(lineage))})["files"]
        unseal(self.run.folder, *dead)
        self._once("destroyed", lambda: self._destroyed(dead))
        self._once("superseded", self._superseded)
        certificate = self._certificate(requested, planned, noised, retrained, len(dead))
        self._once("certified", lambda: self._certified(certificate))
        return certificate

    def _requested(self) -> dict[str, Any]:
        model = self.run.folder / "model.safetensors"
        return {
            "clients": self.clients,
            "settings": asdict(self.run.settings),
            "from_scratch": self.run.from_scratch,
            "stopping": asdict(self.stopping),
            "ended": self._of_needed(lambda home: log_of(home).head),
            "version": VERSION,
            "model": sha256(model) if model.exists() else None,
            "served": served(self.run.folder, self.clients),
        }

    def _planned(self) -> dict[str, Any]:
        rollback = self.run.plan(self.clients)
        return {
            "lineage": rollback.lineage,
            "stored": [models.rounds for models in self.branches.models],
            "tables": self._of_needed(lambda home: sha256(home / "sensitivity" / "table.jsonl")),
            "facts": self._of_needed(lambda home: sha256(home / "sensitivity" / "facts.json")),
            "threshold": self.run.settings.threshold,
            "noise": NOBODY if rollback.absent else self._source(rollback.noised),
            "branch": None if rollback.absent else self.branch,
            "ended": self.run.ended,
        }

    def _of_needed(self, value: Callable[[Path], str]) -> list[str | None]:
        """By branch; None where the request does not rest on it."""
        run = self.run
        return [value(run.home(branch)) if branch in run.needed else None for branch in range(run.retrained + 1)]

    def _source(self, noised: bool) -> str:
        return NONE if not noised else ENTROPY if self.noise_seed is None else SEED

    def _noised(self, lineage: list[Cut], source: str) -> dict[str, Any]:
        if self.run.from_scratch:
            return {"rolled_back_to": None, "start": None}
        branch, number = lineage[-1]
        path = self.run.start_path(self.branch)
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

    @property
    def gone(self) -> list[int]:
        return sorted([*self.branches.forgotten, *self.clients])

    def _retrained(self, begun: Entry, checkpoint_every: int, observers: Sequence[Observer]) -> dict[str, Any]:
        whole = replace(self.run.experiment, fingerprint=f"{self.run.experiment.fingerprint}-{self.number}")
        if "stopping" in begun:
            whole = replace(whole, stopping=Stopping(**begun["stopping"]))
        if self.run.from_scratch:
            experiment = replace(whole, population=whole.population.without(self.gone))
        else:
            experiment = retraining(whole, read_model(self.run.start_path(self.branch)), self.gone)
        result = execute(
            experiment,
            self.home,
            checkpoint_every=checkpoint_every,
            resume=self.home.exists(),
            observers=observers,
        )
        facts = {"rounds": result.server.version, "stopped": result.server.stopped, "forgotten": self.gone}
        return facts | {"model": sha256(self.home / "model.safetensors"), "ended": log_of(self.home).head}

    def _superseded(self) -> dict[str, Any]:
        """What RUN serves is now what retraining has made."""
        for name in _REPLACED:
            write_durably(self.run.folder / name, partial(shutil.copyfile, self.home / name))
        return {"model": sha256(self.run.folder / "model.safetensors"), "files": self._hashes(self._replaced())}

    def _replaced(self) -> Iterator[Path]:
        return (self.run.folder / name for name in _REPLACED)

    def _assumptions(self, planned: Entry, lineage: list[Cut]) -> list[Assumption]:
        if planned["noise"] == NOBODY:
            return [ABSENT, PREPARED]
        facts = [self.run.tables[cut.branch][1] for cut in lineage if cut.round]
        if not facts:  # back to the initial model
            return [PREPARED]
        return [*assumptions(self.run.settings, facts), unchanged(planned.get("ended", False)), PREPARED]

    def _certificate(
        self,
        requested: Entry,
        planned: Entry,
        noised: Entry | None = None,
        retrained: Entry | None = None,
        destroyed: int = 0,
    ) -> Certificate:
        settings, tables = self.run.settings, self.branches.tables
        lineage = [Cut(*cut) for cut in planned["lineage"]]
        summed = replace(settings, group_rule="sum")
        found = self._assumptions(planned, lineage)
        noised = noised or {"rolled_back_to": None, "start": None}
        retrained = retrained or {"rounds": 0, "stopped": "not needed", "model": requested["model"]}
        last = self.log.find("superseded", self.number) or planned
        before, after = (
            {f"{name} of the forgotten, {when}": value for name, value in served.items()}
            for when, served in (("before", requested["served"]), ("after", served(self.run.folder, self.clients)))
        )
        certificate: Certificate = {
            "version": requested["version"],
            "request": self.number,
            "received": requested["at"],
            "forgotten": self.gone,
            "budget": {name: requested["settings"][name] for name in BUDGET},
            "threshold": planned["threshold"],
            "guarantee": guarantee(settings, tables, lineage, self.clients).as_dict(),
            "earlier": [guarantee(settings, tables, lineage, group).as_dict() for group in self.branches.requests],
            "together": guarantee(summed, tables, lineage, self.gone).as_dict(),
            "rollback": lineage[-1] if planned["noise"] != NOBODY else None,
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
            "log": {"entry": last["number"], "hash": last["hash"]},
        }
        certificate = json.loads(as_json_text(certificate))
        return {"statement": statement(certificate, found), **certificate}

    def _certified(self, certificate: Certificate) -> dict[str, Any]:
        stem = self.run.folder / "unlearning" / f"certificate{self.number}"
        write_text(stem.with_suffix(".json"), as_json_text(certificate))
        write_text(stem.with_suffix(".html"), page(certificate))
        return {name: sha256(stem.with_suffix(f".{name}")) for name in ("json", "html")}
