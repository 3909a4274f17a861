"""Everything that a configuration knows by name, a line for each kind, and every option with its line of help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from turnout import data as datasets
from turnout.clients.arriving import ARRIVALS
from turnout.clients.availability import Crashes, Detection
from turnout.clients.links import Links
from turnout.clients.memories import MEMORIES
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.config import config, registry
from turnout.config.deployment import Deploy
from turnout.config.help import help_of
from turnout.config.options import in_words, options_of
from turnout.core.allowed import OneOf, allowed_of
from turnout.data.partition import PARTITIONS
from turnout.engine.plan import Plan
from turnout.local.named import MODIFIERS
from turnout.local.sgd import LocalSGD
from turnout.peers.settings import NetworkSettings
from turnout.record.detectors import DETECTORS
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening
from turnout.server.privacy import Privacy
from turnout.server.stopping import Evaluation
from turnout.task.models import MODELS

Made = Callable[..., Any]


class Kind(NamedTuple):
    """Things of one kind: a section of a configuration says which, and gives it its options."""

    section: str  # or `{}` in the place of the thing's name, where each has a section of its own
    things: Callable[[], Mapping[str, Made]]
    group: str = ""  # of entry points, where installed distributions register more


class Option(NamedTuple):
    """An option, in words: what it takes, what it is unless given, and what it is for."""

    name: str
    takes: str
    default: str
    help: str


def _classes(kind: str) -> dict[str, Made]:
    return {name: registry.find(kind, name) for name in registry.names(kind)}


KINDS: dict[str, Kind] = {
    "algorithms": Kind("algorithm", partial(_classes, "algorithm"), registry.GROUPS["algorithm"]),
    "samplers": Kind("sampler", partial(_classes, "sampler"), registry.GROUPS["sampler"]),
    "waits": Kind("wait", lambda: config.PARTS["wait"]),
    "weights": Kind("weigh", lambda: config.PARTS["weigh"]),
    "remembering": Kind("remember", lambda: config.PARTS["remember"]),
    "rules": Kind("rule", lambda: config.PARTS["rule"]),
    "optimisers": Kind("optimiser", lambda: config.PARTS["optimiser"]),
    "serving": Kind("serve", lambda: config.PARTS["serve"]),
    "modifiers": Kind("local.{}", lambda: MODIFIERS),
    "datasets": Kind("data", lambda: {name: datasets.loader(name) for name in datasets.names()}, datasets.GROUP),
    "streams": Kind("stream", lambda: ARRIVALS),
    "memories": Kind("memory", lambda: MEMORIES),
    "availability": Kind("availability", lambda: config.AVAILABILITY),
    "adversaries": Kind("adversary", lambda: config.ADVERSARIES),
    "behaviours": Kind("behaviour", lambda: config.BEHAVIOURS),
    "detectors": Kind("detectors", lambda: DETECTORS),
    "devices": Kind("devices", lambda: config.DEVICES),
    "models": Kind("model", lambda: MODELS),
    "partitions": Kind("partition", lambda: PARTITIONS),
}
SECTIONS: dict[str, Made] = {  # those that are one thing
    "run": config.RunSettings,
    "clients": config.ClientSettings,
    "links": Links,
    "power": Power,
    "crashes": Crashes,
    "detection": Detection,
    "network": NetworkSettings,
    "local": LocalSGD,
    "evaluation": Evaluation,
    "engine": Plan,
    "unlearning": Unlearning,
    "detectors": Screening,
    "privacy": Privacy,
    "deploy": Deploy,
}


@dataclass
class _Together:
    groups: int | list[int] | None = None  # who come and go together: how many groups, or the group of each client


@dataclass
class _Trained:
    loss: str | None = None  # a name, or module:function; none: cross_entropy for classes, mse for numbers


_SHARED: dict[str, Made] = {"stream": Population.streaming, "availability": _Together, "model": _Trained}
_FILLED_IN = {  # arguments that a configuration fills in from its other sections
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
    found = []
    for function in (made, *([_SHARED[section]] if section in _SHARED else [])):
        lines, allowed = help_of(function), allowed_of(function)
        for name, (hint, default) in options_of(function, _FILLED_IN.get(section)).items():
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
