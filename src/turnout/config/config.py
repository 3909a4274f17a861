"""Configurations: TOML sections that name things and give them options, checked with sentences a person understands.

Every section is the arguments of one constructor, so an option exists exactly if the code takes it:
`[algorithm] name = "fedprox", mu = 0.1` is `FedProx(mu=0.1)`. Nothing here is needed to use Turnout from Python.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from turnout import data as datasets
from turnout.aggregation.optimisers import OPTIMISERS
from turnout.aggregation.remember import REMEMBER
from turnout.aggregation.rules import RULES
from turnout.aggregation.weights import WEIGHTS
from turnout.algorithms._algorithm import Algorithm
from turnout.clients import adversary, behaviour, devices, quality, traces
from turnout.clients.arriving import ARRIVALS
from turnout.clients.availability import Always, Availability, Crashes, Detection
from turnout.clients.chains import Bernoulli, Diurnal, Grouped, Markov, clustered, heterogeneous
from turnout.clients.links import Links
from turnout.clients.memories import MEMORIES
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.clients.regions import deal
from turnout.config import modifiers, registry
from turnout.config.deployment import Deploy
from turnout.config.options import Section, call, check, checked_value, options_of, shown
from turnout.core.errors import UserError, check_room, unknown
from turnout.core.imports import dotted
from turnout.core.random import IntArray
from turnout.data.dataset import Dataset
from turnout.data.partition import PARTITIONS
from turnout.engine.plan import Plan
from turnout.local.serving import SERVES
from turnout.local.sgd import LocalSGD
from turnout.peers.design import NetworkSettings
from turnout.peers.peers import check_silos, message_bytes
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening
from turnout.run.experiment import Experiment
from turnout.run.shadow import Shadow
from turnout.sampling._sampler import Limited
from turnout.server.closing import WAITS
from turnout.server.privacy import Privacy
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.models import MODELS
from turnout.task.task import Task

AVAILABILITY: dict[str, Callable[..., Any]] = {
    "always": Always,
    "bernoulli": Bernoulli,
    "clustered": clustered,
    "diurnal": Diurnal,
    "heterogeneous": heterogeneous,
    "markov": Markov,
    "trace": traces.read,
}
ADVERSARIES: dict[str, Callable[..., Any]] = {
    "none": adversary.nobody,
    "largest_norm": adversary.LargestNorm,
    "random": adversary.Random,
    "shadow": Shadow,
    "silence": adversary.Silence,
    "starve": adversary.Starve,
    "worst_case": adversary.WorstCase,
}


BEHAVIOURS: dict[str, Callable[..., Any]] = {
    "none": behaviour.nobody,
    "free_rider": behaviour.FreeRider,
    "disguised_constant": behaviour.DisguisedConstant,
    "disguised_sgd_like": behaviour.DisguisedSGDLike,
    "disguised_decay": behaviour.DisguisedDecay,
    "replay": behaviour.Replay,
    "sign_flip": behaviour.SignFlip,
    "gaussian": behaviour.GaussianNoise,
    "little_is_enough": behaviour.LittleIsEnough,
    **quality.BEHAVIOURS,
}
DEVICES: dict[str, Callable[..., Any]] = {
    name: getattr(devices, name) for name in ("fx", "fixed", "exponential", "gaussian", "lognormal", "table")
}
PARTS: dict[str, dict[str, Any]] = {  # of a method, each a section of its own
    "wait": WAITS,
    "weigh": WEIGHTS,
    "remember": REMEMBER,
    "rule": RULES,
    "optimiser": OPTIMISERS,
    "serve": SERVES,
}
Settings = dict[str, Section]
_FORMER = "local as it was"  # beside the sections of a run's own configuration: what it wrote
_LONGEST_NAME = 200  # bytes of a run's name: file systems know 255


@dataclass(frozen=True)
class RunSettings:
    """How long, how often, where."""

    name: str = "run"  # folder of the run, inside run.folder
    folder: str = "runs"  # where runs are kept
    seed: int = 0  # of everything that is drawn
    rounds: int | None = 100  # after which the run stops; none: no limit
    seconds: float | None = None  # of virtual time after which it stops; none: no limit
    target: float | None = None  # value of run.measure at which it stops; none: no target
    measure: str = "test_accuracy"  # what run.target is a value of: test_accuracy, train_loss and so on
    checkpoint_every: int = 10  # rounds from one checkpoint to the next
    report: bool = True  # leave a report.html, where the command line runs it

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or Path(self.name).name != self.name or "\0" in self.name:
            raise UserError(f"run.name: {shown(self.name)} must be the name of a folder inside run.folder, not a path")
        if len(self.name.encode()) > _LONGEST_NAME:
            raise UserError(f"run.name: {shown(self.name)} is longer than {_LONGEST_NAME} bytes; shorten it")
        if "\0" in self.folder or max(map(len, self.folder.encode().split(b"/"))) > 255:
            raise UserError(f"run.folder: {shown(self.folder)} cannot be the name of a folder")
        if self.checkpoint_every < 1:
            raise UserError(f"run.checkpoint_every: {self.checkpoint_every} must be at least 1")


@dataclass(frozen=True)
class ClientSettings:
    """How many clients, what they are tested on, how much each counts, which edges they belong to."""

    count: int  # clients
    test: str = "split"  # split: of each client's samples; matched: dealt from the test set; none: central only
    test_fraction: float = 0.2  # share of a client's samples for its test, with split
    validation_fraction: float = 0.0  # share of the rest that is held back, to choose by
    unseen_fraction: float = 0.0  # share of the clients that never join and are only evaluated
    importance: str | list[float] = "samples"  # samples, equal, or a number for each that sum to 1
    joined_at: list[float] | None = None  # seconds: when each joins; none: from the start
    left_at: list[float] | None = None  # seconds: when each leaves; none: never
    regions: int | list[int] | None = None  # how many, or of each client
    region_sd: float = 0.0  # of their sizes, relative to the mean
    model_bytes: int | None = None  # bytes of a model on the wire; none: 4 or 8 a parameter

    def __post_init__(self) -> None:
        check_room(f"clients.count: {self.count} clients", 16 * self.count)


SECTIONS = (
    "run", "data", "partition", "clients", "stream", "memory", "devices", "links", "power", "availability", "crashes",
    "detection", "adversary", "behaviour", "network", "model", "local", "algorithm", "sampler", "wait", "weigh",
    "remember", "rule", "optimiser", "serve", "evaluation", "engine", "unlearning", "detectors", "privacy", "deploy",
)  # fmt: skip
_OF_CLIENTS = SECTIONS[1 : SECTIONS.index("network")]  # who they are and what they have
# Options that may change when a run is resumed: they do not change the bits of the rounds both have.
_FREE = {
    "run": ("name", "folder", "rounds", "seconds", "target", "measure", "checkpoint_every", "report"),
    "engine": ("address", "workers"),
}


def builtin_names() -> list[str]:
    folder = resources.files("turnout.config") / "builtin"
    return sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))


def builtin_text(name: str) -> str:
    return (resources.files("turnout.config") / "builtin" / f"{name}.toml").read_text(encoding="utf-8")


def read(source: str, overrides: list[str] | None = None) -> Settings:
    """A file, or a built-in configuration by name; then `section.option=value` for each override."""
    return _overridden(toml(source), overrides)


def read_run(folder: Path, overrides: list[str] | None = None) -> Settings:
    """The configuration that a run has left in its folder, also one of version 0.1; then the overrides."""
    settings = toml(str(folder / "config.toml"))
    return _overridden(modernise(settings), overrides) | {_FORMER: settings.get("local", {})}


def modernise(settings: Settings) -> Settings:
    """Settings of version 0.1 as they are written now."""
    return settings | ({"local": modifiers.modernise(settings["local"])} if "local" in settings else {})


def _overridden(settings: Settings, overrides: list[str] | None) -> Settings:
    for override in overrides or []:
        apply(settings, override)
    _check_use(settings, overrides or [])
    for section in settings:
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS)
    return settings


def toml(source: str) -> Settings:
    """A file, or a built-in configuration by name, as it is written."""
    path = Path(source)
    if path.suffix == ".toml" or os.path.exists(path):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UserError(f"configuration {source}: cannot be read ({why})") from error
    elif source in builtin_names():
        text = builtin_text(source)
    else:
        raise unknown("configuration (neither a .toml file nor built in)", source, builtin_names())
    try:
        settings = tomllib.loads(text)
    except ValueError as error:  # also an integer of thousands of digits
        raise UserError(f"configuration {source}: not valid TOML ({error})") from error
    except RecursionError as error:
        raise UserError(f"configuration {source}: its lists and tables are nested too deep to be read") from error
    for section, values in settings.items():
        if not isinstance(values, dict):
            raise UserError(f"{section}: options stand in sections such as [run]; allowed: {', '.join(SECTIONS)}")
    return settings


def apply(settings: Settings, text: str) -> None:
    """An override, `section.option=value`."""
    key, equals, value = text.partition("=")
    section, dot, option = key.strip().partition(".")
    if not equals or not dot:
        raise UserError(f"{text!r}: write an override as section.option=value, for example run.rounds=20")
    try:
        document = tomllib.loads(f"value = {value}")
        parsed = document["value"] if len(document) == 1 else value
    except ValueError:
        parsed = value  # a bare word is a string
    except RecursionError as error:
        raise UserError(f"{key.strip()}: its lists and tables are nested too deep to be read") from error
    options = settings.setdefault(section, {})
    *tables, option = option.split(".")
    for table in tables:
        options = options.setdefault(table, {})
        if not isinstance(options, dict):
            raise UserError(f"{key.strip()}: {table} is a value there, not a table of options")
    if option == "name" and section not in ("run",) and options.get("name") != parsed:
        options.clear()  # another thing has other options
    options[option] = parsed


def _check_use(settings: Settings, overrides: list[str]) -> None:
    """What is asked for on the command line must have a use; a section in a file is for the algorithms that take it."""
    name = settings.get("algorithm", {}).get("name")
    whys = {"sampler": "decides by itself who is invited", "network": "has a server, which clients reach over links"}
    for section, why in whys.items():
        asked = isinstance(name, str) and any(text.strip().startswith(f"{section}.") for text in overrides)
        if asked and not _takes(registry.find("algorithm", str(name)), section):
            raise UserError(f"{section}: algorithm {name} {why}; leave the {section} out")


def _takes(algorithm: type[Algorithm], section: str) -> bool:
    """Whether an algorithm has a use for what a section makes."""
    return section in options_of(algorithm) and section not in algorithm.no_use_for


@dataclass(frozen=True)
class Brought:
    """What takes the place of the sections data, partition, model and local: a user's app has its own."""

    dataset: Dataset  # with a group for each client
    task: Task
    local: LocalSGD


