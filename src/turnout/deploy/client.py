"""The client's side: it carries out jobs on its own samples with the engine of the simulation, in a process that stays
loaded (`turnout.deploy.worker`), or as a Flower `ClientApp` at a SuperNode.

It needs its own folder and nothing else: `config.toml`, `shard.safetensors`, and `memory/`, which it writes.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import ConfigRecordValues, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from turnout.core.errors import UserError
from turnout.core.threads import threads
from turnout.deploy import wire
from turnout.deploy.folder import read_shard
from turnout.deploy.wire import ANSWER, MEASURES, PAYLOAD, Request, encode, fingerprint
from turnout.engine.batches import Jobs
from turnout.engine.engine import train_jobs
from turnout.engine.evaluate import Personal, evaluators
from turnout.engine.store import ClientStore
from turnout.engine.train import Cohort
from turnout.local.python_work import find_functions
from turnout.local.sgd import Named
from turnout.run.experiment import Experiment
from turnout.server.state import nest, unnest

if TYPE_CHECKING:
    from turnout.deploy.site import Site

FOLDER = "folder"  # what a SuperNode is told of its client: the folder of its files
_MODELS = 3  # remembered: the last received, and what it ended with
_ALONE = np.zeros(1, np.int64)  # the number of the only client there is


class Memory:
    """What a client remembers on its own disk, the latest used of each kind: models it may go on from, and answers with
    the state after them. Flower's own context of a client dies with the run and with the SuperNode; a server that is
    restarted starts a new run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def recall(self, kind: str, name: str) -> Named | None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not name.isalnum():  # names are digests; the server has no business with other files
            return None
        path = self.folder / kind / f"{name}.safetensors"
        try:
            found: Named = load_file(path)
        except (OSError, SafetensorError):
            return None
        os.utime(path)
        return found

    def remember(self, kind: str, name: str, tensors: Named, most: int) -> None:
        """Keep this, and of the others the newest: `most` in all. What a power cut takes is missing, not wrong."""
        from safetensors.torch import save_file

        kept = {part: value.detach().cpu().contiguous().clone() for part, value in tensors.items()}
        path = self.folder / kind / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(kept, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)
        files = sorted(path.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: max(0, len(files) - most)]:
            path.unlink()


