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
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import Any

from turnout.core.errors import UserError
from turnout.core.files import as_json_text, read_json, remove_durably, sha256, write_durably, write_text
from turnout.core.names import called
from turnout.core.version import VERSION
from turnout.record.branch import Cut, Models, Table, alive, read_model, write_model
from turnout.record.run_folder import PERSONAL, reseal, unseal
from turnout.record.sensitivity import check_forgettable, read_table
from turnout.record.signed import AuditLog, Entry, changes, files_left, log_of
from turnout.record.unlearning import Unlearning
from turnout.report.read import recorded
from turnout.run.experiment import Experiment, execute
from turnout.server.observer import Observer
from turnout.server.stopping import Stopping
from turnout.trust.certificate import Certificate, page, rests_on, served, statement
from turnout.trust.forget import Branches, Rollback, guarantee, noised, retraining, tracked_settings
from turnout.trust.verify import NOBODY, REPLACED, SEED, facts_of

ENTROPY, NONE = "the operating system's entropy", "none: the model has seen no data"
_ORDER = (
    "statement", "version", "request", "received", "forgotten", "budget", "threshold", "guarantee", "earlier",
    "together", "rollback", "lineage", "noise", "assumptions", "retraining", "destroyed", "models", "audit", "log",
)  # fmt: skip


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
        own = _as_logged(self.settings)
        fixed = (self.log.find("requested", 1) or {"settings": own})["settings"]  # what was promised once holds for all
        for name, value in own.items():
            if (first := fixed[name]) != value:
                raise UserError(f"unlearning.{name}: {value} is not what the first request of this run fixed, {first}")

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
        replaced = REPLACED if branch == 0 and any(e["event"] == "destroyed" for e in self.log.entries) else ()
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

    def dead(self, lineage: Sequence[Cut]) -> Iterator[Path]:
        """Every file with parameters that is no part of the history left: models, and whole states of servers."""
        for branch in range(self.retrained + 1):
            home = self.home(branch)
            yield from sorted([*(home / "checkpoints").glob("*"), *home.glob(PERSONAL)])
            for path in sorted((home / "sensitivity" / "models").glob("*")):
                if not (path.stem.isdigit() and alive(lineage, branch, int(path.stem))):
                    yield path
            if branch:
                yield from (path for path in (self.start_path(branch), home / "model.safetensors") if path.exists())


def _as_logged(options: Unlearning | Stopping) -> dict[str, Any]:
    return dict(json.loads(as_json_text(asdict(options))))


def plan(run: Run, clients: Sequence[int]) -> Rollback:
    """What a request would do; nothing is written."""
    if run.pending is not None:
        raise _unfinished(run)
    return run.branches.plan(clients, run.from_scratch)