def build(
    settings: Settings, brought: Brought | None = None, known: tuple[Dataset, Population] | None = None
) -> tuple[Experiment, RunSettings, Settings]:
    """The experiment, and the complete settings: every option with the value it has. A machine of a deployment knows
    its own part of the data and of the clients, `known`; the sections that make them are for others."""
    complete: Settings = {}
    given = {section: dict(settings.get(section, {})) for section in SECTIONS}

    def make(section: str, function: Callable[..., Any], *, name: str | None = None, **extra: Any) -> Any:
        made, options = call(section, function, given[section], extra)
        complete[section] = ({"name": name} if name is not None else {}) | options
        return made

    run: RunSettings = make("run", RunSettings)
    dataset: Dataset
    shadow: Shadow | None = None
    if known is not None:
        dataset, population = known
        complete |= {name: dict(given[name]) for name in _OF_CLIENTS}
        if population.size > 1:  # a server that wants to know how long they may take
            population = replace(population, devices=_devices(population.size, given, make))
    else:
        if brought is None:
            data_name = _name(given, "data")
            dataset = make("data", datasets.loader(data_name), name=data_name)
        else:
            dataset, given["partition"] = brought.dataset, {"name": "natural"}
        counted: ClientSettings = make("clients", ClientSettings)
        as_given = {section: dict(options) for section, options in given.items()}
        population, shadow = _population(run, dataset, counted, given, complete, make)
    task = _task(run, dataset, given, complete, make) if brought is None else brought.task
    if brought is None:
        local, complete["local"] = modifiers.make_local(given["local"])
    else:
        local = brought.local
    algorithm_name = _name(given, "algorithm")
    algorithm_class = registry.find("algorithm", algorithm_name)
    extra: dict[str, Any] = {"local": local}
    if given["sampler"] and _takes(algorithm_class, "sampler"):  # some invite everybody: nothing to sample
        sampler_name = _name(given, "sampler", "uniform")
        extra["sampler"] = sampler = make("sampler", registry.find("sampler", sampler_name), name=sampler_name)
        if isinstance(sampler, Limited) and sampler.clients_per_round is None:
            complete["sampler"]["clients_per_round"] = sampler.size(population)
    plan: Plan = make("engine", Plan).with_threads()
    complete["engine"]["threads"] = plan.threads  # the bits depend on it
    if shadow is not None:
        if brought is not None:
            raise UserError("adversary.name: shadow needs the model and the local work of a configuration; use silence")
        foe = _found(shadow, run, dataset, counted, as_given, task, local, plan)
        population = replace(population, adversary=foe)
        found = {name: value for name, value in vars(foe).items() if value is not None}
        complete["adversary"] = {"name": "silence", **check("adversary", adversary.Silence, found, set())[1]}
    for section, kinds in PARTS.items():
        if given[section]:
            extra[section] = _part(section, kinds, given, make)
    complete["network"] = {}  # a plain ring, or a server
    if _takes(algorithm_class, "network"):
        extra |= _network(run, population, task, plan, local, given, make)
    algorithm = make("algorithm", algorithm_class, name=algorithm_name, **extra)
    complete["unlearning"] = {}  # nobody will be forgotten
    complete["detectors"] = {}  # nobody is suspected
    complete["privacy"] = {}  # nothing is hidden
    complete["deploy"] = {}  # nobody is far away
    if given["deploy"]:
        make("deploy", Deploy)
    experiment = Experiment(
        task,
        population,
        algorithm,
        run.seed,
        Stopping(run.rounds, run.seconds, run.target, run.measure),
        make("evaluation", Evaluation),
        plan,
        unlearning=make("unlearning", Unlearning) if given["unlearning"] else None,
        screening=make("detectors", Screening) if given["detectors"] else None,
        privacy=make("privacy", Privacy) if given["privacy"] else None,
    )
    experiment.fingerprint = fingerprint(complete)
    threads = given["engine"].get("threads", 0)
    older: Settings = {**complete, "engine": {**complete["engine"], "threads": threads}}
    if brought is None:
        chain = settings.get(_FORMER, {}).get("transform", "")
        before = modifiers.demodernise(complete["local"], local, chain)
        older = {} if before is None else {**older, "local": before}
    experiment.former = fingerprint(older) if older else ""
    return experiment, run, complete


