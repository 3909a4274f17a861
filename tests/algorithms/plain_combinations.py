"""Eight methods made of parts of several papers, each as a plain loop over full-gradient steps in float64.

`COMBINATIONS` has the words of the command line, and a loop that gives the model of so many rounds. No loop uses
anything of the library but its data and its random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional as F

import turnout
from turnout.core import random

N, DIMS, CLASSES, SEED, LR, STEPS = 5, 3, 3, 7, 0.5, 2
P = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1], dtype=torch.float64)
SECONDS = [1.0, 2.0, 3.0, 4.0, 5.0]
REGIONS = np.array([0, 0, 1, 1, 1])
RADIUS, MU, BOUND = 0.3, 0.7, 0.2
CONFIGURATION = f"""
[run]
seed = {SEED}
[data]
name = "synthetic"
clients = {N}
dims = {DIMS}
classes = {CLASSES}
max_samples = 20
test_fraction = 0.0
[partition]
name = "natural"
[clients]
count = {N}
test = "none"
importance = {P.tolist()}
regions = {REGIONS.tolist()}
[devices]
name = "table"
source = {SECONDS}
[model]
name = "linear"
[local]
lr = {LR}
steps = {STEPS}
batching = "full"
[engine]
threads = 1
precision = "float64"
"""
OWN_MODIFIER = '''
from dataclasses import dataclass
from turnout.local import Modifier

@dataclass(frozen=True)
class Steep(Modifier):
    """The gradient at the worst point within a radius."""

    gradients = 2
    radius: float = 0.05

    def gradient(self, slope, params, kept, batch):
        uphill = slope(params)
        return slope(params + self.radius * uphill / uphill.norm())
'''


class Clients:
    """Their samples, and what they do."""

    def __init__(self) -> None:
        data = turnout.datasets.load(
            "synthetic", clients=N, dims=DIMS, classes=CLASSES, max_samples=20, test_fraction=0.0
        )
        assert data.groups is not None
        self.rows = [np.flatnonzero(np.asarray(data.groups) == client) for client in range(N)]
        self.inputs = [data.inputs[rows].double() for rows in self.rows]
        self.targets = [data.targets[rows] for rows in self.rows]

    def outputs(self, model: Tensor, inputs: Tensor) -> Tensor:
        return inputs @ model[: CLASSES * DIMS].view(CLASSES, DIMS).T + model[CLASSES * DIMS :]

    def loss(self, client: int, model: Tensor) -> Tensor:
        return F.cross_entropy(self.outputs(model, self.inputs[client]), self.targets[client])

    def slope(self, client: int, model: Tensor) -> Tensor:
        with torch.enable_grad():
            at = model.clone().requires_grad_(True)
            (found,) = torch.autograd.grad(self.loss(client, at), at)
        return found

    def delta(self, client: int, received: Tensor, mu: float = 0.0, radius: float = 0.0, more: float | Tensor = 0.0):  # type: ignore[no-untyped-def]
        """What a job changes: steps with a proximal term, from the worst point near, with something more."""
        x = received
        for _ in range(STEPS):
            slope = self.slope(client, x)
            if radius:
                slope = self.slope(client, x + radius * slope / slope.norm())
            x = x - LR * (slope + mu * (x - received) + more)
        return x - received


@dataclass
class Adaptive:
    """Reddi et al., algorithm 2, as printed."""

    kind: str
    lr: float
    m: Tensor | float = 0.0
    v: Tensor | float = 1e-6

    def __call__(self, model: Tensor, change: Tensor) -> Tensor:
        self.m, square = 0.9 * self.m + 0.1 * change, change**2
        sign = 1.0 if self.kind == "adam" else torch.sign(self.v - square)
        self.v = 0.99 * self.v + 0.01 * square if self.kind == "adam" else self.v - 0.01 * square * sign
        return model + self.lr * self.m / (self.v**0.5 + 1e-3)


@dataclass
class Setting:
    """What a loop is given: the first model, how many rounds, and who was asked in each, by the record of the run."""

    model: Tensor
    rounds: int
    folder: Path
    people: Clients = field(default_factory=Clients)

    def asked(self) -> list[list[int]]:
        table = pq.read_table(self.folder / "jobs").to_pydict()
        pairs = sorted(zip(table["round"], table["client"], strict=True))
        return [[client for number, client in pairs if number == round_] for round_ in range(1, self.rounds + 1)]


def fedbuff_adam_median_proximal(given: Setting) -> Tensor:
    """The first two arrivals flush; both begin again on the new model."""
    model, adam, ends = given.model, Adaptive("adam", 0.1), dict(enumerate(SECONDS))
    received = dict.fromkeys(range(N), model)
    for _ in range(given.rounds):
        first = sorted(ends, key=lambda c: (ends[c], c))[:2]
        now = max(ends[c] for c in first)
        rows = [given.people.delta(c, received[c], MU) for c in first]
        model = adam(model, (rows[0] + rows[1]) / 2)  # the median of two
        for c in first:
            received[c], ends[c] = model, now + SECONDS[c]
    return model


def fedfix_control_variates(given: Setting) -> Tensor:
    """Windows of two seconds; weights ceil(T_i / window) p_i; c = sum_i p_i c_i of all that has arrived."""
    model, window = given.model, 2.0
    c, own = torch.zeros_like(model), [torch.zeros_like(model) for _ in range(N)]
    ends, sent = dict(enumerate(SECONDS)), dict.fromkeys(range(N), (model, c))
    for number in range(given.rounds):
        close = (number + 1) * window
        arrived = [client for client in range(N) if ends[client] <= close]
        change, control = torch.zeros_like(model), torch.zeros_like(model)
        for client in arrived:
            received, then = sent[client]
            delta = given.people.delta(client, received, more=then - own[client])
            new = own[client] - then - delta / (STEPS * LR)
            change += float(np.ceil(SECONDS[client] / window)) * P[client] * delta
            control += P[client] * (new - own[client])
            own[client] = new
        model, c = model + change, c + control
        for client in arrived:
            ends[client], sent[client] = close + SECONDS[client], (model, c)
    return model


def safa_yogi(given: Setting) -> Tensor:
    """A quota of two, nobody picked twice in a row while others answer; who lags by more than one round starts anew."""
    model, yogi, now = given.model, Adaptive("yogi", 0.1), 0.0
    cache, version = [model] * N, np.zeros(N, int)
    picked: list[int] = []
    ends: dict[int, float] = {}
    received: dict[int, Tensor] = {}
    inbox: list[int] = []
    for number in range(given.rounds):
        for c in inbox:  # arrived, not picked: past the aggregation
            cache[c], version[c] = received[c] + given.people.delta(c, received[c]), number
        inbox = []
        for c in np.flatnonzero(number - version > 1).tolist():
            ends.pop(c, None)
            cache[c] = model
        for c in set(range(N)) - ends.keys():
            version[c], received[c], ends[c] = number, model, now + SECONDS[c]
        last, picked = picked, []
        while len(picked) < 2:
            c = min(ends, key=lambda c: (ends[c], c))
            now = ends.pop(c)
            (inbox if c in last else picked).append(c)
        for c in picked:
            cache[c] = received[c] + given.people.delta(c, received[c])
        proposed = sum((P[c] * cache[c] for c in range(N)), torch.zeros_like(model))
        model = yogi(model, proposed - model)
        version[picked] = number + 1
    return model


def fedavg_afl_krum_own(given: Setting) -> Tensor:
    """Goetz et al.: half are left out, the others drawn by exp(0.5 v), v = sqrt(n) loss; Krum takes one of four."""
    model, values = given.model, np.full(N, np.inf)
    for number in range(given.rounds):
        draws = random.uniform(random.key(SEED, "sampling afl", number, np.arange(N)), 2)[:, 0]
        new = np.isinf(values)
        out = np.lexsort((draws, values))[: int(0.2 * N)]
        kept = [c for c in range(N) if new[c] or c not in out]
        worth = np.where(new, 0.0, 0.5 * values) - np.log(-np.log(draws))
        chosen = sorted(sorted(kept, key=lambda c: (not new[c], -worth[c]))[:4])
        rows = [given.people.delta(c, model, radius=RADIUS) for c in chosen]
        for c in chosen:
            values[c] = np.sqrt(len(given.people.rows[c])) * float(given.people.loss(c, model))
        nearest = [min(float((a - b).square().sum()) for b in rows if b is not a) for a in rows]
        model = model + rows[int(np.argmin(nearest))]
    return model


REFERENCE = [0.5, -1.0, 0.2, 1.5, 0.3, -0.7, -0.4, 0.8, 1.1, 0.0, -0.6, 0.9]


def fedprof_adam(given: Setting) -> Tensor:
    """Three draws by exp(-2 divergence of the outputs' moments from the reference's); who is drawn counts p."""
    model, adam, reference = given.model, Adaptive("adam", 0.1), torch.tensor(REFERENCE).double().view(-1, DIMS)

    def apart(client: int, at: Tensor) -> float:
        own, there = (given.people.outputs(at, x) for x in (given.people.inputs[client], reference))
        (m, v), (m0, v0) = ((x.mean(0), x.var(0, correction=0)) for x in (own, there))
        return float(((v0 / v).log() / 2 + (v + (m - m0) ** 2) / (2 * v0) - 0.5).mean())

    away = np.array([apart(c, model) for c in range(N)])
    for number in range(given.rounds):
        chances = np.exp(-2.0 * away) / np.exp(-2.0 * away).sum()
        draws = random.uniform(random.key(SEED, "sampling", number), 3)
        drawn = sorted({int(np.searchsorted(np.cumsum(chances), u, side="right")) for u in draws})
        change = sum((P[c] * given.people.delta(c, model) for c in drawn), torch.zeros_like(model))
        for c in drawn:
            away[c] = apart(c, model)
        model = adam(model, change)
    return model


def hierfavg_proximal_clip(given: Setting) -> Tensor:
    """Edges average what clients changed, clipped; the cloud averages the edges in every second round."""
    edges = [given.model, given.model]
    for number in range(given.rounds):
        for region in (0, 1):
            members = np.flatnonzero(region == REGIONS).tolist()
            moved = torch.zeros_like(given.model)
            for c in members:
                delta = given.people.delta(c, edges[region], MU)
                moved += P[c] / P[members].sum() * delta * min(1.0, BOUND / float(delta.norm()))
            edges[region] = edges[region] + moved
        model = sum((P[r == REGIONS].sum() * edges[r] for r in (0, 1)), torch.zeros_like(given.model))
        if number % 2 == 1:
            edges = [model, model]
    return model


def mifa_momentum(given: Setting) -> Tensor:
    """Everybody counts its last update; the server keeps half of its speed."""
    model, speed = given.model, torch.zeros_like(given.model)
    memory = [torch.zeros_like(model) for _ in range(N)]
    for asked in given.asked():
        for c in asked:
            memory[c] = given.people.delta(c, model)
        speed = 0.5 * speed + sum((P[c] * memory[c] for c in range(N)), torch.zeros_like(model))
        model = model + speed
    return model


def knn_per_proximal(given: Setting) -> Tensor:
    model = given.model
    for _ in range(given.rounds):
        model = model + sum((P[c] * given.people.delta(c, model, MU) for c in range(N)), torch.zeros_like(model))
    return model


def served_loss(model: Tensor) -> float:
    """Of kNN-Per's clients on their training samples: 0.4 of the votes of the three nearest, 0.6 of the model."""
    people, losses = Clients(), []
    for x, y in zip(people.inputs, people.targets, strict=True):
        far, near = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").topk(3, largest=False)
        vote = torch.exp(-far) / torch.exp(-far).sum(1, keepdim=True)
        local = torch.zeros(len(x), CLASSES, dtype=torch.float64).scatter_add(1, y[near], vote)
        mixed = 0.4 * local + 0.6 * people.outputs(model, x).softmax(1)
        losses.append(-mixed.gather(1, y[:, None]).log().mean())
    return float((P * torch.stack(losses)).sum())


