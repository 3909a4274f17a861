"""DPASGD: what it reduces to, and a plain per-silo loop for any mixing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import turnout
from oracle import plain
from support import local, mlp, population
from turnout import Algorithm, Experiment, FedAvg, Full, LocalSGD, Plan, Stopping, Task
from turnout.algorithms import Local
from turnout.algorithms.dpasgd import DPASGD
from turnout.clients.population import Population
from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.random import key
from turnout.peers.design import PAPER, evaluate, write_overlay
from turnout.peers.matcha import matcha
from turnout.peers.mixing import mixing_matrix
from turnout.peers.network import Overlay, Star
from turnout.peers.peers import over_own_links, ring
from turnout.plan.rehearsal import rehearse

SEED, SILOS = 5, 8
EQUAL: dict[str, Any] = {"importance": "equal"}
CYCLE = Overlay("cycle", ring(SILOS).graph | ring(SILOS).graph.T)
COMPLETE = Overlay("complete", ~np.eye(SILOS, dtype=np.bool_))


def run(algorithm: Algorithm, people: Population, rounds: int = 5, **options: Any) -> turnout.Result:
    plan = Plan(precision="float64", threads=1)
    return turnout.execute(
        Experiment(Task(mlp, seed=3), people, algorithm, SEED, Stopping(rounds), plan=plan), **options
    )


def silos(result: turnout.Result) -> Tensor:
    models: Tensor = result.server.algorithm.silos.models  # type: ignore[attr-defined]
    return models


def close(one: Tensor, other: Tensor) -> None:
    assert float((one - other).norm() / other.norm()) <= 1e-12


# -- what it reduces to ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlay", [Star.around(0, SILOS), Star.around(5, SILOS), COMPLETE])
@pytest.mark.parametrize("work", [local(), local(momentum=0.9), local(lr_decay=0.9)])
def test_averaging_everything_is_fedavg(overlay: Overlay, work: LocalSGD) -> None:
    people = population(**EQUAL)
    found, expected = run(DPASGD(work, overlay), people), run(FedAvg(work, Full()), people)
    close(found.model, expected.model)
    assert float(found.rounds()["consensus_distance"][1:].max()) < 1e-24
    np.testing.assert_allclose(found.rounds()["train_loss"], expected.rounds()["train_loss"], rtol=1e-11)
    np.testing.assert_allclose(found.audit.realised, expected.audit.realised, atol=1e-15)


def test_counting_by_importance_it_is_fedavg_too() -> None:
    people = population()  # importance n_i / n
    found = run(DPASGD(local(), Star.around(0, SILOS), objective="importance"), people)
    close(found.model, run(FedAvg(local(), Full()), people).model)
    np.testing.assert_allclose(found.audit.realised, people.base_importance, atol=1e-15)
    assert not torch.allclose(found.model, run(DPASGD(local(), Star.around(0, SILOS)), people).model)


def test_no_mixing_is_local_training() -> None:
    people = population(**EQUAL)
    found = run(DPASGD(local(), CYCLE, mixing="none"), people)
    alone = run(Local(local(), average=True), people)
    close(found.model, alone.model)
    state = alone.server.store.get({"model": (found.model.numel(),)}, people.ids)
    close(silos(found), state["model"])


def test_one_step_is_d_psgd() -> None:
    """x <- W (x - lr * gradient of every f_i at its own x_i): the form of D-PSGD that mixes after the step."""
    people, weights = population(), mixing_matrix(CYCLE)
    found = run(DPASGD(LocalSGD(0.3, steps=1, batching="full"), CYCLE), people, rounds=7)
    task = Task(mlp, seed=3).to(dtype=torch.float64)
    inputs, models = people.inputs.double(), task.initial.repeat(SILOS, 1)
    for _ in range(7):
        gradients = []
        for i in range(SILOS):
            rows, model = people.train.row(i), models[i].clone().requires_grad_()
            loss = task.losses(model, inputs[rows], people.targets[rows]).mean()
            gradients.append(torch.autograd.grad(loss, model)[0])
        models = torch.as_tensor(weights) @ (models - 0.3 * torch.stack(gradients))
    close(silos(found), models)


# -- any mixing, against a plain loop -------------------------------------------------------------------------


def plain_loop(people: Population, work: LocalSGD, mixings: list[np.ndarray]) -> list[Tensor]:
    """A silo after another, `torch.optim.SGD`, then every silo's sum, term by term. The models after each round."""
    task = Task(mlp, seed=3).to(dtype=torch.float64)
    module: nn.Module = task.module.requires_grad_(True)
    inputs, models, seen = people.inputs.double(), [task.initial.clone() for _ in range(SILOS)], []
    for number, weights in enumerate(mixings):
        trained = []
        for i in range(SILOS):
            rows = people.train.row(i)
            steps, lr = int(work.num_steps(len(rows))), work.lr * float(work.lr_factor(number))
            batches = int(key(SEED, "local work", i, number))
            data = inputs[rows], people.targets[rows]
            difference = plain.train(
                task, module, models[i], *data, steps, batches, lr, work.batch_size, work.momentum, work.weight_decay
            )
            trained.append(models[i] + difference)
        models = [sum((float(row[j]) * trained[j] for j in range(SILOS)), torch.zeros(())) for row in weights]
        seen.append(torch.stack(models))
    return seen


