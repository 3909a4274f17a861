"""Parts in other methods than those they were published with: exact against plain loops, refused in one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from toy_problems import EXACT, EXAMPLE_A, SELDOM, clients, point, simulate, steps

import turnout
from turnout import Algorithm, UserError
from turnout.aggregation.optimisers import OPTIMISERS, Adam, Momentum, Step, Yogi
from turnout.aggregation.remember import LastUpdate
from turnout.aggregation.rules import RULES, CentredClipping, CoordinateMedian, Krum, Mean, NormClipping, TrimmedMean
from turnout.aggregation.weights import WEIGHTS, BySamples, Equal, Normalised, Nova
from turnout.algorithms._algorithm import PARTS
from turnout.config import registry
from turnout.local.modifiers import ControlVariates, Proximal
from turnout.local.serving import FineTuned, GlobalModel, Neighbours
from turnout.server.closing import Buffer

Vec = NDArray[np.float64]
OPTIMA = np.array([[1.0, -2.0, 0.5], [3.0, 1.0, -1.0], [-1.0, 0.0, 2.0], [0.5, 4.0, 1.0]])
IMPORTANCE = np.array(EXAMPLE_A)
LR, STEPS = 0.2, 2


def delta(client: int, received: Vec) -> Vec:
    """What two full-gradient steps change at a client whose loss is |x - optimum|^2 / 2."""
    x = received.copy()
    for _ in range(STEPS):
        x = x - LR * (x - OPTIMA[client])
    return x - received


class PlainAdaptive:
    """Reddi et al., algorithm 2, as printed."""

    def __init__(self, kind: str, lr: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> None:
        self.kind, self.lr, self.beta1, self.beta2, self.tau = kind, lr, beta1, beta2, tau
        self.m, self.v = np.zeros(3), np.full(3, tau**2)

    def __call__(self, model: Vec, change: Vec) -> Vec:
        self.m = self.beta1 * self.m + (1 - self.beta1) * change
        square = change**2
        if self.kind == "adam":
            self.v = self.beta2 * self.v + (1 - self.beta2) * square
        else:
            self.v = self.v - (1 - self.beta2) * square * np.sign(self.v - square)
        return model + self.lr * self.m / (np.sqrt(self.v) + self.tau)


def plain_momentum(beta: float) -> Callable[[Vec, Vec], Vec]:
    velocity = np.zeros(3)

    def step(model: Vec, change: Vec) -> Vec:
        nonlocal velocity
        velocity = beta * velocity + change
        return model + velocity

    return step


def run(algorithm: Algorithm, rounds: int = 4, **options: Any) -> Vec:
    people = clients(OPTIMA, EXAMPLE_A, devices=turnout.clients.devices.table([1.0, 2.0, 3.0, 4.0]), **options)
    return simulate(algorithm, people, rounds, [0.0, 0.0, 0.0]).model.numpy()


def near(found: Vec, expected: Vec) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_buffer_with_a_median_and_adam() -> None:
    """Waiting FedBuff of two, unequal speeds: the first two arrivals flush; both restart on the new model."""
    algorithm = turnout.FedBuff(
        steps(STEPS, LR), buffer_size=2, weight_rule="naive", rule=CoordinateMedian(), optimiser=Adam(0.1)
    )
    model, adam, free_at = np.zeros(3), PlainAdaptive("adam", 0.1), {c: float(c + 1) for c in range(4)}
    received = dict.fromkeys(range(4), model)
    for _ in range(5):
        first = sorted(free_at, key=lambda c: (free_at[c], c))[:2]
        now = max(free_at[c] for c in first)
        rows = [delta(c, received[c]) for c in first]
        model = adam(model, np.array([statistics.median(column) for column in zip(*rows, strict=True)]))
        for c in first:
            received[c], free_at[c] = model, now + c + 1
    near(run(algorithm, 5), model)


def test_safa_with_yogi() -> None:
    """Everybody in time: SAFA's proposal is the average of what all returned, and Yogi moves towards it."""
    algorithm = turnout.Safa(steps(STEPS, LR), fraction=1.0, optimiser=Yogi(0.1))
    model, yogi = np.zeros(3), PlainAdaptive("yogi", 0.1)
    for _ in range(4):
        proposed = sum(IMPORTANCE[c] * (model + delta(c, model)) for c in range(4))
        model = yogi(model, proposed - model)
    near(run(algorithm), model)