def _population(
    run: RunSettings,
    dataset: Dataset,
    counted: ClientSettings,
    given: Settings,
    complete: Settings,
    make: Callable[..., Any],
) -> tuple[Population, Shadow | None]:
    """The clients; and how an adversary of theirs is to be found, where that takes runs of a shadow."""
    name = _name(given, "partition", "iid")
    if name not in PARTITIONS:
        raise unknown("partition.name", name, PARTITIONS)
    options, every = check("partition", PARTITIONS[name], given["partition"], {"data", "clients", "seed", "part"})
    complete["partition"] = {"name": name, **every}
    foes = _name(given, "adversary", "none")
    if foes not in ADVERSARIES:
        raise unknown("adversary.name", foes, ADVERSARIES)
    manner = _name(given, "behaviour", "none")
    if manner not in BEHAVIOURS:
        raise unknown("behaviour.name", manner, BEHAVIOURS)
    lies = make("behaviour", BEHAVIOURS[manner], name=manner)
    bad = lies if isinstance(lies, quality.BadData) else None
    columns = {
        name: None if (c := getattr(counted, name)) is None else np.asarray(c, float)
        for name in ("joined_at", "left_at")
    }
    foe = make("adversary", ADVERSARIES[foes], name=foes)
    complete["power"] = {}  # whoever gives none of its options does not ask
    people = Population.of(
        dataset,
        counted.count,
        name,
        seed=run.seed,
        test=counted.test,
        test_fraction=counted.test_fraction,
        validation_fraction=counted.validation_fraction,
        unseen_fraction=counted.unseen_fraction,
        partition_options=options,
        importance=counted.importance,
        model_bytes=counted.model_bytes,
        devices=_devices(counted.count, given, make),
        links=make("links", Links),
        power=make("power", Power) if given["power"] else None,
        regions=_regions(run, counted),
        availability=_presence(counted.count, given, complete, make),
        crashes=make("crashes", Crashes),
        detection=make("detection", Detection),
        adversary=None if isinstance(foe, Shadow) else foe,
        behaviour=None if bad else lies,
        **columns,
    )
    people = people if bad is None else bad.spoil(people, run.seed)
    return _streaming(people, given, complete, make), foe if isinstance(foe, Shadow) else None