PEOPLE = population()
MATCHA = matcha(over_own_links(PEOPLE), seed=4)
CASES: dict[str, tuple[Overlay, str | None]] = {
    "ring": (ring(SILOS), None),
    "cycle": (CYCLE, "metropolis"),
    "fdla": (CYCLE, "fdla"),
    "star, by its edges": (Star.around(2, SILOS), "local_degree"),
    "matcha": (MATCHA, None),
    "none": (CYCLE, "none"),
}


@pytest.mark.parametrize("case", CASES)
def test_any_mixing_equals_the_plain_loop(case: str) -> None:
    overlay, rule = CASES[case]
    work = local(momentum=0.5, weight_decay=0.01, lr_power=0.5)
    models = plain_loop(PEOPLE, work, [mixing_matrix(overlay, k, rule) for k in range(4)])
    result = run(DPASGD(work, overlay, mixing=rule), PEOPLE, 4)
    close(silos(result), models[-1])
    close(result.model, models[-1].mean(0))
    distances = [float((each - each.mean(0)).square().sum()) for each in models]
    np.testing.assert_allclose(result.rounds()["consensus_distance"][1:], distances, rtol=1e-10)
    assert distances[-1] > 0


def test_matcha_draws_another_overlay_every_round() -> None:
    """The mixing and the traffic are those of the arcs drawn for that round."""
    result = run(DPASGD(local(), MATCHA), PEOPLE, 6)
    arcs = [int(MATCHA.arcs(k).sum()) for k in range(6)]
    assert len(set(arcs)) > 1
    assert result.rounds()["bytes_up"][1:].tolist() == [8 * result.model.numel() * count for count in arcs]


def test_more_mixing_is_more_consensus() -> None:
    overlays = (Star.around(0, SILOS), CYCLE, ring(SILOS))
    distances = [run(DPASGD(local(), overlay), PEOPLE, 10).rounds()["consensus_distance"][-1] for overlay in overlays]
    alone = run(DPASGD(local(), CYCLE, mixing="none"), PEOPLE, 10).rounds()["consensus_distance"][-1]
    assert distances[0] < distances[1] < distances[2] < alone


def test_it_learns_over_a_ring() -> None:
    result = run(DPASGD(local(), ring(SILOS)), PEOPLE, 60)
    assert result.measures["train_accuracy"] > 0.95


def test_the_average_moves_by_the_mean_difference() -> None:
    """What the audit says: every silo's difference counts 1 / N, whatever the mixing."""
    result = run(DPASGD(local(), ring(SILOS)), PEOPLE)
    assert result.audit.linear
    np.testing.assert_allclose(result.audit.realised, 1 / SILOS, atol=1e-15)
    assert result.rounds()["weight"][1:].tolist() == [1.0] * 5


# -- what is refused, and configurations ----------------------------------------------------------------------


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match=r"algorithm.mixing: unknown name 'metropoli'; did you mean metropolis\?"):
        DPASGD(local(), mixing="metropoli")
    with pytest.raises(UserError, match=r"algorithm.objective: unknown name 'samples'; allowed: equal, importance"):
        DPASGD(local(), objective="samples")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="fdla is for overlays whose arcs go both ways"):
        rehearse(DPASGD(local(), mixing="fdla"), PEOPLE, 1)


def settings(count: int = 11, **sections: Any) -> config.Settings:
    base: dict[str, Any] = {
        "run": {"rounds": 2, "seed": 3},
        "data": {"name": "digits"},
        "clients": {"count": count},
        "devices": {"name": "fixed", "seconds": 0.05},
        "model": {"name": "linear"},
        "local": {"lr": 0.1},
        "algorithm": {"name": "dpasgd"},
        "engine": {"threads": 1},
    }
    return {**base, **sections}


GAIA = {"underlay": "gaia", "access": "10Gbps"}


def built(**network: Any) -> DPASGD:
    algorithm = config.build(settings(network=network) if network else settings())[0].algorithm
    assert isinstance(algorithm, DPASGD)
    return algorithm