def test_memory_with_momentum() -> None:
    algorithm = turnout.algorithms.Mifa(steps(STEPS, LR), turnout.samplers.Full(), optimiser=Momentum(beta=0.5))
    model, move = np.zeros(3), plain_momentum(0.5)
    for _ in range(4):
        model = move(model, sum(IMPORTANCE[c] * delta(c, model) for c in range(4)))
    near(run(algorithm), model)


def test_memory_in_a_buffer_counts_everybody() -> None:
    """FedBuff that remembers: whoever is silent counts with the last update, each client its importance."""
    algorithm = turnout.FedBuff(steps(STEPS, LR), buffer_size=2, remember=LastUpdate())
    model, free_at, memory = np.zeros(3), {c: float(c + 1) for c in range(4)}, np.zeros((4, 3))
    received = dict.fromkeys(range(4), model)
    for _ in range(5):
        first = sorted(free_at, key=lambda c: (free_at[c], c))[:2]
        now = max(free_at[c] for c in first)
        for c in first:
            memory[c] = delta(c, received[c])
        model = model + IMPORTANCE @ memory
        for c in first:
            received[c], free_at[c] = model, now + c + 1
    near(run(algorithm, 5), model)


def test_krum_in_fedavg() -> None:
    algorithm = turnout.FedAvg(steps(STEPS, LR), turnout.samplers.Full(), rule=Krum(liars=1))
    model = np.zeros(3)
    for _ in range(3):
        rows = [delta(c, model) for c in range(4)]
        scores = [min(float(((a - b) ** 2).sum()) for j, b in enumerate(rows) if j != i) for i, a in enumerate(rows)]
        model = model + rows[int(np.argmin(scores))]
    near(run(algorithm, 3), model)


def test_a_rule_in_every_region() -> None:
    """HierFAVG of two regions of three: each edge takes the median of what its clients changed."""
    optima, regions = np.vstack([OPTIMA, [[2.0, 2.0, 2.0], [-3.0, 1.0, 0.0]]]), np.array([0, 0, 0, 1, 1, 1])
    people = clients(optima, "equal", regions=regions)
    work = turnout.algorithms.HierFAVG(
        steps(STEPS, LR), deadline=100.0, fraction=1.0, cloud_interval=2, rule=CoordinateMedian()
    )
    edges = [np.zeros(3), np.zeros(3)]
    for number in range(3):
        for region in (0, 1):
            moved = [(1 - (1 - LR) ** STEPS) * (optimum - edges[region]) for optimum in optima[regions == region]]
            edges[region] = edges[region] + np.median(moved, axis=0)
        model = (edges[0] + edges[1]) / 2
        edges = [model, model] if number % 2 else edges
    near(simulate(work, people, 3, [0.0, 0.0, 0.0]).model.numpy(), model)


@pytest.mark.parametrize("kind", ["IFCA", "ClusteredFL"])
def test_a_rule_in_every_cluster(kind: str) -> None:
    """Of one cluster it is that of FedAvg."""
    work, options = steps(STEPS, LR), {"clusters": 1} if kind == "IFCA" else {"tol_1": 1e-9}
    given = {"sampler": turnout.samplers.Full()} if kind == "IFCA" else {}
    clustered = getattr(turnout.algorithms, kind)(work, rule=CoordinateMedian(), **options, **given)
    near(run(clustered), run(turnout.FedAvg(work, turnout.samplers.Full(), rule=CoordinateMedian())))


def test_a_bound_of_norms_is_one_of_updates() -> None:
    """Where models are averaged, too: everybody in time, SAFA is FedAvg."""
    work, start = steps(STEPS, LR), [5.0, 5.0, 5.0]
    people = clients(OPTIMA, EXAMPLE_A)
    cache = simulate(turnout.Safa(work, fraction=1.0, rule=NormClipping(0.5)), people, 4, start).model.numpy()
    model = np.array(start)
    for _ in range(4):
        rows = [delta(c, model) for c in range(4)]
        model = model + sum(
            p * row * min(1.0, 0.5 / np.linalg.norm(row)) for p, row in zip(IMPORTANCE, rows, strict=True)
        )
    near(cache, model)