def _found(
    shadow: Shadow,
    run: RunSettings,
    dataset: Dataset,
    counted: ClientSettings,
    given: Settings,
    task: Task,
    local: LocalSGD,
    plan: Plan,
) -> adversary.Silence:
    """Whom to silence, from runs over the same samples dealt anew."""
    other = replace(run, seed=run.seed + 1)

    def make(section: str, function: Callable[..., Any], **extra: Any) -> Any:
        return call(section, function, given[section], {key: value for key, value in extra.items() if key != "name"})[0]

    people, _ = _population(other, dataset, counted, given, {name: {} for name in SECTIONS}, make)
    return shadow.find(task, people, local, other.seed, plan)


def _devices(clients: int, given: Settings, make: Callable[..., Any]) -> devices.Devices:
    name = _name(given, "devices", "fixed")
    if name not in DEVICES:
        raise unknown("devices.name", name, DEVICES)
    if name == "fixed" and not given["devices"]:
        given["devices"] = {"seconds": 1.0}
    made: devices.Devices = make("devices", DEVICES[name], name=name, **({"clients": clients} if name == "fx" else {}))
    return made


def _streaming(people: Population, given: Settings, complete: Settings, make: Callable[..., Any]) -> Population:
    """`[stream]` names how samples arrive, `[memory]` what clients keep of them; without, all were there before."""
    complete["stream"] = complete["memory"] = {}
    if not given["stream"]:
        if given["memory"]:
            raise UserError("memory: it is for samples that arrive; say how with stream.name=...")
        return people
    shared = {"fresh", "drift", "seconds"} & given["stream"].keys()
    common: Section = {name: given["stream"].pop(name) for name in sorted(shared)}
    made = {}
    for section, kinds, default in (("stream", ARRIVALS, None), ("memory", MEMORIES, "latest")):
        name = _name(given, section, default)
        if name not in kinds:
            raise unknown(f"{section}.name", name, kinds)
        made[section] = make(section, kinds[name], name=name)
    options, every = check("stream", Population.streaming, common, {"self", "arrivals", "memory"})
    complete["stream"] |= every
    return people.streaming(made["stream"], made["memory"], **options)


