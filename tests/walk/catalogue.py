"""Everything a configuration can name and every option of it, with values for each: derived from the signatures.

What is in a signature is a section's options; which words an option takes, the sentence that refuses another one says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
from torch import nn
from torch.nn.utils import parametrizations

from turnout import UserError
from turnout import data as datasets
from turnout.clients.arriving import ARRIVALS
from turnout.clients.availability import Crashes, Detection
from turnout.clients.links import Links
from turnout.clients.memories import MEMORIES
from turnout.clients.population import Population
from turnout.clients.power import Power
from turnout.config import config, kinds, registry
from turnout.config.options import options_of
from turnout.config.tasks import TaskSettings
from turnout.data.partition import PARTITIONS
from turnout.engine.plan import Plan
from turnout.local.sgd import LocalSGD
from turnout.peers.design import NetworkSettings
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening
from turnout.server.privacy import Privacy
from turnout.server.stopping import Evaluation
from turnout.task.models import MODELS

CLIENTS = 6
BASE: config.Settings = {
    "run": {"rounds": 2, "seed": 3, "checkpoint_every": 1},
    "data": {"name": "synthetic", "clients": CLIENTS, "dims": 4, "classes": 3, "max_samples": 12},
    "partition": {"name": "natural"},
    "clients": {"count": CLIENTS, "regions": 2},
    "devices": {"name": "lognormal", "median": 0.5, "sigma": 0.5},
    "links": {"down": 1e6, "up": 1e6, "latency": 0.01, "backhaul": 1e6},
    "model": {"name": "linear"},
    "local": {"lr": 0.1, "batch_size": 4},
    "algorithm": {"name": "fedavg"},
    "sampler": {"name": "md", "clients_per_round": 3},
    "engine": {"threads": 1},
}
_NAMED: dict[str, Mapping[str, Callable[..., Any]]] = {
    "data": {name: datasets.loader(name) for name in datasets.names()},
    "partition": PARTITIONS,
    "stream": ARRIVALS,
    "memory": dict(MEMORIES),
    "devices": kinds.DEVICES,
    "availability": kinds.AVAILABILITY,
    "adversary": kinds.ADVERSARIES,
    "behaviour": kinds.BEHAVIOURS,
    "model": MODELS,
    "algorithm": {name: registry.find("algorithm", name) for name in registry.names("algorithm")},
    "sampler": {name: registry.find("sampler", name) for name in registry.names("sampler")},
}
_PLAIN: dict[str, Callable[..., Any]] = {
    "run": config.RunSettings,
    "clients": config.ClientSettings,
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
}
# What the program fills in itself, or takes from another section.
_FILLED_IN = {
    "algorithm": {"local", "sampler", "network", "overlay", "latency"},
    "partition": {"data", "clients", "seed", "part"},
    "devices": {"clients"},
    "availability": {"clients"},
}
# What some things need beside their name: to exist at all, and to be used by the base configuration.
_NEEDS: dict[tuple[str, str], config.Settings] = {
    ("algorithm", "fedcs"): {"algorithm": {"deadline": 5.0}},
    ("algorithm", "hierfavg"): {"algorithm": {"deadline": 5.0}},
    ("algorithm", "hybridfl"): {"algorithm": {"deadline": 5.0}},
    ("algorithm", "fedprof"): {"algorithm": {"clients_per_round": 3}, "clients": {"validation_fraction": 0.2}},
    ("sampler", "profiled"): {"sampler": {"clients_per_round": 3}, "clients": {"validation_fraction": 0.2}},
    ("algorithm", "fedbuff"): {"algorithm": {"buffer_size": 2}},
    ("adversary", "largest_norm"): {"adversary": {"budget": 0.3}},
    ("adversary", "random"): {"adversary": {"budget": 0.3}},
    ("adversary", "shadow"): {"adversary": {"budget": 0.3, "first": 1, "last": 3, "by_gradient": 1}},
    ("adversary", "silence"): {"adversary": {"budget": 0.3, "clients": [1]}},
    ("adversary", "starve"): {"adversary": {"budget": 0.3}},
    ("adversary", "worst_case"): {"adversary": {"budget": 0.3}},
    ("availability", "bernoulli"): {"availability": {"probability": 0.8}},
    ("availability", "diurnal"): {"availability": {"level": 0.6, "amplitude": 0.3}},
    ("availability", "markov"): {"availability": {"probability": 0.8, "correlation": 0.3}},
    ("behaviour", "bad_data"): {"behaviour": {"share": None, "shares": {"label_flip": 0.34}}},
    ("behaviour", "blur"): {
        "data": {"name": "function", "function": "catalogue:drawn", "arguments": {"shape": [1, 6, 6]}}
        | dict.fromkeys(("clients", "dims", "classes", "max_samples")),
        "partition": {"name": "iid"},
    },
    ("devices", "fixed"): {"devices": {"seconds": 1.0}},
    ("devices", "fx"): {"devices": {"percent": 50.0}},
    ("devices", "gaussian"): {"devices": {"mean": 1.0, "sd": 0.2}},
    ("devices", "lognormal"): {"devices": {"median": 1.0, "sigma": 0.2}},
    ("devices", "table"): {"devices": {"source": [1.0] * CLIENTS}},
    ("memory", "fifo"): {"memory": {"capacity": 3}},
    ("memory", "reservoir"): {"memory": {"capacity": 3}},
    ("model", "mlp"): {"model": {"hidden": [4]}},
    ("partition", "dirichlet"): {"partition": {"alpha": 5.0}},
    ("partition", "dirichlet_equal"): {"partition": {"alpha": 5.0}},
    ("partition", "pachinko"): {"partition": {"superclasses": [0, 0, 1]}},
    ("data", "sentences"): {"model": {"name": "char_lstm", "symbols": 28}},
    ("stream", "replay"): {"stream": {"trace": [2, 1]}},
    ("network", ""): {"algorithm": {"name": "dpasgd"}},
    ("privacy", ""): {"privacy": {"noise": 0.5, "clip": 1.0, "noise_seed": 1}, "sampler": {"name": "uniform"}},
    ("evaluation", ""): {"evaluation": {"rounds": 1}},
    ("detectors", ""): {"detectors": {"start": 1}},
    ("unlearning", ""): {"unlearning": {"every": 1}},
}
_GAIA: config.Settings = {
    "algorithm": {"name": "dpasgd"},
    "data": {"clients": 11},
    "clients": {"count": 11},
    "network": {"underlay": "gaia", "access": "10Gbps"},
}
# What some options need beside them; None takes an option away.
_BESIDE: dict[str, config.Settings] = {
    "algorithm.wait_for_crashed": {"algorithm": {"deadline": 5.0}},
    "algorithm.fedbuff.concurrency": {"algorithm": {"buffer_size": 1}},
    "algorithm.close_rule": {"algorithm": {"deadline": 5.0}},
    "algorithm.robust_mean.trim": {"algorithm": {"rule": "trimmed_mean"}},
    "algorithm.robust_mean.liars": {"algorithm": {"rule": "krum"}, "sampler": {"clients_per_round": 6}},
    "algorithm.robust_mean.keep": {
        "algorithm": {"rule": "multi_krum", "liars": 1},
        "sampler": {"clients_per_round": 6},
    },
    "algorithm.robust_mean.radius": {"algorithm": {"rule": "centred_clipping"}},
    "algorithm.robust_mean.iterations": {"algorithm": {"rule": "geometric_median"}},
    "algorithm.stream_fedavg.ratio": {"algorithm": {"weighting": "optimal"}},
    "behaviour.clients": {"behaviour": {"share": None}},
    "local.nesterov": {"local": {"momentum": 0.5}},
    "local.optimiser_state": {"local": {"optimiser": "adam"}},
    "sampler.cafed.optima": {"sampler": {"floor": "local_optimum"}},
    "task.batchnorm": {"model": {"name": "catalogue:normalised"}},
    "task.buffers": {"model": {"name": "catalogue:counting"}},
    "task.prepare": {"task": {"normalise": {"mean": [0.1], "std": [2.0]}}},
    "network.underlay": _GAIA,
    "network.access": _GAIA,
    "network.core": _GAIA,
    "network.latency_mode": _GAIA,
}
FIXED = (  # options that refuse whatever is not their default
    "algorithm.centralised.wait_for", "algorithm.centralised.wait_for_crashed", "algorithm.centralised.normalise",
    "algorithm.clustered_fl.wait_for", "algorithm.fedadagrad.beta2",
    *(f"algorithm.{name}.normalise" for name in ("ifca", "mifa", "mocha", "robust_momentum")),
    *(f"algorithm.{name}.normalise" for name in ("robust_fedavg", "robust_fedprox")),
    *(["algorithm.knn_per.index"] if find_spec("faiss") is None else []),
    "run.start",  # a model that was trained before
)  # fmt: skip


@dataclass(frozen=True)
class Option:
    """An option of a thing: `section.name` where things of that section have names."""

    section: str
    thing: str  # "" where the section is one thing
    name: str
    hint: Any
    default: Any

    def __str__(self) -> str:
        return f"{self.section}.{self.thing}.{self.name}" if self.thing else f"{self.section}.{self.name}"


def needs_files(section: str, thing: str) -> bool:
    """Whether it cannot exist without files of the user's own."""
    if section == "availability":
        return thing == "trace"
    return section == "data" and bool({"folder", "path", "function"} & options_of(_NAMED["data"][thing]).keys())


