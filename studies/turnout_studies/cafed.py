"""Does leaving out seldom and correlated clients pay? CA-Fed against its rivals, each at its own learning rates.

Rodio et al., INFOCOM 2023; Marfoq's thesis, section 2.2.6, figure 2.11 and table 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from turnout_studies.cafed_curves import (
    ADAFED,
    THESIS,
    UNBIASED,
    CAFedStudy,
    Quantity,
    Scheme,
    Size,
    carry_out,
    completed,
    difference,
    each,
    final,
    planned,
    shares,
    small,
    time_average,
    tune,
    unrest,
)
from turnout_studies.study import Claim, Measures, Trial, Trials

TASKS = {"synthetic 0.5": "Synthetic", "mnist": "MNIST"}
SCHEMES: dict[str, Scheme] = {
    "unbiased": UNBIASED,
    "more_available": {"name": "more_available", "renormalise": False},
    "cafed": {"name": "cafed", "bias_weight": 1.0, "renormalise": False},
    "adafed": ADAFED,
    "f3ast": {"name": "f3ast", "clients_per_round": 45, "smoothing": 0.005},
}
PUBLISHED = {"synthetic 0.5": "1.56", "mnist": "0.94"}  # percentage points
README = "README of the authors' code (arodio/CA-Fed), on an earlier study with 24 clients; not in the thesis"
SELDOM_CORRELATED = 2  # of the four groups


@dataclass(frozen=True)
class Rounds(Size):
    rounds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TASKS, 200))


def _trial(task: str, name: str) -> Trial:
    return planned(task, SCHEMES[name], f"{task} {name}")


def _share(group: int) -> Quantity:
    return lambda measures: float(shares(measures)[group])


def _often(measures: Measures) -> float:
    """Weight of clients often online, over that of the others."""
    parts = shares(measures)
    return float((parts[0] + parts[1]) / max(parts[2] + parts[3], 1e-12))


def _unevenness(measures: Measures) -> float:
    """How far the share of a group is from a quarter, at most."""
    return float(abs(shares(measures) - 0.25).max())


def _used(measures: Measures) -> float:
    return float(measures["used"])


def _claims() -> Iterator[Claim]:
    for task, title in TASKS.items():
        cafed = _trial(task, "cafed")
        for rival in ("adafed", "unbiased", "more_available", "f3ast"):
            gain = f" (published: {PUBLISHED[task]} points)" if rival == "adafed" else ""
            yield Claim(
                f"final accuracy over {rival}, {title}",
                "CA-Fed reaches the highest final accuracy, AdaFed the next.",
                f"{THESIS}, figure 2.11",
                f"final test accuracy, cafed minus {rival}{gain}",
                difference(final, cafed, _trial(task, rival)),
                above=0,
            )
        yield Claim(
            f"time-average, {title}",
            "CA-Fed has a higher time-average of the accuracy than AdaFed.",
            README,
            "mean test accuracy over the run, cafed minus adafed",
            difference(time_average, cafed, _trial(task, "adafed")),
            above=0,
        )
        yield Claim(
            f"steadiness, {title}",
            "CA-Fed's accuracy varies less than AdaFed's.",
            README,
            "standard deviation of the test accuracy over the second half of the run, cafed minus adafed",
            difference(unrest, cafed, _trial(task, "adafed")),
            below=0,
        )
        yield Claim(
            f"clients included, {title}",
            "CA-Fed includes 45 clients on average.",
            "Marfoq, thesis, appendix D.7.1, hyper-parameters (why F3AST samples 45)",
            "mean number of clients whose update counts",
            lambda results, trial=cafed: each(results, _used, trial),  # type: ignore[misc]
            above=42,
            below=48,
        )
    yield from _weights("synthetic 0.5")


def _weights(task: str) -> Iterator[Claim]:
    """Figure 2.11d: whose updates counted."""
    source = f"{THESIS}, figure 2.11d"
    yield Claim(
        "unbiased equalises",
        "Unbiased gives every group the same cumulative weight.",
        source,
        "largest distance of a group's share of all weight from a quarter, over the four groups",
        lambda results: each(results, _unevenness, _trial(task, "unbiased")),
        below=0.05,
    )
    yield Claim(
        "adafed favours those often online",
        "AdaFed favours more available clients.",
        source,
        "weight of clients often online over that of clients seldom online",
        lambda results: each(results, _often, _trial(task, "adafed")),
        above=1,
    )
    for name, sentence, bounds in (
        ("f3ast", "F3AST favours less available, correlated clients.", {"above": 0.0}),
        ("cafed", "CA-Fed removes part of the less available, correlated clients.", {"below": 0.0}),
    ):
        yield Claim(
            f"{name} and those seldom online, correlated",
            sentence,
            source,
            f"their share of all weight, {name} minus unbiased",
            difference(_share(SELDOM_CORRELATED), _trial(task, name), _trial(task, "unbiased")),
            **bounds,
        )


class CAFed(CAFedStudy):
    name = "cafed"
    title = "CA-Fed, Unbiased, More available, AdaFed and F3AST under heterogeneous and correlated availability"
    source = "Rodio et al., INFOCOM 2023; Marfoq's thesis, figure 2.11 and table 4"
    setting = """\
100 clients of equal importance: half online 0.9 of the rounds, half 0.1, in each half one half with correlation 0.9 and
one half with about 0; true values known. Synthetic(0.5, 0.5) with at most 1,000 samples a client, and MNIST, every
fifth image, Dirichlet(0.5) for each class; multinomial logistic regression from zero, ridge 0.01; 5 local steps of
batch 32; 200 rounds. CA-Fed with kappa^2 = 1, the running minimum as floor, weights as in the paper (not renormalised);
F3AST with 45 clients. Client and server learning rates of each scheme are those with the best training accuracy of the
first seed, of all pairs of clients' rates 0.01, 0.03, 0.1, 0.3, 1, 2 and server rates 0.1, 0.3, 1, 2, 4, 8. Accuracies
are means over clients of their own test samples (a fifth); final is the mean of the last five evaluations, one every 5
rounds. A diverged run ends in guessing. Meant for 10 seeds.
Other than in the source: no CIFAR-10; a fifth of MNIST's training images, of which a fifth tests, in the place of
MNIST's own test split; 200 rounds for both; server rates 3, 5, 6 and 7 are not tried; rates are chosen on training
data, not on held-out data."""
    small_data = "bundled 8 x 8 digits in the place of MNIST"
    sizes = {
        "small": Rounds(**small(rounds=dict.fromkeys(TASKS, 4))),
        "default": Rounds(),
    }
    claims = tuple(_claims())

    def script(self, size: Rounds, seeds: Sequence[int], trials: Trials) -> dict[str, float]:
        everything = [_trial(task, name) for task in TASKS for name in SCHEMES]
        tuned = tune(trials, seeds[0], size, size.rounds, everything)
        carry_out(trials, seeds, [completed(trial, tuned, size.rounds) for trial in everything])
        return tuned


STUDY = CAFed()