def _regions(run: RunSettings, counted: ClientSettings) -> IntArray | None:
    if isinstance(counted.regions, int):
        return deal(counted.count, counted.regions, run.seed, relative_sd=counted.region_sd)
    return None if counted.regions is None else np.asarray(counted.regions, np.int64)


def _network(
    run: RunSettings,
    population: Population,
    task: Task,
    plan: Plan,
    local: LocalSGD,
    given: Settings,
    make: Callable[..., Any],
) -> dict[str, Any]:
    """What an algorithm without a server takes: a plain ring over the clients' own links unless a section says more."""
    if not given["network"]:
        return {"network": None, "overlay": None, "latency": None}
    settings: NetworkSettings = make("network", NetworkSettings)
    network = settings.network(population)
    check_silos(network, population)
    counts = population.counts(population.ids, np.zeros(population.size))
    computing = population.devices.mean_seconds(population.seed, population.ids, *local.busy(counts))
    bits = 8 * message_bytes(population, task, plan.dtype)
    return {"network": network, "overlay": settings.choose(network, bits, computing, run.seed), "latency": None}


def _presence(clients: int, given: Settings, complete: Settings, make: Callable[..., Any]) -> Availability:
    """Any model takes `groups`: who comes and goes together."""
    name, groups = _name(given, "availability", "always"), given["availability"].pop("groups", None)
    if name not in AVAILABILITY:
        raise unknown("availability.name", name, AVAILABILITY)
    filled_in = {"clients": clients} if "clients" in options_of(AVAILABILITY[name]) else {}
    model: Availability = make("availability", AVAILABILITY[name], name=name, **filled_in)
    if groups is None:
        return model
    groups = checked_value("availability.groups", groups, int | list[int])
    complete["availability"]["groups"] = groups
    return Grouped(model, Grouped(model, groups).group(np.arange(clients)))