def test_every_region_has_a_last_result_of_its_own(tmp_path: Any) -> None:
    """It moves a little from there in every round, also after a resume."""
    people = clients(OPTIMA, EXAMPLE_A, regions=np.array([0, 0, 1, 1]))

    def result(rounds: int, **options: Any) -> torch.Tensor:
        method = turnout.algorithms.HierFAVG(steps(STEPS, LR), deadline=100.0, fraction=1.0, rule=CentredClipping(0.1))
        plan = turnout.Experiment(point([0.0] * 3), people, method, 0, turnout.Stopping(rounds), SELDOM, EXACT)
        return turnout.execute(plan, **options).model

    whole = result(6)
    result(3, folder=tmp_path / "run", checkpoint_every=1)
    assert torch.equal(whole, result(6, folder=tmp_path / "run", checkpoint_every=1, resume=True))
    last, model = np.zeros((2, 3)), np.zeros((2, 3))
    for _ in range(6):
        for region, members in enumerate(([0, 1], [2, 3])):
            away = [delta(c, model[region]) - last[region] for c in members]
            shares = IMPORTANCE[members] / IMPORTANCE[members].sum()
            clipped = (p * row * min(1.0, 0.1 / np.linalg.norm(row)) for p, row in zip(shares, away, strict=True))
            last[region] += sum(clipped)
            model[region] += last[region]
    near(whole.numpy(), 0.7 * model[0] + 0.3 * model[1])


@pytest.mark.parametrize("kind", ["normalised", "fednova"])
def test_weights_of_another_method(kind: str) -> None:
    """Asynchronous FedAvg at each arrival, whose own weights are all 1."""
    algorithm = turnout.AsyncFedAvg(steps(STEPS, LR), weight_rule="naive", server_lr=0.5, weigh=WEIGHTS[kind]())
    plain = turnout.AsyncFedAvg(steps(STEPS, LR), weight_rule="naive", server_lr=0.5)
    near(run(algorithm, 6), run(plain, 6))  # one update a round, of the same steps: what remains is 1


def test_equal_weights_in_fedavg() -> None:
    algorithm = turnout.FedAvg(steps(STEPS, LR), turnout.samplers.Full(), weigh=Equal())
    model = np.zeros(3)
    for _ in range(3):
        model = model + sum(0.25 * delta(c, model) for c in range(4))
    near(run(algorithm, 3), model)


def test_presets_are_their_parts() -> None:
    """A method that is FedAvg with one part, and FedAvg with that part."""
    work, full = steps(STEPS, LR), turnout.samplers.Full()
    pairs: list[tuple[Algorithm, Algorithm]] = [
        (turnout.FedAdam(work, full), turnout.FedAvg(work, full, optimiser=Adam(0.01))),
        (turnout.algorithms.FedYogi(work, full), turnout.FedAvg(work, full, optimiser=Yogi(0.01))),
        (turnout.algorithms.FedAvgM(work, full), turnout.FedAvg(work, full, optimiser=Momentum(1.0))),
        (turnout.algorithms.RobustMean(work, full), turnout.FedAvg(work, full, rule=CoordinateMedian())),
        (turnout.algorithms.FedNova(work, full), turnout.FedAvg(work, full, weigh=Nova())),
        (turnout.algorithms.Mifa(work, full), turnout.FedAvg(work, full, remember=LastUpdate())),
        (turnout.algorithms.Scaffold(work, full), turnout.FedAvg(work.modified(ControlVariates()), full)),
    ]
    for preset, parts in pairs:
        assert np.array_equal(run(preset), run(parts)), type(preset).__name__


def test_the_control_held_is_that_of_all_clients() -> None:
    """Also where updates are dropped, whose clients have changed their own: else the fixed point would move."""
    work = steps(STEPS, LR, modifiers=[ControlVariates()])
    algorithm = turnout.FedBuff(work, buffer_size=2, max_staleness=0)
    people = clients(OPTIMA, EXAMPLE_A, devices=turnout.clients.devices.table([1.0, 2.0, 3.0, 4.0]))
    server = simulate(algorithm, people, 7, [0.0, 0.0, 0.0]).server
    own = server.store.get({"control": (3,)}, np.arange(4))["control"].numpy()
    near(server.held.tensors["control"].numpy(), IMPORTANCE @ own)
    assert np.abs(own).min() > 0


