"""Configurations: TOML sections that name things and give them options, checked with sentences a person understands.

Every section is the arguments of one constructor, so an option exists exactly if the code takes it:
`[algorithm] name = "fedprox", mu = 0.1` is `FedProx(mu=0.1)`. Nothing here is needed to use Turnout from Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turnout.clients.adversary import Silence
from turnout.clients.availability import Availability
from turnout.clients.chains import Grouped
from turnout.clients.population import Population
from turnout.clients.quality import BadData
from turnout.clients.regions import deal
from turnout.config import kinds, modifiers, registry
from turnout.config.options import Section, call, check, checked_value, options_of
from turnout.config.settings import OF_CLIENTS, SECTIONS, ClientSettings, RunSettings, Settings
from turnout.config.tasks import make_task
from turnout.config.written import (
    FORMER,
    HERE,
    apply,
    as_toml,
    builtin_names,
    builtin_text,
    fingerprint,
    modernise,
    read,
    read_run,
    takes,
    toml,
)
from turnout.core.errors import UserError, check_room, renamed
from turnout.core.random import IntArray
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.peers.design import NetworkSettings
from turnout.peers.peers import check_silos, message_bytes
from turnout.run.experiment import Experiment
from turnout.run.shadow import Shadow
from turnout.run.start import started
from turnout.sampling._sampler import Limited
from turnout.server.stopping import Stopping
from turnout.task.models import MODELS
from turnout.task.task import Task

__all__ = [
    "SECTIONS", "Brought", "ClientSettings", "RunSettings", "Settings", "apply", "as_toml", "build", "builtin_names",
    "builtin_text", "fingerprint", "modernise", "module", "presence", "read", "read_run", "toml", "trained_task",
]  # fmt: skip


@dataclass(frozen=True)
class Brought:
    """What takes the place of the sections data, partition, model and local: a user's app has its own."""

    dataset: Dataset  # with a group for each client
    task: Task
    local: LocalSGD


def build(
    settings: Settings, brought: Brought | None = None, known: tuple[Dataset, Population] | None = None
) -> tuple[Experiment, RunSettings, Settings]:
    """Build the experiment, and the complete settings: every option with the value it has. A machine of a deployment
    knows its own part of the data and of the clients, `known`; the sections that make them are for others."""
    sections = _Sections.of(settings)
    given, complete, make = sections.given, sections.complete, sections.make
    run: RunSettings = make("run")
    shadow: Shadow | None = None
    if known is not None:
        dataset, population = known
        complete |= {name: dict(given[name]) for name in OF_CLIENTS}
        if population.size > 1:  # a server that wants to know how long they may take
            population = replace(population, devices=sections.devices(population.size))
    else:
        dataset = make("data") if brought is None else brought.dataset
        if brought is not None:
            given["partition"] = {"name": "natural"}
        population, shadow = sections.population(run, dataset, make("clients"))
    if brought is None:
        task = sections.task(run, dataset)
        local, complete["local"] = modifiers.make_local(given["local"])
    else:
        task, local = brought.task, brought.local
    if run.seeds:
        raise UserError(f"run.seeds: {run.seeds} are several runs, which turnout run makes; for one, give run.seeds=[]")
    begun = {}
    if run.start is not None:
        if brought is not None or known is not None:
            raise UserError("run.start: a Flower app and a deployment begin with their own model; leave it out")
        task, begun["start"] = started(task, run.start, settings.get(HERE, {}).get("folder"))
    plan: Plan = make("engine").with_threads()
    complete["engine"]["threads"] = plan.threads  # the bits depend on it
    if shadow is not None:
        if brought is not None:
            raise UserError("adversary.name: shadow needs the model and the local work of a configuration; use silence")
        foe = _found(shadow, settings, run, dataset, task, local, plan)
        population = replace(population, adversary=foe)
        found = {name: value for name, value in vars(foe).items() if value is not None}
        complete["adversary"] = {"name": "silence", **check("adversary", Silence, found, set())[1]}
    experiment = Experiment(
        task,
        population,
        sections.algorithm(run, population, task, plan, local),
        run.seed,
        Stopping(run.rounds, run.seconds, run.target, run.measure, run.judge, run.patience),
        make("evaluation"),
        plan,
        unlearning=sections.asked("unlearning"),  # unless given, nobody will be forgotten
        screening=sections.asked("detectors"),  # nobody is suspected
        privacy=sections.asked("privacy"),  # nothing is hidden
    )
    sections.asked("deploy")  # nobody is far away
    experiment.fingerprint = fingerprint(complete | ({"begun": begun} if begun else {}))
    experiment.started_from = run.start or ""
    older: dict[str, Any] = complete | {"engine": complete["engine"] | {"threads": given["engine"].get("threads", 0)}}
    if brought is None:
        chain = settings.get(FORMER, {}).get("transform", "")
        older["local"] = modifiers.demodernise(complete["local"], local, chain)
    experiment.former = "" if begun or older.get("local", {}) is None else fingerprint(older)
    return experiment, run, {section: complete[section] for section in SECTIONS if section in complete}