def test_without_a_network_it_is_a_plain_ring() -> None:
    assert (built().overlay, built().network) == (None, None)


@pytest.mark.parametrize("name", ["ring", "star", "mst", "delta_mbst", "cube_path", "matcha", "matcha_plus"])
def test_an_overlay_by_name(name: str) -> None:
    found = built(**GAIA, overlay=name)
    assert found.overlay is not None
    assert found.network is not None
    assert (found.overlay.name, found.network.names[0]) == (name, "Virginia")
    experiment, _, complete = config.build(settings(network={**GAIA, "overlay": name}))
    assert complete["network"]["overlay"] == name
    assert turnout.execute(experiment).rounds()["round"].tolist() == [0, 1, 2]


def test_the_seed_of_the_run_draws_the_overlays() -> None:
    drawn = []
    for seed in (3, 3, 4):
        experiment, _, _ = config.build(settings(run={"seed": seed}, network={**GAIA, "overlay": "matcha"}))
        assert isinstance(experiment.algorithm, DPASGD)
        assert experiment.algorithm.overlay is not None
        drawn.append([experiment.algorithm.overlay.arcs(k).tolist() for k in range(5)])
    assert drawn[0] == drawn[1] != drawn[2]


def test_an_overlay_over_the_clients_own_links() -> None:
    links = {"up": list(np.linspace(1e5, 1e6, 11)), "down": 1e6, "latency": 0.01}
    experiment, _, _ = config.build(settings(links=links, network={"overlay": "star"}))
    assert isinstance(experiment.algorithm, DPASGD)
    assert isinstance(experiment.algorithm.overlay, Star)
    assert experiment.algorithm.overlay.center == 10  # the fastest uplink


def test_an_overlay_from_a_file(tmp_path: Path) -> None:
    star = built(**GAIA, overlay="star", center="Dublin")
    assert star.overlay is not None
    assert star.network is not None
    row = evaluate(star.overlay, star.network, PAPER["sub_inaturalist"])
    write_overlay(tmp_path / "overlay.json", row, star.network.names)
    read = built(**GAIA, overlay=str(tmp_path / "overlay.json")).overlay
    assert isinstance(read, Star)
    assert read.center == star.network.names.index("Dublin")
    write_overlay(tmp_path / "other.json", row, [f"silo {i}" for i in range(11)])
    with pytest.raises(UserError, match=r"network.overlay: .*other.json is for other silos than those of gaia"):
        built(**GAIA, overlay=str(tmp_path / "other.json"))


def test_the_design_knows_the_size_of_a_message() -> None:
    """Small models are best gathered where the latency is least, huge ones where the links are fastest."""
    rates, latency = np.full(5, 1e6), np.full(5, 0.02)
    rates[1], latency[3] = 1e8, 0.0
    links = {"up": rates.tolist(), "down": rates.tolist(), "latency": latency.tolist()}
    centres = []
    for size in (1, 10**7):
        clients = {"count": 5, "model_bytes": size}
        found = config.build(settings(clients=clients, links=links, network={"overlay": "star"}))[0].algorithm
        assert isinstance(found, DPASGD)
        assert isinstance(found.overlay, Star)
        centres.append(found.overlay.center)
    assert centres == [3, 1]


def test_the_design_knows_the_computing() -> None:
    """The best centre is a silo that would be slowest otherwise: it has no link to wait for."""
    devices = {"name": "table", "source": [0.1, 0.1, 5.0, 0.1, 0.1]}
    links = {"latency": 0.02}
    found = config.build(settings(5, devices=devices, links=links, network={"overlay": "star"}))[0].algorithm
    assert isinstance(found, DPASGD)
    assert isinstance(found.overlay, Star)
    assert found.overlay.center == 2


def test_networks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="network: it has 11 silos and there are 7 clients"):
        config.build(settings(7, network=GAIA))
    with pytest.raises(UserError, match=r"network.access: missing, and gaia states none; give one, such as 10Gbps"):
        built(underlay="gaia")
    with pytest.raises(UserError, match=r"network.access: it needs network.underlay"):
        built(access="10Gbps")
    with pytest.raises(UserError, match=r"network.access: 'fast' is not a bandwidth"):
        built(underlay="gaia", access="fast")
    with pytest.raises(UserError, match=r"network.overly: unknown option; did you mean overlay\?"):
        built(overly="ring")


def test_a_network_asked_for_must_have_a_use() -> None:
    with pytest.raises(UserError, match="network: algorithm fedavg has a server, which clients reach over links"):
        config.read("digits", ["network.overlay=mst"])
    assert config.read("digits", ["algorithm.name=dpasgd", "network.overlay=mst"])["network"] == {"overlay": "mst"}