class Worker:
    """One client: its task, its samples, its memory."""

    def __init__(self, experiment: Experiment, memory: Memory) -> None:
        self.memory, self.algorithm, self.seed = memory, experiment.algorithm, experiment.seed
        self.population = people = experiment.population
        task, plan = self.algorithm.trained_task(experiment.task), experiment.plan
        plan = replace(plan, engine="sequential").resolve()  # there is nobody to be vectorised with
        self.cohort = Cohort(task, people.inputs, people.targets, plan)
        self.task = self.cohort.task
        self._samples = self.algorithm.training_population(people).train.rows(_ALONE)
        self._evaluators = evaluators(self.cohort, people, _ALONE, experiment.evaluation.train)

    def train(self, content: RecordDict) -> RecordDict:
        """Carry out a job, or say what is missing."""
        request, model = wire.unpack(content, self.cohort.plan.device)
        find_functions([request.work], self.algorithm)
        model = self._model(request.model, model)
        if model is None:
            return _answer(request, needs=wire.NEEDS_MODEL)
        found = self.memory.recall("answers", request.name)
        if found is None:
            state = self._state(request)
            if state is None:
                return _answer(request, needs=wire.NEEDS_STATE)
            began = time.monotonic()
            found = self._trained(request, model, state)
            found["seconds"] = torch.tensor(time.monotonic() - began, dtype=torch.float64)
            self.memory.remember("answers", request.name, found, request.memory)
        payload = unnest(PAYLOAD, found)
        if request.goes_on and "delta" in payload:
            ended = model + payload["delta"][0].to(model)
            self.memory.remember("models", fingerprint(ended), {"model": ended}, _MODELS)
        samples = int(self._samples.counts[0])
        steps = int(request.work.bind(request.options).num_steps(samples))
        return _answer(request, payload, samples=samples, steps=steps, seconds=float(found["seconds"]))

    def _model(self, name: str, sent: Tensor | None) -> Tensor | None:
        if sent is None:
            kept = self.memory.recall("models", name)
            return None if kept is None else self.cohort.place(kept["model"])
        if fingerprint(sent) != name:
            raise ValueError("the model was damaged on its way")
        self.memory.remember("models", name, {"model": sent}, _MODELS)
        return sent

    def _state(self, request: Request) -> Named | None:
        """`[1, ...]` what it keeps: zeros at first; None if it should have something and has it no longer."""
        shapes = request.work.stored_shapes(self.task)
        rows = {name: torch.zeros(1, *shape, dtype=self.cohort.plan.dtype) for name, shape in shapes.items()}
        if shapes and request.state:
            before = self.memory.recall("answers", request.state)
            if before is None:
                return None
            rows |= {name: value for name, value in unnest("state", before).items() if name in rows}
        return {name: value.to(self.cohort.plan.device) for name, value in rows.items()}

    def _trained(self, request: Request, model: Tensor, state: Named) -> Named:
        jobs = Jobs(
            request.work,
            np.array([request.key], np.int64),
            model[None],
            _ALONE,
            self._samples,
            {name: np.array([value]) for name, value in request.options.items()},
            state,
        )
        with threads(self.cohort.plan.threads), torch.no_grad():
            trained = train_jobs(self.cohort, jobs, [request.version])
        return nest(PAYLOAD, trained.payload) | nest("state", trained.state)

    def evaluate(self, content: RecordDict) -> RecordDict:
        """Measures of the model, as means over the samples of each split."""
        asked, model = wire.unpack_question(content, self.cohort.plan.device)
        plan = self.cohort.plan
        store = ClientStore(1, plan.device, plan.dtype, plan.memory_mib)  # a new one: its disk alone remembers
        kept = self.memory.recall("answers", asked.state) if asked.state else None
        if kept is not None:
            store.put(_ALONE, unnest("state", kept))
        personal, said = self._served_by(asked.version), dict[str, ConfigRecordValues]()
        with threads(self.cohort.plan.threads), torch.no_grad():
            for split, evaluator in self._evaluators.items():
                if personal is None:
                    values = evaluator.global_model(model)
                else:
                    values = evaluator.personal_models(personal, model, store)
                said |= {f"{split}_{name}": float(value[0]) for name, value in values.items()}
                said[f"{split}_samples"] = int(evaluator.index.counts[0])
        return wire.together(ANSWER, said, MEASURES, {})

    def _served_by(self, version: int) -> Personal | None:
        """Choose how the client serves a model of that version; None: as it comes."""
        people, algorithm = self.population, self.algorithm
        adapts, unseen = people.has_samples(_ALONE, 0.0)[0], not people.joined(_ALONE, 0.0)[0]
        adapted, kept = algorithm.served(bool(unseen))
        tail, size = self.cohort.task.tail, getattr(getattr(self.algorithm, "local", None), "batch_size", 32)
        return Personal.of(adapted if adapts else None, kept, people, version, 0.0, self.seed, tail, size)


def _answer(request: Request, payload: Named | None = None, **said: str | int | float) -> RecordDict:
    arrays = {name: encode(value[0]) for name, value in (payload or {}).items()}
    facts: dict[str, ConfigRecordValues] = {"client": request.client, "job": request.number, **said}
    return wire.together(ANSWER, facts, PAYLOAD, arrays)


@cache
def site(folder: Path) -> Site | None:
    """The site of a folder; None: its samples came with it."""
    from turnout.deploy.site import Site, is_site

    return Site(folder) if is_site(folder) else None


@cache
def worker(folder: Path) -> Worker:
    """The client of a folder."""
    from turnout.config import config

    experiment, _, _ = config.build(config.read_run(folder), known=read_shard(folder / "shard.safetensors"))
    return Worker(experiment, Memory(folder / "memory"))


def _worker_of(context: Context) -> Worker | Site:
    folder = context.node_config.get(FOLDER)
    if not isinstance(folder, str):
        raise UserError(f"deploy: a SuperNode needs --node-config '{FOLDER}=\"...\"'; turnout deploy client gives it")
    return site(Path(folder)) or worker(Path(folder))


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    return Message(_worker_of(context).train(message.content), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    asked = _worker_of(context)
    if isinstance(asked, Worker):
        raise UserError("deploy: this client has no schema, so there is nothing to agree on")
    return Message(asked.query(message.content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(_worker_of(context).evaluate(message.content), reply_to=message)
