"""Is FEM-OMD's regret sub-linear? Clients that foretell mixtures of Gaussians whose weights change at every step.

Marfoq's thesis (2023), section 4.4.5.1 and figure 4.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from turnout.core.random import FloatArray
from turnout.core.threads import threads
from turnout.engine.plan import Plan
from turnout.record.curves import line_chart
from turnout_studies.online.components import Gaussians
from turnout_studies.online.environment import GaussianStream, gaussian_centres, near
from turnout_studies.online.learner import FEMOMD
from turnout_studies.online.regret import LINEAR, exponents, follow
from turnout_studies.study import Claim, Experiment, Measures, Results, Study, Trial, Trials

THESIS = "Marfoq, thesis, section 4.4.5.1"
SAMPLES, CLIENTS, SCALE = 30, 50, 5.0
BY_SAMPLES = tuple({"samples": n, "clients": CLIENTS, "scale": SCALE} for n in (1, 10, 30))
BY_CLIENTS = tuple({"samples": 1, "clients": count, "scale": SCALE} for count in (2, 5, 20, 100))
BY_SCALE = tuple({"samples": SAMPLES, "clients": CLIENTS, "scale": s} for s in (1.0, 2.5, 5.0))


@dataclass(frozen=True)
class Size:
    steps: int = 300
    sources: int = 3
    dims: int = 5
    points: int = 20  # of every source, client and step, that losses are taken over
    times: int = 9  # at which regret is looked at, from a quarter of the steps to all


def _exponent(measures: Measures) -> float:
    return float(exponents(measures["times"], [measures["regrets"]])[0])


def _final(measures: Measures) -> float:
    return float(measures["regrets"][-1])


def _mean_curve(results: Results, trial: Trial) -> tuple[FloatArray, FloatArray]:
    """Times, and the regret then over all seeds."""
    found = [measures for tried, measures in results.trials if trial.items() <= tried.items()]
    return np.array(found[0]["times"]), np.mean([measures["regrets"] for measures in found], axis=0)


def _fewer_is_worse(results: Results, few: Trial, many: Trial) -> FloatArray:
    return results.each(_final, **few) - results.each(_final, **many)


def _claims() -> Iterator[Claim]:
    def grows(name: str, sentence: str, trial: Trial, linear: bool) -> Claim:
        return Claim(
            f"{name}: {'linear' if linear else 'sub-linear'}",
            sentence,
            THESIS,
            "b of regret ~ t^b over the last three quarters of the steps (a square root has 0.5)",
            lambda results: results.each(_exponent, **trial),
            **{"above" if linear else "below": LINEAR},
        )

    panel = "The regret is sub-linear for n >= 10 and linear for n = 1."
    for trial in BY_SAMPLES:
        yield grows(f"n = {trial['samples']}", panel, trial, linear=trial["samples"] == 1)
    panel = "With one sample a step, 100 clients have a sub-linear regret, fewer a linear one."
    for trial in (BY_CLIENTS[0], BY_CLIENTS[1], BY_CLIENTS[-1]):
        yield grows(f"C = {trial['clients']}, n = 1", panel, trial, linear=trial["clients"] < 100)
    for few, many in pairwise(BY_CLIENTS):
        yield Claim(
            f"{many['clients']} clients over {few['clients']}",
            "With one sample a step, the regret improves with the number of clients.",
            THESIS,
            f"final regret, C = {few['clients']} minus C = {many['clients']}",
            partial(_fewer_is_worse, few=few, many=many),
            above=0,
        )
    panel = "The regret is sub-linear for s >= 2.5 and linear for s = 1."
    for trial in BY_SCALE[:2]:
        yield grows(f"s = {trial['scale']}", panel, trial, linear=trial["scale"] == 1)


class FemOmd(Study):
    name = "fem_omd"
    title = "Regret of FEM-OMD on mixtures of Gaussians, by samples, clients and separation"
    source = "Marfoq's thesis (2023), section 4.4.5.1, figure 4.9"
    setting = """\
Three Gaussians in five dimensions, centres from N(0, s I), s = 5; every client and step has fresh weights from
Dirichlet(0.1); 50 clients, 30 samples a step unless varied, 300 steps. FEM-OMD with 5 EM steps, rate
0.1 sqrt(log m / t) and no weight below 0.01; means begin off their centres by 1/16 of the way to the nearest other.
Regret is the mean over clients, at each time against the weights that were best until then; its exponent is a fit of
log regret by log time, and counts as linear from 0.9 on. The source gives neither the number of sources nor dimensions,
steps, rates and where the means begin."""
    small_data = "the same mixtures for fewer steps"
    sizes = {"small": Size(steps=24, points=4, times=4), "default": Size()}
    claims = tuple(_claims())

    def experiment(self, size: Size, data: Path | None, plan: Plan) -> Experiment:
        times = np.unique(np.geomspace(size.steps / 4, size.steps, size.times).round().astype(int)).tolist()

        def carry_out(trial: Trial) -> Measures:
            seed, clients = trial["seed"], trial["clients"]
            centres = gaussian_centres(size.sources, size.dims, trial["scale"], seed)
            stream = GaussianStream(centres, clients, trial["samples"], seed=seed)
            learner = FEMOMD(Gaussians(), near(centres, 1 / 16, seed), clients, seed=seed)
            with threads(plan.threads):
                tracker = follow(learner, stream, size.steps, size.points)
                return {
                    "times": times,
                    "regrets": tracker.curve(times).mean(0).tolist(),
                    "against_the_best_of_all": tracker.curve(times, tracker.comparator()).mean(0).tolist(),
                    "distance": float((learner.components - centres).norm(dim=1).mean()),
                }

        return carry_out

    def script(self, size: Size, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        tried: list[Trial] = []
        for trial in (*BY_SAMPLES, *BY_CLIENTS, *BY_SCALE):
            tried += [] if trial in tried else [trial]
        trials.all([{**trial, "seed": seed} for seed in seeds for trial in tried])
        return {}

    def pictures(self, results: Results) -> dict[str, str]:
        panels = {"samples": (BY_SAMPLES, "n"), "clients": (BY_CLIENTS, "C"), "scale": (BY_SCALE, "s")}
        return {
            f"regret_by_{quantity}": line_chart(
                {f"{letter} = {trial[quantity]:g}": _mean_curve(results, trial) for trial in trials},
                title=f"Regret of FEM-OMD by {quantity}",
                x="step",
                y="mean regret",
            )
            for quantity, (trials, letter) in panels.items()
        }


STUDY = FemOmd()
