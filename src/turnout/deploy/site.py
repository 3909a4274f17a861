"""A site: a folder with its own table, from which nothing goes but what its policy allows.

carried to it:  config.toml  schema.toml  ca.pem  policy.toml  invitation.json        (no secret is in it)
made there:     node.key  salt  table.toml  enrolment-NAME.json  preprocess.json  ledger.jsonl  memory/

The table is read where it lies. What a site answers, also when something fails, is made of counts, sums, the update of
a model and sentences of this program: no cell of a table is in it, and no message of an error that may quote one.
"""

from __future__ import annotations

import datetime
import json
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.files import append_lines, write_text
from turnout.data.preprocess import Preprocess
from turnout.data.schema import Schema
from turnout.data.sums import agreed, check_agreed, sums_of
from turnout.deploy import wire
from turnout.deploy.client import Memory, Worker
from turnout.deploy.measures import as_sums, set_sums
from turnout.deploy.policy import (
    Ledger,
    Policy,
    RefusedError,
    check_cohort,
    check_measures,
    check_standing,
    check_work,
)
from turnout.deploy.rows import Place, Rows, read_place
from turnout.deploy.terms import STATISTICS, STUDY, Terms
from turnout.deploy.wire import ANSWER, MEASURES, MODEL, PAYLOAD, decode

PREPROCESS, SCHEMA = "preprocess.json", "schema.toml"
_LOG = "site.log"


