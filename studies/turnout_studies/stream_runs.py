"""What studies of data streams share: historical and fresh clients, and every way to weigh them, each at its own rate.

A trial is a share nu of historical samples (or clients), a weighting, a learning rate and a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from turnout.algorithms.stream_fedavg import StreamFedAvg
from turnout.clients.population import Population
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, key, permutation
from turnout.data.dataset import Dataset
from turnout.engine.plan import Plan
from turnout.engine.probe import probe_ratio
from turnout.local.sgd import LocalSGD
from turnout.record.curves import line_chart
from turnout.sampling.full import Full
from turnout.server.simulation import Simulation
from turnout.server.stopping import Evaluation, Stopping
from turnout.task.task import Task
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

OURS = "optimal"
BASELINES = ("fresh", "historical", "uniform")
GRID = (0.2, 0.5, 0.8)  # shares of the historical clients that are tried, besides none and all
THESIS = "Marfoq, thesis, section 4.3.4"
Values = Callable[[Results], FloatArray]


@dataclass(frozen=True)
class Size:
    rounds: int = 100
    clients: int = 50
    batch_size: int = 128
    rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    shares: tuple[float, ...] = (0.05, 0.2, 0.5)  # nu
    ratio: float | None = None  # c2 / c1 that is used; None: the one estimated
    stand_in: bool = False  # generated data in the place of the real ones


def two_pools(
    data: Dataset, clients: int, seed: int, *, share: float, deal: Callable[[Dataset, int, int], Ragged]
) -> Ragged:
    """A share of the samples to the first half of the clients, the rest to the others, each pool dealt alike."""
    order = permutation(key(seed, "pools"), len(data.targets))
    cut, half = round(share * len(order)), clients // 2
    rows = []
    for number, (pool, count) in enumerate(((order[:cut], half), (order[cut:], clients - half))):
        part = Dataset(data.name, data.inputs[pool], data.targets[pool], data.num_classes)
        dealt = deal(part, count, seed + 1000 * number)
        rows += [pool[dealt.row(client)] for client in range(count)]
    return Ragged.from_rows(rows)


class StreamStudy(Study):
    """Subclasses give the task and the population for a share nu."""

    def world(self, share: float, size: Size, data: Path | None, seed: int) -> tuple[Task, Population]:
        raise NotImplementedError

    def local(self, lr: float, size: Size) -> LocalSGD:
        """One epoch a round."""
        return LocalSGD(lr, batch_size=size.batch_size)

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        @lru_cache(2)
        def world(share: float, seed: int) -> tuple[Task, Population]:
            return self.world(share, size, data, seed)

        def carry_out(trial: Trial) -> Measures:
            task, people = world(trial["share"], trial["seed"])
            work, found = self.local(trial["lr"], size), {}
            ratio = None
            if trial["weighting"] == OURS:
                found = {"estimated_ratio": probe_ratio(task, people, work, plan=plan, seed=trial["seed"]).ratio}
                ratio = found["estimated_ratio"] if size.ratio is None else size.ratio
            server = Simulation(
                task,
                people,
                StreamFedAvg(work, Full(), weighting=trial["weighting"], ratio=ratio),
                seed=trial["seed"],
                plan=plan,
                stopping=Stopping(size.rounds),
                evaluation=Evaluation(size.rounds, train=False),
            )
            server.run()
            old = ~people.stream.fresh if people.stream is not None else slice(None)
            found["historical"] = float(server.population.base_importance[old].sum())
            return found | {name: server.measures[f"{name}_accuracy"] for name in ("validation", "test")}

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        """Every weighting at its own learning rate, by the validation accuracy of the first seed."""
        cells = [{"share": share, "weighting": kind} for share in size.shares for kind in (*BASELINES, OURS, *GRID)]
        return trials.tune(cells, size.rates, seeds)

    def pictures(self, results: Results) -> dict[str, str]:
        shares: dict[str | float, float] = {"fresh": 0.0, **{kind: kind for kind in GRID}, "historical": 1.0}
        lines = {
            f"nu = {nu:g}": (
                list(shares.values()),
                [100 * float(accuracy(nu, kind)(results).mean()) for kind in shares],
            )
            for nu in results.setting["shares"]
        }
        x, y = "what historical clients count together", "test accuracy, %"
        return {"accuracy_by_share": line_chart(lines, title=self.title, x=x, y=y)}


def accuracy(share: float, kind: str | float) -> Values:
    def values(results: Results) -> FloatArray:
        lr = results.tuned[f"{share} {kind}"]
        return results.each(lambda measures: float(measures["test"]), share=share, weighting=kind, lr=lr)

    return values


def gap(share: float, kind: str | float, kinds: Sequence[str | float] = (*BASELINES, OURS, *GRID)) -> Values:
    """How far a weighting is behind the best of some (by their means)."""

    def values(results: Results) -> FloatArray:
        best = max((accuracy(share, other)(results) for other in kinds), key=lambda found: float(found.mean()))
        return best - accuracy(share, kind)(results)

    return values


def ahead(share: float, kind: str, other: str) -> Values:
    return lambda results: accuracy(share, kind)(results) - accuracy(share, other)(results)


def claims_of(shares: Sequence[float], slack: float = 0.001) -> Iterator[Claim]:
    """Ours is never behind, and Fresh is never the best."""
    for share in shares:
        for rival in BASELINES:
            yield Claim(
                f"ours over {rival}, nu = {share:g}",
                "The weights that minimise the bound are at least as good as every baseline.",
                THESIS,
                f"test accuracy, optimal minus {rival}",
                ahead(share, OURS, rival),
                above=-slack,
            )
        yield Claim(
            f"fresh is not the best, nu = {share:g}",
            "To train on fresh data alone is never the best, even with few historical samples.",
            THESIS,
            "test accuracy, the best of historical, uniform and optimal minus fresh",
            gap(share, "fresh", ("historical", "uniform", OURS)),
            above=0,
        )