@dataclass(frozen=True)
class Combination:
    """Words after the configuration, the loop, and how many rounds (an even number: half of them come first)."""

    words: Sequence[str]
    loop: Callable[[Setting], Tensor]
    rounds: int = 6


_PROXIMAL = ("local.modifiers=proximal", f"local.proximal.mu={MU}")
COMBINATIONS = {
    "fedbuff + adam + median + proximal": Combination(
        ("algorithm.name=fedbuff", "algorithm.buffer_size=2", "algorithm.weight_rule=naive", "optimiser.name=adam",
         "optimiser.lr=0.1", "rule.name=coordinate_median", *_PROXIMAL),
        fedbuff_adam_median_proximal,
    ),
    "fedfix + control variates": Combination(
        ("algorithm.name=fedfix", "algorithm.window=2.0", "local.modifiers=control_variates"),
        fedfix_control_variates, 8,
    ),
    "safa + yogi": Combination(
        ("algorithm.name=safa", "algorithm.fraction=0.4", "algorithm.lag_tolerance=1", "optimiser.name=yogi",
         "optimiser.lr=0.1"),
        safa_yogi, 8,
    ),
    "fedavg + afl + krum + own modifier": Combination(
        ("algorithm.name=fedavg", "sampler.name=afl", "sampler.clients_per_round=4", "sampler.drop=0.2",
         "sampler.temperature=0.5", "sampler.explore=0.0", "rule.name=krum", "local.modifiers=steep_modifier.py:Steep",
         f"local.steep.radius={RADIUS}"),
        fedavg_afl_krum_own,
    ),
    "fedprof + adam": Combination(
        ("algorithm.name=fedprof", "algorithm.clients_per_round=3", "algorithm.preference=2.0",
         f"algorithm.reference={REFERENCE}", "optimiser.name=adam", "optimiser.lr=0.1"),
        fedprof_adam,
    ),
    "hierfavg + proximal + clip": Combination(
        ("algorithm.name=hierfavg", "algorithm.fraction=1.0", "algorithm.deadline=100", "algorithm.cloud_interval=2",
         "local.modifiers=proximal,clip", f"local.proximal.mu={MU}", f"local.clip.norm={BOUND}"),
        hierfavg_proximal_clip,
    ),
    "mifa + momentum": Combination(
        ("algorithm.name=mifa", "sampler.name=uniform", "sampler.clients_per_round=2", "optimiser.name=momentum",
         "optimiser.beta=0.5"),
        mifa_momentum,
    ),
    "knn_per + proximal": Combination(
        ("algorithm.name=knn_per", "sampler.name=full", "algorithm.fraction=0.0", "algorithm.interpolation=0.4",
         "algorithm.k=3", *_PROXIMAL),
        knn_per_proximal,
    ),
}  # fmt: skip
