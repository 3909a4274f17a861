"""No option does nothing: with another value the run has other bits (its model or its record), or it is refused.

Every algorithm, every option of it and of its local work; every sampler, every option of it. An option for which there
is no other value here fails, so that a new one is covered by itself. `TURNOUT_WALK=all` walks all cells, otherwise a
part of them is, the same in every run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import turnout
from support import SETTINGS, WORLD, local, mlp, population
from turnout import Algorithm, LocalSGD, Plan, Population, Stopping, Task, devices
from turnout.clients import arriving, memories
from turnout.config import registry
from turnout.config.options import options_of
from turnout.core.errors import UserError
from turnout.core.random import key, normal
from turnout.local.modifiers import Proximal, SharpnessAware
from turnout.local.optimisers import Adam
from turnout.local.schedules import Warmup
from turnout.peers.network import Star
from turnout.peers.peers import over_own_links

Options = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Another value of an option, and what it needs to matter: other options `beside` it, local ones, and a world."""

    value: Any
    beside: Options = field(default_factory=dict)
    local: Options = field(default_factory=dict)
    world: Options = field(default_factory=dict)
    rounds: int = 4
    start: Any = None  # the value it is compared with, where that is not the default


DESERTED = {"availability": turnout.Bernoulli(0.1)}
UNRELIABLE = {"crashes": turnout.Crashes(0.4)}
STALE = {"devices": devices.lognormal(0.5, 1.5), "availability": turnout.Always()}
UNEQUAL = {"availability": turnout.Bernoulli(np.linspace(0.4, 1.0, 8))}
SILOS = len(WORLD["regions"])
OWN = over_own_links(population(**WORLD))
EVERYBODY = {"availability": turnout.Always(), "crashes": turnout.Crashes()}
OTHERS: dict[str, Case] = {
    # of FedAvg and most others
    "sampler": Case(turnout.Uniform(4)),
    "server_lr": Case(0.5),
    "deadline": Case(0.3),
    "wait_for": Case(2),
    "wait_for_crashed": Case(True, {"deadline": 3.0}, world=UNRELIABLE),
    "retry": Case(3.0, world=DESERTED),
    "normalise": Case("responders", world=UNRELIABLE),
    # of those who do not wait for everybody
    "max_staleness": Case(1, world=STALE, rounds=25),
    "staleness_discount": Case("hinge", {"discount_rate": 2.0}, world=STALE, rounds=12),
    "discount_rate": Case(2.0, {"staleness_discount": "polynomial"}, world=STALE, rounds=12),
    "discount_from": Case(1.0, {"staleness_discount": "hinge"}, world=STALE, rounds=12),
    "weight_rule": Case("naive"),
    "concurrency": Case(4),
    "fraction": Case(0.6),
    "idle_fallback": Case("regional", world=UNRELIABLE),
    # of kinds of algorithms
    "tuning_epochs": Case(3),
    "mu": Case(0.05),
    "beta": Case(0.5),
    "beta1": Case(0.5),
    "beta2": Case(0.5),
    "tau": Case(0.1),
    "components": Case(4),
    "min_weight": Case(0.1),
    "unseen_steps": Case(4),
    "outputs": Case("values"),
    "overlay": Case(Star("star", ~np.eye(SILOS, dtype=bool), 0)),
    "network": Case(replace(OWN, latency=2 * OWN.latency)),
    "mixing": Case("none"),
    "latency": Case(lambda version: (0.5 + version) * (1 - np.eye(SILOS))),
    "head": Case("0"),
    "amplification": Case(3.0),
    "iterations": Case(3, {"rule": "geometric_median"}),
    "buckets": Case(2),
    "radius": Case(0.05),
    "lag_tolerance": Case(0, world=STALE | UNRELIABLE, rounds=8),
    "lag_rule": Case("eq37", {"lag_tolerance": 1}, world=STALE, rounds=8),
    "close_rule": Case("deadline", {"deadline": 3.0}),
    "deadline_includes_distribution": Case(True, {"deadline": 0.3}),
}
# of one algorithm: another value, other things beside it, or another world
OF_ONE: dict[tuple[str, str], Case] = {
    ("centralised", "deadline"): Case(0.05),
    ("clustered_fl", "tol_1"): Case(1e-6, {"tol_2": 0.01}, rounds=6, world=EVERYBODY),
    ("clustered_fl", "tol_2"): Case(0.01, {"tol_1": 1.0}, rounds=6, world=EVERYBODY),
    ("d_fedem", "objective"): Case("equal"),
    ("dpasgd", "objective"): Case("importance"),
    ("apfl", "alpha"): Case(0.2),
    ("apfl", "adaptive"): Case(False),
    ("fedasync", "mixing"): Case(0.3),
    ("fedasync", "mu"): Case(0.5),
    ("fedavg_rp", "normalise"): Case("invited", world=UNRELIABLE),
    ("fedbuff", "buffer_size"): Case(2),
    ("fedbuff", "mode"): Case("restart"),
    ("fedbuff", "divisor"): Case(5.0, {"weight_rule": "naive"}),
    ("fedfix", "window"): Case(0.3),
    ("fedfix", "window_growth"): Case(1.5),
    ("fedfix", "window_limit"): Case(0.3),
    ("fednova", "mu"): Case(0.5),
    ("fednova", "observed"): Case(True),
    ("fedprof", "normalise"): Case("invited", world=UNRELIABLE),
    ("fedprof", "wait_for"): Case(2, {"preference": 0.0}),
    ("fedprof", "clients_per_round"): Case(2),
    ("profiled", "clients_per_round"): Case(2),
    ("fedprof", "preference"): Case(1.0),
    ("fedprof", "layer"): Case("2"),
    ("fedprof", "reference"): Case(normal(key(2, "test reference"), 100).reshape(20, 5)),
    ("fedprof", "aggregation"): Case("partial"),
    ("fedprof", "replace"): Case(False),
    ("fedprof", "refresh_every"): Case(1),
    ("fedprof", "min_prob"): Case(0.1, {"preference": 100.0}),
    ("fedprof", "var_floor"): Case(10.0),
    ("fedprof", "cipher"): Case("additive"),
    ("fedrep", "head_epochs"): Case(1),
    ("fem_omd", "em_steps"): Case(3),
    ("fem_omd", "scale"): Case(0.5),
    ("hierfavg", "cloud_interval"): Case(3),
    ("robust_momentum", "modifiers"): Case((SharpnessAware(1.0),)),  # one step from the model received: no pull
    ("hybridfl", "slack"): Case("censored"),
    ("hybridfl", "theta_init"): Case(0.9),
    ("hybridfl", "idle_fallback"): Case("global"),
    ("ifca", "clusters"): Case(3),
    ("knn_per", "index"): Case("faiss"),
    ("knn_per", "k"): Case(1),
    ("knn_per", "kernel"): Case("gaussian"),
    ("knn_per", "scale"): Case(3.0),
    ("knn_per", "layer"): Case("0"),
    ("knn_per", "capacity"): Case(0.3),
    ("knn_per", "keep"): Case("balanced", {"capacity": 0.3}),
    ("knn_per", "tune"): Case("loglik"),
    ("knn_per", "fraction"): Case(0.5),
    ("knn_per", "interpolation"): Case(0.9, {"fraction": 0.0}),
    ("l2sgd", "epochs"): Case(3, start=1),  # an event says that it has no use
    ("l2sgd", "communication"): Case(0.3),
    ("local", "average"): Case(True),
    ("mifa", "first_round"): Case("zero"),
    ("mocha", "penalty"): Case(0.1),
    ("mocha", "epsilon"): Case(0.1),
    ("pfedme", "variant"): Case("averaged"),
    ("pfedme", "outer_lr"): Case(0.2),
    ("pfedme", "inner_steps"): Case(4),
    ("robust_mean", "rule"): Case("krum"),
    ("robust_mean", "trim"): Case(0.3, {"rule": "trimmed_mean"}),
    ("robust_mean", "liars"): Case(0, {"rule": "krum"}),
    ("robust_mean", "keep"): Case(1, {"rule": "multi_krum"}),
    ("robust_mean", "radius"): Case(0.01, {"rule": "centred_clipping"}, start=1.0),
    ("robust_momentum", "epochs"): Case(3, start=1),  # an event says that it has no use
    ("robust_momentum", "rule"): Case("mean"),
    ("robust_momentum", "momentum"): Case(0.5),
    ("safa_thesis", "arrival_order"): Case("speed"),
    ("safa_thesis", "keep_best"): Case("revert", local={"lr": 3.0}),
    ("safa_thesis", "warm_start"): Case(True),
    ("scaffold", "nesterov"): Case(True),  # which has no momentum
    ("scaffold", "optimiser_state"): Case("kept"),
    ("stream_fedavg", "weighting"): Case(0.5),
    ("stream_fedavg", "ratio"): Case(3.0, {"weighting": "optimal"}, start=1.0),
    ("stream_fedavg", "output_of"): Case("averaged"),
    ("werm", "train_weight"): Case(0.9),
    ("werm", "reference_clients"): Case(3),
}
LOCAL: dict[str, Case] = {
    "lr": Case(0.05),
    "epochs": Case(3),
    "steps": Case(3),
    "batch_size": Case(2),
    "batching": Case("full"),
    "momentum": Case(0.5),
    "weight_decay": Case(0.1),
    "clip_norm": Case(0.05),
    "lr_decay": Case(0.5),
    "lr_power": Case(0.5),
    "report": Case("loss"),
    "modifiers": Case((Proximal(1.0),)),
    "nesterov": Case(True, local={"momentum": 0.5}),
    "optimiser": Case(Adam()),
    "optimiser_state": Case("kept", local={"momentum": 0.5}),
    "schedules": Case((Warmup(3),)),
}
SMALL: dict[str, Options] = {"fedrep": {"tuning_epochs": 2}, "fedem": {"components": 2}, "d_fedem": {"components": 2}}
OF_SAMPLERS: dict[str, Options] = {
    "target": {"groups": [0, 1, 0, 1, 0, 1, 0, 1]},
    "power_of_choice": {"candidates": 6},
    "poisson_binomial": {"cap": True},
    "cafed": {"bias_weight": 0.01, "floor": "zero"},
    "profiled": {"reference": normal(key(1, "test reference"), 100).reshape(20, 5)},
}  # what a population of eight needs
PRESENCE = {"estimator": "beta"}
SAMPLERS: dict[str, Case] = {
    "clients_per_round": Case(3),
    "estimator": Case("beta"),
    "observed": Case(5, PRESENCE),
    "prior": Case((3.0, 1.0), PRESENCE),
    "transition_prior": Case((3.0, 1.0), {"estimator": "transitions", "observed": 5}),
    "drop": Case(0.2),
    "temperature": Case(100.0, {"drop": 0.0, "explore": 0.0}, rounds=8),
    "explore": Case(0.5),
    "bias_weight": Case(100.0),
    "batch_size": Case(2),
    "loss_smoothing": Case(0.3),
    "tolerance": Case(10.0),
    "floor": Case("running_min"),
    "optima": Case(0.3, {"floor": "local_optimum"}, start=0.0),
    "max_excluded_fraction": Case(0.2),
    "renormalise": Case(False, world=UNEQUAL),
    "distance": Case("l1"),
    "tree": Case("condensed", {"distance": "l2"}, world=EVERYBODY, rounds=6),
    "smoothing": Case(0.5),
    "threshold": Case(0.9, world=UNEQUAL),
    "decay": Case(0.1),
    "least_explore": Case(0.9, {"explore": 0.0}),
    "cutoff": Case(0.0),
    "preferred_seconds": Case(0.1),
    "penalty": Case(0.0),
    "cap": Case(False),
    "candidates": Case(4),
    "groups": Case([0, 0, 1, 1, 0, 0, 1, 1]),
} | {option: case for (name, option), case in OF_ONE.items() if name == "fedprof" and option != "clients_per_round"}

