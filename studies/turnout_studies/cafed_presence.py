"""CA-Fed when availability must be estimated, and when neighbours come and go together.

Rodio et al., INFOCOM 2023; Marfoq's thesis, section 2.2.6, figures 2.14 and 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from turnout_studies import cafed
from turnout_studies.cafed_curves import (
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
from turnout_studies.study import Claim, Measures, Trial, Trials

ENOUGH = (100, 1000)  # rounds watched
TOO_FEW = 10
SCHEMES: dict[str, Scheme] = {**cafed.SCHEMES, "f3ast": {**cafed.SCHEMES["f3ast"], "smoothing": 0.02}}  # 1 / rounds
RIVALS = ("adafed", "unbiased", "more_available", "f3ast")
TRIED = {"mnist": ("cafed", *RIVALS), "even clusters": ("cafed",), "mixed clusters": ("cafed", "adafed")}


@dataclass(frozen=True)
class Rounds(Size):
    every: int = 1  # so that the last five evaluations are the last five rounds
    rounds: dict[str, int] = field(default_factory=lambda: {"mnist": 50, "even clusters": 100, "mixed clusters": 100})


def _trial(task: str, name: str, **options: object) -> Trial:
    return planned(task, {**SCHEMES[name], **options}, f"{task} {name}")


def _estimated(name: str, observed: int) -> Trial:
    """After so many rounds of watching."""
    return _trial("mnist", name, estimator="transitions" if name == "cafed" else "beta", observed=observed)


def _most_correlated_first(measures: Measures) -> float:
    """How much more often clusters 8 and 9 are left out than 5 and 6."""
    excluded = np.array(measures["excluded"]).reshape(-1, CLUSTERS).mean(axis=0)  # client i is in cluster i % 10
    return float(excluded[[8, 9]].mean() - excluded[[5, 6]].mean())


def _claims() -> Iterator[Claim]:
    source = f"{THESIS}, figure 2.14"
    for observed in ENOUGH:
        for rival in RIVALS:
            yield Claim(
                f"estimated, {observed} rounds watched: cafed over {rival}",
                "With availability estimated from at least 100 rounds CA-Fed beats the baselines.",
                source,
                f"final test accuracy after watching {observed} rounds, cafed minus {rival}",
                difference(final, _estimated("cafed", observed), _estimated(rival, observed)),
                above=0,
            )
    yield Claim(
        "watching helps",
        "CA-Fed needs about 100 rounds of observation.",
        source,
        f"final test accuracy of cafed, after watching {ENOUGH[0]} rounds minus after {TOO_FEW}",
        difference(final, _estimated("cafed", ENOUGH[0]), _estimated("cafed", TOO_FEW)),
        above=0,
    )
    yield Claim(
        "the most correlated clusters go first",
        "With homogeneous data clusters 9, 8, 7, 6 are excluded in that order.",
        f"{THESIS}, figure 2.15a",
        "share of rounds in the second half that exclude clients of clusters 8 and 9 minus that of clusters 5 and 6",
        lambda results: each(results, _most_correlated_first, _trial("even clusters", "cafed")),
        above=0,
    )
    yield Claim(
        "mixed clusters: cafed over adafed",
        "With data that differ within and between clusters CA-Fed beats AdaFed.",
        f"{THESIS}, figure 2.15d",
        "final test accuracy, cafed minus adafed (published: 0.6 points)",
        difference(final, _trial("mixed clusters", "cafed"), _trial("mixed clusters", "adafed")),
        above=0,
    )


class CAFedPresence(CAFedStudy):
    name = "cafed_presence"
    title = "CA-Fed with estimated availability, and with clusters that come and go together"
    source = "Rodio et al., INFOCOM 2023; Marfoq's thesis, figures 2.14 and 2.15"
    setting = """\
MNIST, model, measures and schemes as in the study cafed, but evaluated every round: final is the mean of the last five.
Each scheme is at its own client and server learning rates, chosen with true availability on the first seed as there.
Estimation: 50 rounds, after 100 or 1,000 rounds of watching, and CA-Fed after 10 too; CA-Fed counts transitions, the
others rounds online, and all go on counting during the run. Clusters: CA-Fed and AdaFed, 100 rounds, ten clusters of
ten clients, five online 0.9 of the rounds without correlation, cluster c = 5, ..., 9 online 0.1 with correlation
c / 10; data iid ("even", CA-Fed only) or Dirichlet(0.5) for each class ("mixed"); true values known.
Other than in the source: three lengths of watching; no data that differ between clusters only; under spatial
correlation no baseline but AdaFed; and, as in the study cafed, a fifth of MNIST and fewer server rates."""
    small_data = "bundled 8 x 8 digits in the place of MNIST"
    sizes = {
        "small": Rounds(**small(rounds=dict.fromkeys(TRIED, 2))),
        "default": Rounds(),
    }
    claims = tuple(_claims())

    def script(self, size: Rounds, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        everything = [_trial(task, name) for task, names in TRIED.items() for name in names]
        tuned = tune(trials, seeds[0], size, size.rounds, everything)
        wanted = [_estimated("cafed", TOO_FEW)]
        wanted += [_estimated(name, observed) for observed in ENOUGH for name in TRIED["mnist"]]
        wanted += [_trial(task, name) for task in ("even clusters", "mixed clusters") for name in TRIED[task]]
        carry_out(trials, seeds, [completed(trial, tuned, size.rounds) for trial in wanted])
        return tuned


STUDY = CAFedPresence()