def _unfinished(run: Run) -> UserError:
    assert run.pending is not None
    whole = run.experiment.population.names
    names = " ".join(f"--client {quote(called(whole, client, '{}'))}" for client in run.pending["clients"])
    names += " --from-scratch" if run.pending.get("from_scratch") else ""
    return UserError(f"unlearn: request {run.answered + 1} is not finished; go on with: {run.folder} {names}")


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
        for path in (run.start_path(run.retrained + 1), run.home(run.retrained + 1)):
            if path.exists():  # noise of an earlier one must not be used again
                raise UserError(f"unlearn: the log does not know of {path}; lines were cut off, restore {run.log.path}")
        run.branches.plan(asked, run.from_scratch)
    elif begun["clients"] != asked or begun.get("from_scratch", False) != run.from_scratch:
        raise _unfinished(run)
    elif stopping is not None and _as_logged(stopping) != begun.get("stopping"):
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
        unseal(folder, self.log.path.relative_to(folder).as_posix(), *REPLACED)
        requested = self._once("requested", self._requested)
        planned = self._once("planned", self._planned)
        if planned["noise"] != NOBODY:
            if planned["noise"] in (ENTROPY, SEED) and planned["noise"] != self._source(True):
                raise UserError(f"--noise-seed: this request was begun with {planned['noise']}; go on the same way")
            lineage = [Cut(*cut) for cut in planned["lineage"]]
            self._once("noised", lambda: self._noised(lineage[-1], planned["noise"]))
            self._once("retrained", lambda: self._retrained(requested, checkpoint_every, observers))
            dead = self._once("destroying", lambda: {"files": self._hashes(self.run.dead(lineage))})["files"]
            unseal(folder, *dead)
            self._once("destroyed", lambda: self._destroyed(dead))
            self._once("superseded", self._superseded)
        certificate = self._certificate(requested, planned)
        self._once("certified", lambda: self._certified(certificate))
        for home in {self.run.home(branch) for branch in range(self.branch + 1)} - {folder}:
            reseal(home)
        reseal(folder)
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
        rollback = self.branches.plan(self.clients, self.run.from_scratch)
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

    def _noised(self, cut: Cut, source: str) -> dict[str, Any]:
        if self.run.from_scratch:
            return {"rolled_back_to": None, "start": None}
        models, path = self.branches.models[cut.branch], self.run.start_path(self.branch)
        if not path.exists():
            model, sigma = models[cut.round], self.run.settings.sigma
            write_model(path, model if source == NONE else noised(model, sigma, self.noise_seed, self.number))
        return {"rolled_back_to": sha256(models.path(cut.round)), "start": sha256(path)}

    def _hashes(self, paths: Iterable[Path]) -> dict[str, str]:
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
        going_on = self.home.exists()
        result = execute(experiment, self.home, checkpoint_every=checkpoint_every, resume=going_on, observers=observers)
        facts = {"rounds": result.server.version, "stopped": result.server.stopped, "forgotten": self.gone}
        return facts | {"model": sha256(self.home / "model.safetensors"), "ended": log_of(self.home).head}

    def _superseded(self) -> dict[str, Any]:
        """What RUN serves is now what retraining has made."""
        paths = [self.run.folder / name for name in REPLACED]
        for path in paths:
            write_durably(path, partial(shutil.copyfile, self.home / path.name))
        return {"model": sha256(self.run.folder / "model.safetensors"), "files": self._hashes(paths)}

    def _certificate(self, requested: Entry, planned: Entry) -> Certificate:
        settings, tables = self.run.settings, self.branches.tables
        lineage = [Cut(*cut) for cut in planned["lineage"]]
        summed = replace(settings, group_rule="sum")
        facts = [self.run.tables[cut.branch][1] for cut in lineage if cut.round]
        found = rests_on(settings, facts, planned["noise"] == NOBODY, planned.get("ended", False))
        steps = {entry["event"]: entry for entry in self.log.entries if entry["request"] == self.number}
        before, after = (
            {f"{name} of the forgotten, {when}": value for name, value in served.items()}
            for when, served in (("before", requested["served"]), ("after", served(self.run.folder, self.clients)))
        )
        own = {
            "guarantee": asdict(guarantee(settings, tables, lineage, self.clients)),
            "earlier": [asdict(guarantee(settings, tables, lineage, group)) for group in self.branches.requests],
            "together": asdict(guarantee(summed, tables, lineage, self.gone)),
            "assumptions": [asdict(one) for one in found],
            "audit": before | after,
        }
        certificate: Certificate = json.loads(as_json_text(facts_of(self.number, steps, self.gone) | own))
        certificate["statement"] = statement(certificate, found, self.run.experiment.population.names)
        return {name: certificate[name] for name in _ORDER}

    def _certified(self, certificate: Certificate) -> dict[str, Any]:
        stem = self.run.folder / "unlearning" / f"certificate{self.number}"
        write_text(stem.with_suffix(".json"), as_json_text(certificate))
        write_text(stem.with_suffix(".html"), page(certificate))
        return {name: sha256(stem.with_suffix(f".{name}")) for name in ("json", "html")}


def stopping_of(run: Run, rounds: int | None, target: float | None) -> Stopping | None:
    """When to stop retraining, where that was said: otherwise as the run did."""
    if rounds is None and target is None:
        return None
    if rounds is not None and rounds < 1:
        raise UserError(f"--rounds: {rounds} must be at least 1")
    said: dict[str, Any] = {"rounds": rounds, "target": target}
    stopping = replace(run.experiment.stopping, **{name: value for name, value in said.items() if value is not None})
    path = run.folder / "result.json"
    known = read_json(path)["measures"] if path.exists() else {}
    if target is not None and stopping.measure not in known:
        words = ", ".join(sorted(known)) or "nothing, since the run has not ended"
        raise UserError(f"--target: the run's run.measure, {stopping.measure}, is not measured; known: {words}")
    return stopping


def cost(run: Run, rollback: Rollback, stopping: Stopping) -> dict[str, Any]:
    """Estimate the cost of a request: rounds (infinite: as many as the time allows), virtual seconds and bytes of its
    retraining at most, a round as long and as dear as those of the last training."""
    if rollback.absent:
        return {"rounds": 0, "virtual_seconds": 0.0, "bytes_down": 0.0, "bytes_up": 0.0, "target": None}
    last = recorded(run.home(run.retrained))
    done = float(max(last.rounds().get("round", ()), default=0))
    seconds = (last.last("time") or 0.0) / max(done, 1.0)
    rounds = math.inf if stopping.rounds is None else float(stopping.rounds)
    if stopping.seconds is not None and seconds:
        rounds = min(rounds, stopping.seconds / seconds)
    traffic = {name: last.total(name) / max(done, 1.0) * rounds for name in ("bytes_down", "bytes_up")}
    return {"rounds": rounds, "virtual_seconds": seconds * rounds, **traffic, "target": stopping.target}