# what is refused when it is made, or before anything is trained
REFUSED = {
    *(("centralised", "algorithm", name) for name in turnout.algorithms.Centralised.no_use_for),
    ("clustered_fl", "algorithm", "wait_for"),
    ("fedadagrad", "algorithm", "beta2"),
    ("fedfix", "algorithm", "retry"),
    ("mocha", "algorithm", "server_lr"),
    *((name, "algorithm", "normalise") for name in ("ifca", "mifa", "mocha", "robust_momentum")),
    *((name, "algorithm", "normalise") for name in ("robust_fedavg", "robust_fedprox")),
    *((name, "local", "report") for name in ("d_fedem", "dpasgd")),
    *(("scaffold", "local", name) for name in ("momentum", "nesterov", "optimiser", "optimiser_state", "schedules")),
    *((name, "local", "optimiser") for name in ("fednova", "mocha")),
    *((name, "local", "optimiser_state") for name in ("apfl", "ditto", "pfedme")),
    ("poisson_binomial", "sampler", "cap"),
}
HIDDEN = {
    ("fedprof", "algorithm", "cipher"),
    ("profiled", "sampler", "cipher"),
}  # what the server can read is no part of what comes out
(REFUSED if find_spec("faiss") is None else HIDDEN).add(("knn_per", "algorithm", "index"))  # finds the same neighbours


