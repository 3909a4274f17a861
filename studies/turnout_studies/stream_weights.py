"""Do the published weights for data streams minimise the published bound? No training: the bound alone.

Marfoq, Neglia, Kameni, Vidal, "Federated learning for data streams", AISTATS 2023; Marfoq's thesis, tables 4.3 to 4.5,
figures 4.2, 4.3 and G.22.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from turnout.core.random import FloatArray, generator, key
from turnout.engine.plan import Plan
from turnout.theory.streams import (
    BoolArray,
    historical,
    historical_threshold,
    optimal_importance,
    stream_bound,
    uniform,
)
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

THESIS = "Marfoq, thesis, section 4.3"
APPENDIX = "Marfoq, thesis, appendix G.4.5"
DERIVED = "follows from Marfoq, thesis, corollary 4.3.5"
NU = (0.05, 0.2, 0.5)  # of the tables
GROUP = 25  # historical clients, and fresh ones, in the figures
RATIO = 0.15  # c2 / c1 of CIFAR-10
RATIOS = tuple(np.geomspace(0.02, 2, 11).tolist())
LARGE = 100.0  # a ratio
NONE = 1e-9  # of a difference that is none


@dataclass(frozen=True)
class Row:
    """Of the tables, for the three nu: fresh clients, c2 / c1, and what historical clients count together."""

    fresh: tuple[int, int, int]
    ratios: tuple[float, float, float]
    weights: tuple[float, float, float]


PUBLISHED = {
    "synthetic": Row((10, 10, 10), (0.094, 0.092, 0.085), (0.06, 0.20, 0.50)),
    "cifar10": Row((25, 25, 25), (0.150, 0.150, 0.150), (0.12, 0.45, 0.95)),
    "cifar100": Row((25, 25, 25), (0.284, 0.284, 0.284), (0.08, 0.32, 0.69)),
    "femnist": Row((3417, 2878, 1798), (0.001, 0.001, 0.001), (1.0, 1.0, 1.0)),
    "shakespeare": Row((870, 733, 458), (0.064, 0.064, 0.095), (1.0, 1.0, 1.0)),
}


def equal_groups(nu: float, historical_clients: int, fresh_clients: int) -> tuple[FloatArray, BoolArray]:
    """n and who is fresh: historical clients hold a share nu of the samples, and clients of a group equally many."""
    fresh = np.arange(historical_clients + fresh_clients) >= historical_clients
    return np.where(fresh, (1 - nu) / max(fresh_clients, 1), nu / max(historical_clients, 1)), fresh


@dataclass(frozen=True)
class Size:
    points: int = 19  # values of nu in the figures


def weights(dataset: str) -> Measures:
    """What historical clients count together in the optimum, for the nu of the tables."""
    row = PUBLISHED[dataset]
    worlds = (equal_groups(nu, 1, fresh) for nu, fresh in zip(NU, row.fresh, strict=True))
    optima = (optimal_importance(*world, ratio) for world, ratio in zip(worlds, row.ratios, strict=True))
    return {"weights": [float(p[0]) for p in optima]}


def figures(points: int, shares: str, seed: int) -> Measures:
    """Over nu: weights at the ratios and around the threshold, and the bounds at the ratio of CIFAR-10."""
    nu = np.linspace(0.05, 0.95, points)
    each = [_figure(*_world(float(share), shares, seed)) for share in nu]

    def ahead(share: float) -> float:
        n, fresh = _world(share, shares, seed)
        old, alike = (stream_bound(p, n, fresh, 0, 1, RATIO) for p in (historical(n, fresh), uniform(n, fresh)))
        return alike - old

    return {"crossing": float(brentq(ahead, nu[0], nu[-1])), **{name: [row[name] for row in each] for name in each[0]}}


def _world(nu: float, shares: str, seed: int) -> tuple[FloatArray, BoolArray]:
    """n and who is fresh; inside a group `equal` shares, or some `drawn` from Dirichlet(1)."""
    n, fresh = equal_groups(nu, GROUP, GROUP)
    if shares == "drawn":
        old, new = generator(key(seed, "stream shares")).dirichlet(np.ones(GROUP), 2)
        n = np.concatenate([nu * old, (1 - nu) * new])
    return n, fresh


def _figure(n: FloatArray, fresh: BoolArray) -> Measures:
    def share(ratio: float) -> float:
        return float(optimal_importance(n, fresh, ratio)[~fresh].sum())

    threshold = historical_threshold(n, fresh)
    least = stream_bound(optimal_importance(n, fresh, RATIO), n, fresh, 0, 1, RATIO)
    return {
        "shares": [share(ratio) for ratio in RATIOS],
        "below": share(0.999 * threshold),
        "beyond": share(1.001 * threshold),
        "from_uniform": float(np.abs(optimal_importance(n, fresh, LARGE) - n).sum()),
        "uniform_gap": stream_bound(uniform(n, fresh), n, fresh, 0, 1, RATIO) - least,
        "historical_gap": stream_bound(historical(n, fresh), n, fresh, 0, 1, RATIO) - least,
    }


# -- what the claims look at ------------------------------------------------------------------------------------


def _rise(name: str, axis: int, sign: int = 1) -> Callable[[Measures], float]:
    """The largest step up along an axis of a measure; `sign` -1: down."""
    return lambda measures: float((sign * np.diff(measures[name], axis=axis)).max())


def _error(dataset: str) -> Callable[[Results], FloatArray]:
    printed = np.array(PUBLISHED[dataset].weights)
    return lambda results: results.each(lambda found: float(np.abs(found["weights"] - printed).max()), dataset=dataset)


def _turns(measures: Measures) -> float:
    """How often the gap of Uniform goes from rising to falling, or back."""
    return float(np.count_nonzero(np.diff(np.sign(np.diff(measures["uniform_gap"])))))


def _claims() -> Iterator[Claim]:
    for dataset in PUBLISHED:
        yield Claim(
            f"weights of {dataset}",
            "Tables 4.3 to 4.5: what historical clients count together in the optimum.",
            THESIS,
            "largest |optimum - printed| over nu of 5, 20 and 50 %",
            _error(dataset),
            below=0.005,
        )

    def claim(
        name: str, sentence: str, source: str, measured: str, quantity: Callable[[Measures], float], **rule: float
    ) -> Iterator[Claim]:
        for shares in ("equal", "drawn"):

            def values(results: Results, shares: str = shares) -> FloatArray:
                return results.each(quantity, shares=shares)

            yield Claim(f"{name}, {shares} shares", sentence, source, measured, values, **rule)

    yield from claim(
        "historical for small ratios",
        "For c2 / c1 << 1 the optimum is Historical: up to sqrt(nu / M_f).",
        f"{APPENDIX}; the number {DERIVED}",
        "1 - historical share at 99.9 % of that ratio, largest over nu",
        lambda measures: 1 - min(measures["below"]),
        below=NONE,
    )
    yield from claim(
        "and for no others",
        "Where that ends depends on nu: at sqrt(nu / M_f).",
        f"{APPENDIX}; the number {DERIVED}",
        "1 - historical share at 100.1 % of that ratio, smallest over nu",
        lambda measures: 1 - max(measures["beyond"]),
        above=NONE,
    )
    yield from claim(
        "uniform for large ratios",
        "For c2 / c1 >> 1 the optimum is Uniform.",
        APPENDIX,
        f"|p - n|_1 at a ratio of {LARGE:g}, largest over nu",
        lambda measures: max(measures["from_uniform"]),
        below=0.01,
    )
    yield from claim(
        "less historical as the ratio grows",
        "Figure 4.2: the optimal share of historical clients falls in c2 / c1.",
        THESIS,
        "largest rise from one ratio to the next, over ratios from 0.02 to 2 and nu",
        _rise("shares", 1),
        below=NONE,
    )
    yield from claim(
        "more historical as nu grows",
        "Figure 4.2: the optimal share of historical clients rises in nu.",
        THESIS,
        "largest fall from one nu to the next, over the same",
        _rise("shares", 0, -1),
        below=NONE,
    )
    yield from claim(
        "historical gets nearer",
        "Figure 4.3: psi_hist - psi* falls in nu.",
        THESIS,
        "largest rise from one nu to the next",
        _rise("historical_gap", 0),
        below=NONE,
    )
    yield from claim(
        "uniform goes and comes back",
        "Figure 4.3: psi_unif - psi* rises, then falls in nu.",
        THESIS,
        "how often it turns",
        _turns,
        above=0.5,
        below=1.5,
    )
    yield Claim(
        "crossover",
        "psi_hist is above psi_unif for small nu and below for large; at c2 / c1 = .15 they meet at nu = .25.",
        f"{THESIS}, figure 4.3; the number {DERIVED}",
        "the nu at which they meet",
        lambda results: results.each(lambda found: float(found["crossing"]), shares="equal"),
        above=0.24,
        below=0.26,
    )


class StreamWeights(Study):
    name = "stream_weights"
    title = "Optimal weights for data streams: the published tables and the shape of the bound"
    source = "Marfoq et al., AISTATS 2023; thesis tables 4.3 to 4.5, figures 4.2, 4.3, G.22"
    setting = """\
psi / c1 with the printed c2 / c1, minimised exactly. Tables: all clients of a group have equally many samples. CIFAR:
25 fresh clients. FEMNIST and Shakespeare: of 3,597 and 916 clients a share 1 - nu is fresh. Synthetic: 10 of 11 clients
are fresh, the most there can be. Figures: 25 historical and 25 fresh clients, c2 / c1 = .15 unless it varies, with
equal shares inside a group and with shares drawn from Dirichlet(1). Seeds matter for drawn shares alone.
Other than in the source: nothing is trained; the printed c2 / c1 is taken as it is, since the printed inputs of its
estimate do not give that of CIFAR."""
    small_data = "the same formulas at fewer points"
    sizes = {"small": Size(points=7), "default": Size()}
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        def carry_out(trial: Trial) -> Measures:
            if "dataset" in trial:
                return weights(trial["dataset"])
            return figures(size.points, trial["shares"], trial["seed"])

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        parts = [*({"dataset": name} for name in PUBLISHED), {"shares": "equal"}, {"shares": "drawn"}]
        trials.all([{"seed": seed, **part} for seed in seeds for part in parts])
        return {}


STUDY = StreamWeights()
