"""Everything that a configuration knows by name, a line for each kind, and every option with its line of help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from turnout import data as datasets
from turnout.aggregation.optimisers import OPTIMISERS
from turnout.aggregation.remember import REMEMBER
from turnout.aggregation.rules import RULES
from turnout.aggregation.weights import WEIGHTS
from turnout.clients import adversary, behaviour, devices, quality, traces
from turnout.clients.arriving import ARRIVALS
from turnout.clients.availability import Always, Crashes, Detection
from turnout.clients.chains import Bernoulli, Diurnal, Groups, Markov, clustered, heterogeneous
from turnout.clients.links import Links
from turnout.clients.memories import MEMORIES
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.config import registry
from turnout.config.deployment import Deploy
from turnout.config.help import help_of
from turnout.config.options import in_words, options_of
from turnout.config.settings import ClientSettings, RunSettings
from turnout.config.tasks import TaskSettings
from turnout.core.allowed import OneOf, allowed_of
from turnout.core.errors import unknown
from turnout.core.imports import dotted
from turnout.data.partition import PARTITIONS
from turnout.engine.plan import Plan
from turnout.local.optimisers import OPTIMISERS as LOCAL_OPTIMISERS
from turnout.local.schedules import SCHEDULES
from turnout.local.serving import SERVES
from turnout.local.sgd import LocalSGD
from turnout.local.transforms import MODIFIERS
from turnout.peers.design import NetworkSettings
from turnout.record.detectors import DETECTORS
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening
from turnout.run.shadow import Shadow
from turnout.server.closing import WAITS
from turnout.server.privacy import Privacy
from turnout.server.stopping import Evaluation
from turnout.task.losses import LOSSES
from turnout.task.metrics import METRICS
from turnout.task.models import MODELS
from turnout.task.norms import BATCHNORM
from turnout.task.samples import AUGMENT, PREPARE

Made = Callable[..., Any]
Things = Mapping[str, Made]
AVAILABILITY: Things = {
    "always": Always,
    "bernoulli": Bernoulli,
    "clustered": clustered,
    "diurnal": Diurnal,
    "heterogeneous": heterogeneous,
    "markov": Markov,
    "trace": traces.read,
}
ADVERSARIES: Things = {
    "none": adversary.nobody,
    "largest_norm": adversary.LargestNorm,
    "random": adversary.Random,
    "shadow": Shadow,
    "silence": adversary.Silence,
    "starve": adversary.Starve,
    "worst_case": adversary.WorstCase,
}
BEHAVIOURS: Things = {
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
DEVICES: Things = {
    name: getattr(devices, name) for name in ("fx", "fixed", "exponential", "gaussian", "lognormal", "table")
}


class Kind(NamedTuple):
    """Things of one kind: a section of a configuration says which, and gives it its options."""

    section: str  # or `{}` in the place of the thing's name, where each has a section of its own
    things: Callable[[], Things]
    default: str | None = None  # the name of the thing, unless the section says which
    group: str = ""  # of entry points, where installed distributions register more


class Option(NamedTuple):
    """An option, in words: what it takes, what it is unless given, and what it is for."""

    name: str
    takes: str
    default: str
    help: str


def _classes(kind: str) -> Things:
    return {name: registry.find(kind, name) for name in registry.names(kind)}


KINDS: dict[str, Kind] = {
    "algorithms": Kind("algorithm", partial(_classes, "algorithm"), group=registry.GROUPS["algorithm"]),
    "samplers": Kind("sampler", partial(_classes, "sampler"), "uniform", registry.GROUPS["sampler"]),
    "waits": Kind("wait", lambda: WAITS),
    "weights": Kind("weigh", lambda: WEIGHTS),
    "remembering": Kind("remember", lambda: REMEMBER),
    "rules": Kind("rule", lambda: RULES),
    "optimisers": Kind("optimiser", lambda: OPTIMISERS),
    "serving": Kind("serve", lambda: SERVES),
    "modifiers": Kind("local.{}", lambda: MODIFIERS),
    "losses": Kind("task.{}", lambda: LOSSES),
    "metrics": Kind("task.{}", lambda: METRICS),
    "preparing": Kind("task.{}", lambda: PREPARE),
    "batchnorm": Kind("task.{}", lambda: BATCHNORM),
    "augmenting": Kind("task.{}", lambda: AUGMENT),
    "local_optimisers": Kind("local.{}", lambda: LOCAL_OPTIMISERS),
    "schedules": Kind("local.{}", lambda: SCHEDULES),
    "datasets": Kind("data", lambda: {name: datasets.loader(name) for name in datasets.names()}, group=datasets.GROUP),
    "streams": Kind("stream", lambda: ARRIVALS),
    "memories": Kind("memory", lambda: MEMORIES, "latest"),
    "availability": Kind("availability", lambda: AVAILABILITY, "always"),
    "adversaries": Kind("adversary", lambda: ADVERSARIES, "none"),
    "behaviours": Kind("behaviour", lambda: BEHAVIOURS, "none"),
    "detectors": Kind("detectors", lambda: DETECTORS),
    "devices": Kind("devices", lambda: DEVICES, "fixed"),
    "models": Kind("model", lambda: MODELS),
    "partitions": Kind("partition", lambda: PARTITIONS, "iid"),
}
PLAIN: dict[str, Made] = {  # sections that are one thing
    "run": RunSettings,
    "clients": ClientSettings,
    "links": Links,
    "power": Power,
    "crashes": Crashes,
    "detection": Detection,
    "network": NetworkSettings,
    "task": TaskSettings,
    "local": LocalSGD,
    "evaluation": Evaluation,
    "engine": Plan,
    "unlearning": Unlearning,
    "detectors": Screening,
    "privacy": Privacy,
    "deploy": Deploy,
}
NAMED = {kind.section: kind for kind in KINDS.values()}
REQUIRED = ("data", "model", "algorithm")  # sections that have to say what they make
PARTS = {  # of a method
    section: NAMED[section].things() for section in ("wait", "weigh", "remember", "rule", "optimiser", "serve")
}


def find(section: str, name: str) -> Made:
    """Find what a section names: built in, of an installed distribution, or `package.module:name` of the user's own."""
    if section in registry.GROUPS:
        return registry.find(section, name)
    if section == "data":
        return datasets.loader(name)
    things = NAMED[section].things()
    if ":" in name and section in ("model", *PARTS):
        things = {name: dotted(f"{section}.name", name)}
    if name not in things:
        raise unknown(f"{section}.name", name, things)
    return things[name]