def things() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Section, name ("" where the section has none) and constructor of everything that needs no file."""
    for section, things in _NAMED.items():
        for name, function in things.items():
            if not needs_files(section, name):
                yield section, name, function
    for section, function in _PLAIN.items():
        yield section, "", function


def options() -> Iterator[Option]:
    """Every option of every thing."""
    for section, thing, function in things():
        for name, (hint, default) in options_of(function, _FILLED_IN.get(section)).items():
            yield Option(section, thing, name, hint, default)
        if section == "stream":
            shared = options_of(Population.streaming, {"self", "arrivals", "memory"})
            yield from (Option(section, thing, name, hint, default) for name, (hint, default) in shared.items())
        if section == "availability":
            yield Option(section, thing, "groups", int | list[int], None)


def settings(section: str, thing: str, **given: Any) -> config.Settings:
    """The base configuration with one thing in it, and these of its options."""
    merged = {name: dict(values) for name, values in BASE.items()}
    if (section == "data" and thing != "synthetic") or (section == "model" and thing.startswith(("cnn", "char"))):
        merged |= _world(thing)
    elif section == "memory":
        merged["stream"] = {"name": "constant", "rate": 2.0}
    if thing and merged.get(section, {}).get("name") != thing:
        few = section == "sampler" and "clients_per_round" in options_of(_NAMED["sampler"][thing])
        merged[section] = {"name": thing, **({"clients_per_round": 3} if few else {})}
    if section == "behaviour" and thing != "none":
        merged["behaviour"]["share"] = 0.34
    extras = [_NEEDS.get((section, thing), {})]
    extras += [_BESIDE.get(place, {}) for name in given for place in (f"{section}.{name}", f"{section}.{thing}.{name}")]
    for extra in [*extras, {section: given}]:
        for other, values in extra.items():
            merged[other] = {k: v for k, v in (merged.get(other, {}) | values).items() if v is not None}
    return merged


def _world(kind: str) -> config.Settings:
    """Data of another shape, dealt to the same clients."""
    generated = {"linear_mixture": {"dims": 4, "max_samples": 12, "test_samples": 3}, "quadratics": {"samples": 6}}
    if kind in generated:
        return {"data": {"name": kind, "clients": CLIENTS, **generated[kind]}}
    shapes = {"cnn_mnist": [1, 28, 28], "cnn_cifar": [3, 32, 32], "cnn_large": [3, 32, 32], "char_lstm": [5]}
    if kind in shapes:
        made = {"name": "function", "function": "catalogue:drawn", "arguments": {"shape": shapes[kind]}}
        return {"data": made, "partition": {"name": "iid"}}
    return {"data": {"name": kind}, "partition": {"name": "iid"}}


def drawn(shape: list[int]) -> dict[str, Any]:
    """Two samples a client of that shape: pictures, or rows of letters."""
    inputs = np.random.default_rng(0).normal(size=(2 * CLIENTS, *shape)).astype("float32")
    targets = np.arange(len(inputs)) % 3
    if len(shape) > 1:
        return {"inputs": inputs, "targets": targets}
    return {"inputs": (inputs > 0).astype("int64"), "targets": targets, "num_classes": 100}


def normalised(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))


def counting(inputs: int, outputs: int) -> nn.Module:
    """A model with a buffer that changes in training."""
    return parametrizations.spectral_norm(nn.Linear(inputs, outputs))


# -- values -----------------------------------------------------------------------------------------------------

_SPECIAL: dict[str, list[Any]] = {
    "data.seed": [1],
    "run.measure": ["test_loss"],
    "run.target": [0.99, 1],
    "run.judge": ["validation_loss"],
    "run.start": ["nowhere"],
    "run.seeds": [[], "0..1"],
    "run.rounds": [3],
    "run.seed": [0, 2**62],
    "run.folder": ["elsewhere", 'é "x" \\ \t'],
    "run.name": ["another", "é#=[x]"],
    "algorithm.head": ["1"],
    "partition.superclasses": [[1, 0, 0], [0.0, 1, 1]],
    "behaviour.shares": [{"label_flip": 0.5}, {"label_flip": 1}],
    "behaviour.strengths": [{"label_flip": 0.5}, {"label_flip": 1}],
    "clients.importance": ["equal", [1 / 6] * CLIENTS, [1, 0, 0, 0, 0, 0]],
    "detectors.names": [["norm"], ["norm", "replay"]],
    "detectors.limits": [{"norm": 3}, {"norm": 2.5}],
    "local.report": ["loss"],
    "local.modifiers": ["sharpness_aware"],
    "task.loss": ["focal"],
    "task.metrics": ["top_k", ["accuracy"], "auc,log_loss"],
    "task.prepare": [["normalise"]],
    "task.augment": ["noise", ["noise"]],
    "task.batchnorm": ["averaged", "local"],
    "local.optimiser": ["adam", "adamw", "adagrad", "rmsprop"],
    "local.schedules": ["warmup", "cosine", "warmup,cosine"],
    "model.inputs": [4.0],
    "model.outputs": [3.0],
    "model.symbols": [100.0],
    "engine.device": ["cuda"],
    "engine.address": ["auto"],
    "network.underlay": ["gaia"],
    "network.access": ["10Gbps"],
    "network.core": ["1Gbps"],
    "network.center": ["0"],
}


def values(option: Option) -> list[Any]:
    """Values of other kinds that the option may take, the default not among them; some may be refused."""
    special = _SPECIAL.get(f"{option.section}.{option.name}", [])
    found = [*special, *words(option), *_of(option.hint, option.default)]
    return [value for value in found if not (value == option.default and type(value) is type(option.default))]


def _of(hint: Any, default: Any) -> list[Any]:
    text = str(hint)
    if "Array" in text or "ndarray" in text or "Draw" in text:
        return [1, 0.5, [1] * CLIENTS, [0.25] * CLIENTS]
    if get_origin(hint) in (Union, UnionType):
        return [value for part in get_args(hint) if part is not type(None) for value in _of(part, default)]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if hint is bool:
        return [not default] if isinstance(default, bool) else [True, False]
    if hint is int:
        own = [default + 1, float(default + 1)] if isinstance(default, int) else []
        return [1, 2, 3.0, *own]
    if hint is float:
        own = [default / 2] if isinstance(default, float) and default else []
        return [0.5, 1, 2, 0.25, *own]
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        return [[1] * len(inner), [0.25] * len(inner)]
    if inner and get_origin(hint) is not None and hint is not str:
        parts = _of(inner[0], None)
        return [[part] * many for many in (1, CLIENTS) for part in parts]
    return []


@cache
def words(option: Option) -> tuple[str, ...]:
    """The words that an option of text takes, as the refusal of another one lists them."""
    if option.hint not in (str, str | None, str | float) or option.section == "run":
        return ()
    try:
        config.build(settings(option.section, option.thing, **{option.name: "?"}))
    except UserError as refusal:
        listed = re.search(r"(?:is not one of|allowed:|is not) (.*)$", str(refusal))
        return tuple(re.findall(r"[\w]+", listed[1])) if listed else ()
    return ("",)