@dataclass
class Site:
    """What answers the messages of a server."""

    folder: Path
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder)
        self._worker: tuple[str, Worker] | None = None
        self._rows: tuple[tuple[Place, int, int], Rows] | None = None

    @cached_property
    def schema(self) -> Schema:
        return Schema.read(self.folder / SCHEMA)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return config.read_run(self.folder)

    @property
    def rows(self) -> Rows:
        """The table as it is now: read again when it has changed."""
        place = read_place(self.folder)
        try:
            about = os.stat(place.path)
            stamp = place, about.st_mtime_ns, about.st_size
            if self._rows is None or self._rows[0] != stamp:
                self._rows = stamp, Rows.read(self.schema, place, (self.folder / "salt").read_bytes())
                self._worker = None
            return self._rows[1]
        except (UserError, OSError) as error:
            self._log(str(error))
            raise RefusedError("data", "its table does not fit the schema any more, or is gone") from error

    # -- messages ---------------------------------------------------------------------------------------------

    def query(self, content: RecordDict) -> RecordDict:
        """Say the sums over the training rows."""
        return self._answered(STATISTICS, content, MEASURES, self._statistics)

    def train(self, content: RecordDict) -> RecordDict:
        """Carry out a job."""
        return self._answered("train", content, PAYLOAD, self._trained)

    def evaluate(self, content: RecordDict) -> RecordDict:
        """Say, as sums over samples, how well a model does."""
        return self._answered("evaluate", content, MEASURES, self._measured)

    def _answered(
        self, asked: str, content: RecordDict, arrays: str, act: Callable[[RecordDict, Terms, Policy], RecordDict]
    ) -> RecordDict:
        version = 0
        try:
            with suppress(KeyError, TypeError, ValueError):
                version = int(content.config_records[wire.ASK]["version"])  # type: ignore[arg-type]
            policy = self._policy()
            terms = self._terms(content, policy)
            answer = act(content, terms, policy)
        except RefusedError as refused:
            self.ledger.note(asked, version, 0, refused.code, refused.why)
            return _refusal(refused, arrays)
        except Exception as error:
            self._log(traceback.format_exc())
            failed = RefusedError("failed", f"{type(error).__name__}, told in {_LOG} of the site", 60)
            self.ledger.note(asked, version, 0, failed.code, failed.why)
            return _refusal(failed, arrays)
        self.ledger.note(asked, version, _size(answer))
        return answer

    def _log(self, text: str) -> None:
        with suppress(UserError):
            append_lines(self.folder / _LOG, [self.now().isoformat(timespec="seconds"), text])

    def _policy(self) -> Policy:
        try:
            policy = Policy.read(self.folder)
        except UserError as error:
            self._log(str(error))
            raise RefusedError("policy", "its policy.toml cannot be read, so it allows nothing", 60) from error
        check_standing(policy, self.settings, self.now())
        return policy

    def _terms(self, content: RecordDict, policy: Policy) -> Terms:
        try:
            terms = Terms.of(content.config_records[STUDY])
        except (KeyError, TypeError, ValueError) as error:
            raise RefusedError("malformed", "the message does not say of which study it is") from error
        if terms.schema != self.schema.digest:
            raise RefusedError("study", f"its schema is {self.schema.digest[:12]}, not {terms.schema[:12]}")
        check_cohort(policy, terms.members)
        self._check_data(policy)
        return terms

    def _check_data(self, policy: Policy) -> None:
        enrolled = read_place(self.folder).fingerprint
        if enrolled != self.rows.fingerprint and not policy.data_may_change:
            raise RefusedError("data_changed", "its table is another than at enrolment; enrol again")

    # -- answers ----------------------------------------------------------------------------------------------

    def _statistics(self, content: RecordDict, terms: Terms, policy: Policy) -> RecordDict:
        if not policy.statistics:
            raise RefusedError("statistics", "statistics is false: no sums over training rows leave")
        return RecordDict({ANSWER: ConfigRecord({STATISTICS: self.statistics(policy)}), MEASURES: ArrayRecord()})

    def statistics(self, policy: Policy) -> str:
        """Sum up the training rows, as the text that is sent."""
        found = sums_of(self.schema, self.rows.training, max(policy.min_cell, self.schema.min_cell))
        return json.dumps({"rows": len(self.rows.train), "sums": found})

    def _trained(self, content: RecordDict, terms: Terms, policy: Policy) -> RecordDict:
        worker = self._ready(terms)
        try:
            content = _laid_apart(content)
            _check_asked(content, _JOB)
            _check_model(content, worker)
            request, _ = wire.unpack(content, "cpu")
        except UserError as error:
            raise RefusedError("malformed", str(error)) from error
        except Exception as error:
            raise RefusedError("malformed", "the job cannot be read") from error
        samples = len(self.rows.train)
        work = request.work.bind(request.options)
        steps = int(work.num_steps(samples))
        epochs = steps / max(1, int(work.steps_a_pass(samples)))
        check_work(policy, self.ledger, epochs, steps, request.version)
        return worker.train(content)

    def _measured(self, content: RecordDict, terms: Terms, policy: Policy) -> RecordDict:
        worker = self._ready(terms)
        names = ["loss", *worker.task.metrics]
        check_measures(policy, [*names, *terms.summaries])
        try:
            content = _laid_apart(content)
            _check_asked(content, _QUESTION)
            _check_model(content, worker)
            asked, model = wire.unpack_question(content, worker.cohort.plan.device)
        except Exception as error:
            raise RefusedError("malformed", "the question cannot be read") from error
        said = as_sums(dict(worker.evaluate(content).config_records[ANSWER]), names, policy.min_cell)
        if terms.summaries and worker._served_by(asked.version) is not None:
            raise RefusedError("measures", "clients of this algorithm serve models of their own: no summaries of sets")
        for split, rows in self._splits().items() if terms.summaries else ():
            if f"{split}_samples" in said:
                people, index = worker.population, torch.as_tensor(rows if said[f"{split}_samples"] else rows[:0])
                own = people.inputs[index], people.targets[index]
                sums = set_sums(worker.task, model, *own, self.schema.classes or 0, terms.summaries)
                said |= {f"{split}_{name}": counts for name, counts in sums.items()}
        return RecordDict({ANSWER: ConfigRecord(said), MEASURES: ArrayRecord()})

    def _splits(self) -> Mapping[str, Any]:
        return {"train": self.rows.train, "validation": self.rows.validation, "test": self.rows.test}

    # -- what trains ------------------------------------------------------------------------------------------

    def _ready(self, terms: Terms) -> Worker:
        """The worker, for the preprocessing that was agreed on: the first that is heard of, and no other."""
        path = self.folder / PREPROCESS
        if not path.exists():
            self._agreed(terms.preprocess)
            write_text(path, terms.preprocess)
        elif path.read_text(encoding="utf-8") != terms.preprocess:
            raise RefusedError("preprocess", "another preprocessing than the one that was agreed on")
        if self._worker is None or self._worker[0] != terms.preprocess:
            self._worker = terms.preprocess, self.worker(self._agreed(terms.preprocess))
        return self._worker[1]

    def _agreed(self, text: str) -> Preprocess:
        try:
            return check_agreed(self.schema, json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RefusedError("preprocess", "a preprocessing that is not of this schema") from error

    def worker(self, fitted: Preprocess) -> Worker:
        """Make what trains, on the rows as that preprocessing makes numbers of them."""
        dataset, people = self.rows.population(self.schema, fitted)
        experiment, _, _ = config.build(self.settings, known=(dataset, people))
        return Worker(experiment, Memory(self.folder / "memory"))


_QUESTION = {"version": int, "state": str}
_JOB = _QUESTION | {"client": int, "number": int, "key": int, "memory": int, "goes_on": bool, "model": str, "work": str}
_MOST_REMEMBERED = 10_000  # answers


def _laid_apart(content: RecordDict) -> RecordDict:
    """Give facts and arrays records of their own, whatever form a message has, and no terms."""
    asked = RecordDict({name: record for name, record in content.items() if name != STUDY})
    facts, arrays = wire.apart(asked, wire.ASK, MODEL)
    return RecordDict({wire.ASK: ConfigRecord(facts), MODEL: ArrayRecord(arrays)})


def _check_asked(content: RecordDict, kinds: dict[str, type]) -> None:
    """What is asked must be numbers and words as a server of Turnout writes them."""
    asked = content.config_records[wire.ASK]
    if set(asked) != set(kinds) or any(type(asked[name]) is not kind for name, kind in kinds.items()):
        raise UserError("the message is not as a server of this version writes it")
    if "memory" in kinds and not 0 <= int(asked["memory"]) <= _MOST_REMEMBERED:  # type: ignore[arg-type]
        raise UserError(f"it is to remember more answers than {_MOST_REMEMBERED}")


def _check_model(content: RecordDict, worker: Worker) -> None:
    """A model that is sent must be numbers of this model's shape."""
    record = content.array_records[MODEL]
    arrays = {name: decode(array) for name, array in record.items()}
    if "model" in arrays:
        model, own = arrays["model"], worker.task.initial
        if model.shape[-1:] != tuple(own.shape[-1:]) or model.dtype.kind != "f" or not np.isfinite(model).all():
            raise UserError("the model is not one of this study")


def _refusal(refused: RefusedError, arrays: str) -> RecordDict:
    said = ConfigRecord({"refused": refused.code, "why": refused.why, "until": refused.until})
    return RecordDict({ANSWER: said, arrays: ArrayRecord()})


def _size(answer: RecordDict) -> int:
    said = [value for record in answer.config_records.values() for value in record.values()]
    words = sum(len(value) if isinstance(value, bytes) else len(str(value)) for value in said)
    return words + sum(len(array.data) for record in answer.array_records.values() for array in record.values())


def alone(site: Site) -> Preprocess:
    """Fit the preprocessing to this site's rows alone, to try what has not been agreed on yet."""
    schema = replace(site.schema, min_cell=1)
    return agreed(schema, {"alone": (len(site.rows.train), sums_of(schema, site.rows.training, 1))})


def is_site(folder: Path) -> bool:
    """Tell whether a client's folder is that of a site."""
    return (folder / SCHEMA).exists()