def presence(settings: Settings) -> Availability:
    """Who is there when, and nothing else of a configuration."""
    given = {"availability": dict(settings.get("availability", {}))}

    def make(section: str, function: Callable[..., Any], **extra: Any) -> Any:
        return call(section, function, given[section], {key: value for key, value in extra.items() if key != "name"})[0]

    return _presence(settings["clients"]["count"], given, {"availability": {}}, make)


def _task(run: RunSettings, dataset: Dataset, given: Settings, complete: Settings, make: Callable[..., Any]) -> Task:
    name = _name(given, "model")
    if ":" in name:
        function = dotted("model.name", name)
    elif name in MODELS:
        function = MODELS[name]
    else:
        raise unknown("model.name", name, MODELS)
    usual = "mse" if dataset.num_classes is None else "cross_entropy"
    loss = checked_value("model.loss", given["model"].pop("loss", usual), str)
    outputs = dataset.num_classes or int(np.prod(dataset.targets.shape[1:], dtype=int))
    known = {"inputs": int(np.prod(dataset.inputs.shape[1:], dtype=int)), "outputs": outputs, "classes": outputs}
    for option in options_of(function):
        if option in known:
            given["model"].setdefault(option, known[option])

    def module() -> nn.Module:
        try:
            if name in MODELS:  # a look at its size, without its numbers
                with torch.device("meta"):
                    parameters = call("model", function, given["model"], {})[0].parameters()
                check_room("model: it", 2 * sum(parameter.numel() for parameter in parameters))
            made = make("model", function, name=name)
        except UserError:
            raise
        except Exception as error:  # whatever a function of the user's own raises
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"model: {name} cannot be built with these options ({why})") from error
        if not isinstance(made, nn.Module):
            raise UserError(f"model.name: {name} returned {type(made).__name__}, not a torch.nn.Module")
        return made

    task = Task(module, loss, seed=run.seed)
    complete["model"]["loss"] = loss
    return task


def _part(section: str, kinds: dict[str, Any], given: Settings, make: Callable[..., Any]) -> Any:
    """A part of a method, built in or `package.module:Class` of the user's own."""
    name = _name(given, section)
    if ":" not in name and name not in kinds:
        raise unknown(f"{section}.name", name, kinds)
    return make(section, dotted(f"{section}.name", name) if ":" in name else kinds[name], name=name)


def _name(given: Settings, section: str, default: str | None = None) -> str:
    name = given[section].pop("name", default)
    if not isinstance(name, str):
        raise UserError(f"{section}.name: missing; say which one with {section}.name=...")
    return name


def fingerprint(complete: Settings) -> str:
    """Names a configuration, apart from what may change when a run goes on."""
    fixed = {
        section: {name: value for name, value in options.items() if name not in _FREE.get(section, ())}
        for section, options in complete.items()
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()[:16]


# -- writing --------------------------------------------------------------------------------------------------


def as_toml(settings: Settings) -> str:
    """Sections of plain values and tables of such; options without a value are left out."""
    lines = []
    for section, options in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{_key(name)} = {_value(value)}" for name, value in options.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    if isinstance(value, dict):
        parts = (f"{_key(name)} = {_value(part)}" for name, part in value.items() if part is not None)
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # also nan, inf and -inf
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return _text(str(value))


def _key(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else _text(name)


def _text(text: str) -> str:
    """JSON's escapes are TOML's too, except that TOML wants one character more of them."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