def presence(settings: Settings) -> Availability:
    """Make who is there when, and nothing else of a configuration."""
    return _Sections.of(settings).presence(settings["clients"]["count"])


def trained_task(settings: Settings) -> Task:
    """Make the task of a finished run from its complete settings, without its data."""
    sections = _Sections.of(settings)
    name, given = sections.name("model"), sections.given["model"]
    if "loss" in given:  # where it stood before
        sections.given["task"].setdefault("loss", given.pop("loss"))
    arguments, _ = make_task(sections.given["task"], "cross_entropy")
    return Task(lambda: module(name, given), seed=int(settings.get("run", {}).get("seed", 0)), **arguments)


@dataclass
class _Sections:
    """What each section makes, and every option with the value it has."""

    given: Settings  # what is used is taken out
    complete: Settings = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> _Sections:
        return cls({section: dict(settings.get(section, {})) for section in SECTIONS})

    def make(self, section: str, name: str | None = None, *, clients: int | None = None, **extra: Any) -> Any:
        """Make what a section says, with what other sections have made; `clients` is how many there are, for what
        takes that."""
        named: Section = {} if section in kinds.PLAIN else {"name": name or self.name(section)}
        function = kinds.find(section, named["name"]) if named else kinds.PLAIN[section]
        if clients is not None and "clients" in options_of(function):
            extra["clients"] = clients
        made, options = call(section, function, self.given[section], extra)
        self.complete[section] = named | options
        return made

    def asked(self, section: str) -> Any:
        """Make what a section says, or nothing where it says nothing."""
        self.complete[section] = {}
        return self.make(section) if self.given[section] else None

    def name(self, section: str) -> str:
        """Take out the name of what a section makes."""
        name = self.given[section].pop("name", kinds.NAMED[section].default)
        if not isinstance(name, str):
            raise UserError(f"{section}.name: missing; say which one with {section}.name=...")
        return name

    def population(
        self, run: RunSettings, dataset: Dataset, counted: ClientSettings
    ) -> tuple[Population, Shadow | None]:
        """Make the clients; and say how an adversary of theirs is to be found, where that takes runs of a shadow."""
        name = self.name("partition")
        dealing, filled_in = kinds.find("partition", name), kinds.FILLED_IN["partition"]
        options, every = check("partition", dealing, self.given["partition"], filled_in)
        self.complete["partition"] = {"name": name, **every}
        lies, foe = self.make("behaviour"), self.make("adversary")
        own = {name: value for name, value in vars(counted).items() if name not in ("count", "regions", "region_sd")}
        for name in ("joined_at", "left_at"):
            own[name] = None if own[name] is None else np.asarray(own[name], float)
        people = Population.of(
            dataset,
            counted.count,
            dealing,
            seed=run.seed,
            partition_options=options,
            devices=self.devices(counted.count),
            links=self.make("links"),
            power=self.asked("power"),
            regions=_regions(run, counted),
            availability=self.presence(counted.count),
            crashes=self.make("crashes"),
            detection=self.make("detection"),
            adversary=None if isinstance(foe, Shadow) else foe,
            behaviour=None if isinstance(lies, BadData) else lies,
            **own,
        )
        people = lies.spoil(people, run.seed) if isinstance(lies, BadData) else people
        return self.streaming(people), foe if isinstance(foe, Shadow) else None

    def devices(self, clients: int) -> Any:
        if self.given["devices"] in ({}, {"name": "fixed"}):
            self.given["devices"] = {"seconds": 1.0}
        return self.make("devices", clients=clients)

    def presence(self, clients: int) -> Availability:
        """Make who is there when; any model takes `groups`, who come and go together."""
        groups = self.given["availability"].pop("groups", None)
        model: Availability = self.make("availability", clients=clients)
        if groups is None:
            return model
        groups = checked_value("availability.groups", groups, int | list[int])
        self.complete["availability"]["groups"] = groups
        return Grouped(model, Grouped(model, groups).group(np.arange(clients)))

    def streaming(self, people: Population) -> Population:
        """Let samples arrive as [stream] says, and clients keep of them what [memory] says; else all are there."""
        given = self.given["stream"]
        if not given:
            if self.given["memory"]:
                raise UserError("memory: it is for samples that arrive; say how with stream.name=...")
            self.complete |= {"stream": {}, "memory": {}}
            return people
        common: Section = {name: given.pop(name) for name in ("drift", "fresh", "seconds") if name in given}
        arrivals, memory = self.make("stream"), self.make("memory")
        options, every = check("stream", Population.streaming, common, kinds.FILLED_IN["stream"])
        self.complete["stream"] |= every
        with renamed({"streaming.": "stream."}):
            return people.streaming(arrivals, memory, **options)

    def task(self, run: RunSettings, dataset: Dataset) -> Task:
        given, said = self.given["model"], self.given["task"]
        if "loss" in given and said.setdefault("loss", given["loss"]) != given.pop("loss"):  # where it stood before
            raise UserError("model.loss: it is task.loss now, which says another; leave one of them out")
        name = self.name("model")
        if name in MODELS and isinstance(dataset.inputs, Tensor) and dataset.inputs.dtype == torch.uint8:
            said.setdefault("prepare", "pixels")
        arguments, self.complete["task"] = make_task(said, "mse" if dataset.num_classes is None else "cross_entropy")
        function = kinds.find("model", name)
        known = dict[str, int]()
        if isinstance(dataset.inputs, Tensor):
            known["inputs"] = int(np.prod(dataset.inputs.shape[1:], dtype=int))
        if dataset.num_classes or isinstance(dataset.targets, Tensor):
            outputs = dataset.num_classes or int(np.prod(dataset.targets.shape[1:], dtype=int))
            known |= {"outputs": outputs, "classes": outputs}
        given |= {option: known[option] for option in options_of(function) if option in known and option not in given}
        self.complete["model"] = {"name": name, **check("model", function, given, set())[1]}
        return Task(lambda: module(name, given), seed=run.seed, **arguments)

    def algorithm(self, run: RunSettings, population: Population, task: Task, plan: Plan, local: LocalSGD) -> Any:
        """Make the method, with its parts."""
        name = self.name("algorithm")
        method = registry.find("algorithm", name)
        extra: dict[str, Any] = {"local": local}
        if self.given["sampler"] and takes(method, "sampler"):  # some invite everybody: nothing to sample
            extra["sampler"] = sampler = self.make("sampler")
            if isinstance(sampler, Limited) and sampler.clients_per_round is None:
                self.complete["sampler"]["clients_per_round"] = sampler.size(population)
        extra |= {part: self.make(part) for part in kinds.PARTS if self.given[part]}
        self.complete["network"] = {}  # a plain ring, or a server
        if takes(method, "network"):
            extra |= {"network": None, "overlay": None, "latency": None}
            if self.given["network"]:
                extra |= _network(self.make("network"), run, population, task, plan, local)
        return self.make("algorithm", name, **extra)