def _options(kind: str, name: str) -> list[str]:
    return [option for option in options_of(registry.find(kind, name)) if option != "local"]


LOCAL_OPTIONS = [part.name for part in fields(LocalSGD)]
CELLS = [
    *((name, "algorithm", option) for name in registry.names("algorithm") for option in _options("algorithm", name)),
    *((name, "local", option) for name in registry.names("algorithm") for option in LOCAL_OPTIONS),
    *((name, "sampler", option) for name in registry.names("sampler") for option in _options("sampler", name)),
]
WALKED = CELLS[:: 1 if os.environ.get("TURNOUT_WALK") == "all" else 17]  # every option of the local work has its turn


def case_of(name: str, section: str, option: str) -> Case | None:
    """The other value of an option."""
    return OF_ONE.get((name, option)) or {"algorithm": OTHERS, "local": LOCAL, "sampler": SAMPLERS}[section].get(option)


def people(name: str, world: Options) -> Population:
    """Eight unreliable clients, of whom one never joins and is only evaluated; some with data that arrive."""
    joined = np.array([0.0] * 7 + [np.inf])
    made = population(**{**WORLD, "joined_at": joined, **world})
    if name not in ("stream_fedavg", "fem_omd"):
        return made
    return made.streaming(arriving.poisson(0.3), memories.FIFO(8), fresh=[0, 1, 2, 4, 7], seconds=0.2)