@dataclass
class _Together:
    groups: Groups | None = None  # who come and go together: how many groups, or the group of each client


_SHARED: dict[str, Made] = {"stream": Population.streaming, "availability": _Together}
FILLED_IN = {  # arguments that a configuration fills in from its other sections
    "algorithm": {"local", "sampler", "overlay", "network", "latency"},
    "partition": {"data", "clients", "seed", "part"},
    "stream": {"self", "arrivals", "memory"},
    "availability": {"clients"},
    "devices": {"clients"},
}


def options(section: str, made: Made) -> list[Option]:
    """Every option that a section takes for a thing, in the order of its signature."""
    if section == "detectors" and made is not Screening:
        return []  # one section for all of them
    return [*_own(section, made), *common_options(section)]


def common_options(section: str) -> list[Option]:
    """The options that a section takes whatever it makes."""
    return _own(section, _SHARED[section]) if section in _SHARED else []


def _own(section: str, function: Made) -> list[Option]:
    found = []
    lines, allowed = help_of(function), allowed_of(function)
    for name, (hint, default) in options_of(function, FILLED_IN.get(section)).items():
        takes = in_words(hint)
        if name in allowed:
            takes = str(allowed[name]) if isinstance(allowed[name], OneOf) else f"{takes}, {allowed[name]}"
        found.append(Option(name, takes, _shown(default), lines.get(name, "")))
    return found


def _shown(default: Any) -> str:
    """A default as a configuration has it."""
    if default is inspect.Parameter.empty:
        return "required"
    return str(default).lower() if default is None or isinstance(default, bool) else str(default) or '""'