@pytest.mark.parametrize("kind", sorted(OPTIMISERS))
def test_every_optimiser_in_an_asynchronous_method_resumes(kind: str, tmp_path: Any) -> None:
    options = {"radius": 0.3} if kind == "projected" else {}
    people = clients(OPTIMA, EXAMPLE_A, devices=turnout.clients.devices.table([1.0, 2.0, 3.0, 4.0]))

    def experiment(rounds: int) -> turnout.Experiment:
        algorithm = turnout.FedFix(
            steps(STEPS, LR), window=2.0, optimiser=OPTIMISERS[kind](**options), rule=TrimmedMean(0.3)
        )
        start = point([0.0, 0.0, 0.0])
        return turnout.Experiment(start, people, algorithm, 0, turnout.Stopping(rounds), SELDOM, EXACT)

    whole = turnout.execute(experiment(6))
    turnout.execute(experiment(3), tmp_path / "run", checkpoint_every=1)
    again = turnout.execute(experiment(6), tmp_path / "run", checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, again.model)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a step twice": (
        lambda: turnout.FedAvg(steps(1, 0.1), server_lr=0.5, optimiser=Step(0.5)),
        "algorithm.server_lr: 0.5, which would change nothing beside the optimiser given",
    ),
    "weights of a memory": (
        lambda: turnout.FedAvg(steps(1, 0.1), weigh=Equal(), remember=LastUpdate()),
        "weigh: with `remember` every client counts its importance",
    ),
    "one weight": (
        lambda: turnout.AsyncFedAvg(steps(1, 0.1), weigh=BySamples()),
        "weigh: AsyncFedAvg has one update a round, of which BySamples makes the same",
    ),
    "one row": (
        lambda: turnout.AsyncFedAvg(steps(1, 0.1), rule=Krum()),
        "rule: AsyncFedAvg has one update a round, of which Krum makes the same",
    ),
    "edges": (
        lambda: turnout.algorithms.HierFAVG(steps(1, 0.1), optimiser=Adam()),
        "optimiser: HierFAVG has a model of its own in every region",
    ),
    "no server": (lambda: turnout.algorithms.DPASGD(steps(1, 0.1), rule=Krum()), "rule: DPASGD has no server"),
    "control of several models": (
        lambda: run(turnout.algorithms.ClusteredFL(steps(1, 0.1, modifiers=[ControlVariates()]))),
        "local.modifiers: ControlVariates follows the one model that a server sends, and ClusteredFL has as many",
    ),
    "control nobody hears": (
        lambda: run(turnout.Safa(steps(1, 0.1, modifiers=[ControlVariates()]))),
        "ControlVariates follows the one model that a server sends, and Safa lets clients go on without hearing",
    ),
    "another thing": (
        lambda: turnout.FedAvg(steps(1, 0.1), rule=Adam()),  # type: ignore[arg-type]
        "rule: Adam is no turnout.aggregation.rules",
    ),
    "buckets of a mean": (lambda: Mean(buckets=2), "rule.buckets: 2, but the mean of buckets' means is the mean"),
    "equally many steps": (
        lambda: turnout.algorithms.L2SGD(steps(1, 0.1), weigh=Nova()),
        "weigh: L2SGD has equally many steps of all, of which Nova makes the same",
    ),
    "another loop": (
        lambda: turnout.FedAvg(steps(1, 0.1), wait=Buffer(2)),
        "wait: Buffer is for a method that lets clients begin again as they deliver (fedbuff), and FedAvg invites",
    ),
    "a rate": (lambda: Adam(0.0), "optimiser.lr: 0.0 must be above 0"),
    "a share": (lambda: TrimmedMean(0.5), "rule.trim: 0.5 must be at least 0 and below 0.5"),
    "passes": (lambda: FineTuned(0), "serve.epochs: 0 must be at least 1"),
    "neighbours": (lambda: Neighbours(k=0), "serve.k: 0"),
    "a rule and noise": (
        lambda: turnout.simulate(
            turnout.Task(turnout.models.linear(2, 2)),
            turnout.Population.of(turnout.datasets.load("synthetic", clients=3, dims=2, classes=2), 3, "natural"),
            turnout.FedAvg(steps(1, 0.1), turnout.samplers.Full(), rule=Krum()),
            1,
            privacy=turnout.Privacy(noise=1.0, clip=1.0),
        ),
        "privacy.noise: it hides the sum of a step, and `rule`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_part_without_a_use_is_one_sentence(case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises(UserError) as found:
        make()
    assert sentence in str(found.value) and "\n" not in str(found.value)


def test_what_is_served_is_a_part() -> None:
    """Fine-tuning over FedProx, and the global model in FedAvg+, change what clients are measured with alone."""
    data = turnout.datasets.load("synthetic", clients=4, dims=3, classes=3, max_samples=30)
    people = turnout.Population.of(data, 4, "natural")
    task, work = turnout.Task(turnout.models.linear(3, 3)), turnout.LocalSGD(0.5, batch_size=8)

    def measured(algorithm: Algorithm) -> turnout.Result:
        return turnout.simulate(task, people, algorithm, 3)

    plain, tuned = measured(turnout.FedProx(work)), measured(turnout.FedProx(work, serve=FineTuned(2)))
    plus = measured(turnout.algorithms.FedProxPlus(work, tuning_epochs=2))
    assert torch.equal(plain.model, tuned.model) and torch.equal(tuned.model, plus.model)
    assert tuned.measures == plus.measures != plain.measures
    near_by = measured(turnout.FedProx(work, serve=Neighbours(k=3)))
    assert near_by.measures != plain.measures
    back = measured(turnout.algorithms.FedAvgPlus(work, serve=GlobalModel()))
    assert back.measures == measured(turnout.FedAvg(work)).measures


def test_every_part_is_known_by_name() -> None:
    """Also in Python: none is dropped, and one that needs an option says which."""
    assert set(RULES) > {"krum", "mean"} and BySamples in WEIGHTS.values() and Normalised in WEIGHTS.values()
    method: Any = partial(turnout.FedAvg, steps(STEPS, LR))
    for part, (_, known) in PARTS.items():
        for name, kind in known.items():
            try:
                made = method(**{part: name})
            except UserError as error:
                assert "\n" not in str(error) and str(error).startswith(f"{part}: ")
                continue
            assert type(getattr(made, part)) is kind
    with pytest.raises(UserError, match=r"^rule: norm_clipping needs radius; write NormClipping\(radius=\.\.\.\)"):
        method(rule="norm_clipping")


@pytest.mark.parametrize("part", [*PARTS, "local", "sampler"])
def test_what_is_no_such_part_is_refused(part: str) -> None:
    method: Any = turnout.FedAvg
    for value in ("kurm", 3, object()):
        with pytest.raises(UserError, match=f"^{part}: "):
            method(**{"local": steps(STEPS, LR), part: value})


@pytest.mark.parametrize("kind", ["algorithm", "sampler"])
def test_no_class_has_two_bases(kind: str) -> None:
    """Methods differ by parts; what two share is a part or a function, never a second base."""
    for name in registry.names(kind):
        for made in registry.find(kind, name).__mro__:
            ours = [base.__name__ for base in made.__bases__ if base.__module__.startswith("turnout.")]
            assert len(ours) <= 1, f"{made.__name__} has the bases {', '.join(ours)}"


def test_presets_are_fedavg_with_a_part() -> None:
    work = steps(STEPS, LR)
    assert turnout.algorithms.FedProx(work, mu=0.3).own_modifiers() == (Proximal(0.3),)
    assert turnout.algorithms.RobustFedProx(work, mu=0.3).own_modifiers() == (Proximal(0.3),)
    both = turnout.algorithms.FedProxPlus(work, mu=0.3, tuning_epochs=2)
    assert both.own_modifiers() == (Proximal(0.3),) and both.own_serve() == FineTuned(2)
    with pytest.raises(UserError, match=r"algorithm.tuning_epochs: 3, .* nothing beside the serve given"):
        turnout.algorithms.FedAvgPlus(work, tuning_epochs=3, serve=GlobalModel())