def method(name: str, section: str, options: Options, work: Options) -> Algorithm:
    """An algorithm, or FedAvg with a sampler, small enough for eight."""
    cls = registry.find("sampler" if section == "sampler" else "algorithm", name)
    if section == "sampler":
        needed = {"clients_per_round": 4} if "clients_per_round" in options_of(cls) else {}
        return turnout.FedAvg(local(**work), cls(**needed | OF_SAMPLERS.get(name, {}) | options))
    asks = "sampler" in options_of(cls) and "sampler" not in cls.no_use_for
    needed = SMALL.get(name, {}) | SETTINGS.get(name, {}) | ({"sampler": turnout.MD(4)} if asks else {})
    return cls(local(**work), **needed | options)


def outcome(name: str, section: str, case: Case, options: Options, work: Options) -> str:
    """A digest of everything a run leaves behind."""
    made = method(name, section, options, work)
    rule, plan = Stopping(case.rounds), Plan(threads=1)
    seldom, world = turnout.Evaluation(rounds=None), people(name, case.world)
    result = turnout.execute(turnout.Experiment(Task(mlp, seed=3), world, made, 5, rule, seldom, plan))
    digest = blake2b(result.model.numpy().tobytes())
    for table in (result.rounds(), result.jobs(), result.server.clients()):
        for column, values in table.items():
            digest.update(column.encode() + (values.tobytes() if values.dtype != object else repr(values).encode()))
    digest.update(repr(result.summary()).encode())
    return digest.hexdigest()


def found(cell: tuple[str, str, str]) -> str:
    """What another value does: it changes something, or nothing, or is refused before the first round."""
    name, section, option = cell
    case = case_of(*cell)
    assert case is not None

    def digest(value: Any) -> str:
        own = {} if value is None else {option: value}
        options, work = (case.beside, case.local | own) if section == "local" else (case.beside | own, case.local)
        return outcome(name, section, case, options, work)

    before = digest(case.start)
    try:
        return "changes" if digest(case.value) != before else "nothing"
    except UserError as error:
        assert "\n" not in str(error)
        return "refused" if str(error).startswith(f"{section}.") else str(error)


def test_every_option_has_another_value() -> None:
    missing = [cell for cell in CELLS if case_of(*cell) is None]
    assert not missing, f"give them another value in this file: {missing}"
    assert set(CELLS) >= REFUSED | HIDDEN


@pytest.mark.parametrize("cell", WALKED, ids="-".join)
def test_another_value_changes_something_or_is_refused(cell: tuple[str, str, str]) -> None:
    assert found(cell) == ("refused" if cell in REFUSED else "nothing" if cell in HIDDEN else "changes")
