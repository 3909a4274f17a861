"""CA-Fed when availability must be estimated, and when neighbours come and go together.

Rodio et al., INFOCOM 2023; Marfoq's thesis, section 2.2.6, figures 2.14 and 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from turnout.studies.cafed_curves import (
    ADAFED,
    CLUSTERS,
    THESIS,
    CAFedStudy,
    Scheme,
    Size,
    carry_out,
    completed,
    difference,
    each,
    final,
    planned,
    small,
    tune,
)
from turnout.studies.study import Claim, Measures, Trial, Trials

OBSERVED = (10, 100, 1000)
SPATIAL = ("even clusters", "mixed clusters")
TASKS = ("mnist", *SPATIAL)
CAFED: Scheme = {"name": "cafed", "bias_weight": 1.0, "renormalise": False}
FIRST = {"cafed": (0.1, 1.0), "adafed": (0.03, 1.0)}


@dataclass(frozen=True)
class Rounds(Size):
    rounds: dict[str, int] = field(default_factory=lambda: {"mnist": 50, "even clusters": 100, "mixed clusters": 100})


def _trial(task: str, scheme: Scheme, **options: object) -> Trial:
    return planned(task, {**scheme, **options}, f"{task} {scheme['name']}")


def _estimated(observed: int) -> tuple[Trial, Trial]:
    """CA-Fed and AdaFed after so many rounds of watching."""
    return (
        _trial("mnist", CAFED, estimator="transitions", observed=observed),
        _trial("mnist", ADAFED, estimator="beta", observed=observed),
    )


def _most_correlated_first(measures: Measures) -> float:
    """How much more often clusters 8 and 9 are left out than 5 and 6."""
    excluded = np.array(measures["excluded"]).reshape(-1, CLUSTERS).mean(axis=0)  # client i is in cluster i % 10
    return float(excluded[[8, 9]].mean() - excluded[[5, 6]].mean())


def _claims() -> Iterator[Claim]:
    source = f"{THESIS}, figure 2.14"
    for observed in OBSERVED[1:]:
        yield Claim(
            f"estimated, {observed} rounds watched",
            "With availability estimated from at least 100 rounds CA-Fed beats the others.",
            source,
            f"final test accuracy after watching {observed} rounds, cafed minus adafed",
            difference(final, *_estimated(observed)),
            above=0,
        )
    yield Claim(
        "watching helps",
        "CA-Fed needs about 100 rounds of observation.",
        source,
        "final test accuracy of cafed, after watching 1000 rounds minus after 10",
        difference(final, _estimated(1000)[0], _estimated(10)[0]),
        above=0,
    )
    source = f"{THESIS}, figure 2.15"
    yield Claim(
        "the most correlated clusters go first",
        "With homogeneous data clusters 9, 8, 7, 6 are excluded in that order.",
        source,
        "share of rounds in the second half that exclude clients of clusters 8 and 9 minus that of clusters 5 and 6",
        lambda results: each(results, _most_correlated_first, _trial("even clusters", CAFED)),
        above=0,
    )
    for task in SPATIAL:
        yield Claim(
            f"{task}: cafed over adafed",
            "CA-Fed beats AdaFed under spatial correlation.",
            source,
            "final test accuracy, cafed minus adafed (published: 0.6 points)",
            difference(final, _trial(task, CAFED), _trial(task, ADAFED)),
            above=0,
        )


class CAFedPresence(CAFedStudy):
    name = "cafed_presence"
    title = "CA-Fed with estimated availability, and with clusters that come and go together"
    source = "Rodio et al., INFOCOM 2023; Marfoq's thesis, figures 2.14 and 2.15"
    setting = """\
MNIST, model and measures as in the study cafed; CA-Fed (kappa^2 = 1) and AdaFed, each at its own client and server
learning rates, chosen with true availability on the first seed as there. Estimation: 50 rounds, after 10, 100 or 1,000
rounds of watching; CA-Fed counts transitions, AdaFed rounds online, both go on counting during the run. Clusters: 100
rounds, ten clusters of ten clients, five online 0.9 of the rounds without correlation, cluster c = 5, ..., 9 online 0.1
with correlation c / 10; data iid ("even") or Dirichlet(0.5) for each class ("mixed"); true values known.
Other than in the source: three lengths of watching; no data that differ between clusters only."""
    sizes = {
        "small": Rounds(**small(rounds=dict.fromkeys(TASKS, 4))),
        "default": Rounds(),
    }
    claims = tuple(_claims())

    def script(self, size: Rounds, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        tuned: dict[str, float] = {}
        for task in TASKS:
            for scheme in (CAFED, ADAFED):
                first = FIRST[scheme["name"]]
                tuned |= tune(trials, seeds[0], size, size.rounds[task], _trial(task, scheme), first)
        wanted = [trial for observed in OBSERVED for trial in _estimated(observed)]
        wanted += [_trial(task, scheme) for task in SPATIAL for scheme in (CAFED, ADAFED)]
        carry_out(trials, seeds, [completed(trial, tuned, size.rounds) for trial in wanted])
        return tuned


STUDY = CAFedPresence()