def _found(
    shadow: Shadow, settings: Settings, run: RunSettings, dataset: Dataset, task: Task, local: LocalSGD, plan: Plan
) -> Silence:
    """Find whom to silence, by runs over the same samples dealt anew."""
    other, sections = replace(run, seed=run.seed + 1), _Sections.of(settings)
    people, _ = sections.population(other, dataset, sections.make("clients"))
    return shadow.find(task, people, local, other.seed, plan)


def _regions(run: RunSettings, counted: ClientSettings) -> IntArray | None:
    if isinstance(counted.regions, int):
        return deal(counted.count, counted.regions, run.seed, relative_sd=counted.region_sd)
    return None if counted.regions is None else np.asarray(counted.regions, np.int64)


def _network(
    settings: NetworkSettings, run: RunSettings, population: Population, task: Task, plan: Plan, local: LocalSGD
) -> dict[str, Any]:
    """Make the network and the overlay of an algorithm without a server."""
    network = settings.network(population)
    check_silos(network, population)
    counts = population.counts(population.ids, np.zeros(population.size))
    computing = population.devices.mean_seconds(population.seed, population.ids, *local.busy(counts))
    bits = 8 * message_bytes(population, task, plan.dtype)
    return {"network": network, "overlay": settings.choose(network, bits, computing, run.seed)}


def module(name: str, options: Section) -> nn.Module:
    """Make a model, unless it takes more than there is room for."""
    function = kinds.find("model", name)
    try:
        if name in MODELS:  # a look at its size, without its numbers
            with torch.device("meta"):
                parameters = call("model", function, options, {})[0].parameters()
            check_room("model: it", 2 * sum(parameter.numel() for parameter in parameters))
        made = call("model", function, options, {})[0]
    except UserError:
        raise
    except Exception as error:  # whatever a function of the user's own raises
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"model: {name} cannot be built with these options ({why})") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"model.name: {name} returned {type(made).__name__}, not a torch.nn.Module")
    return made
