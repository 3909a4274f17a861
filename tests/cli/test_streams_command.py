"""`turnout streams`: the published weights from the terminal, pictures, and one sentence for every mistake."""

from __future__ import annotations

import math

import numpy as np
import pytest
from terminal import Terminal

from support import population
from turnout.plan.stream_curves import pictures

CIFAR = ("--samples", ",".join(25 * ["400"] + 25 * ["1600"]), "--fresh", ",".join(map(str, range(25, 50))))
SMALL = ("--samples", "100,200,400,400", "--fresh", "2,3")
WEIGHTS = ("streams", "weights")


def test_the_published_weight(terminal: Terminal) -> None:
    """CIFAR-10, a fifth of the samples historical: .45."""
    found = terminal.done(*WEIGHTS, *CIFAR, "--ratio", "0.15", "--json").json()
    best = found["strategies"][0]
    assert (best["name"], best["historical_share"]) == ("optimal", pytest.approx(0.4522, abs=5e-5))
    assert found["crossover"] == pytest.approx(0.1294, abs=5e-5)
    assert [sentence.split(":")[0] for sentence in found["warnings"]] == ["historical"]
    assert sum(best["importance"]) == pytest.approx(1)


def test_people_see_a_table_the_limits_a_warning_and_the_weights(terminal: Terminal) -> None:
    shown = terminal.done(*WEIGHTS, *SMALL, "--ratio", "1.5").out
    for part in ("strategy", "grid_0.5", "2.8723", "1051.5", "up to 0.3693", "than uniform to 0.5621"):
        assert part in shown
    assert "historical: its bound is 45% above the least one; historical clients should count 0.37" in shown
    printed = np.array(shown.split("optimal importance: ")[1].split(","), float)
    assert printed == pytest.approx([0.122787, 0.245574, 0.31582, 0.31582], abs=1e-6)
    assert population((3, 4, 5, 6), importance=printed).base_importance == pytest.approx(printed)


def test_without_fresh_clients_there_is_nothing_to_weigh(terminal: Terminal) -> None:
    shown = terminal.done(*WEIGHTS, "--samples", "100,300", "--ratio", "0.5").out
    assert "optimal importance: 0.25, 0.75" in shown
    assert "inf" not in shown


def test_the_ratio(terminal: Terminal) -> None:
    words = ("streams", "ratio", "digits", "stream.name=spread", "stream.fresh=0.5", "local.lr=0.1")
    found = terminal.done(*words, "--json").json()
    assert found["loss"] == pytest.approx(math.log(10), rel=0.3)  # the model knows nothing yet
    assert terminal.done(*words, "--steps", "1", "--json").json()["diameter"] < found["diameter"]
    shown = terminal.done(*words).out
    assert f"c2 / c1 = {found['ratio']:.4g}" in shown
    assert f"algorithm.ratio={found['ratio']:.4g}" in shown


def test_pictures_are_written(terminal: Terminal) -> None:
    found = terminal.done("streams", "curves", "--out", "found", "--ratio", "0.3", "--fresh-clients", "9", "--json")
    written = {path.stem: path.read_text(encoding="utf-8") for path in (terminal.here / "found").iterdir()}
    assert written == pictures(9, 0.3)
    assert sorted(found.json()["files"]) == sorted(f"found/{name}.svg" for name in written)
    assert "found/noise.svg" in terminal.done("streams", "curves", "--out", "found").out


ONE = ("--ratio", "1")
MISTAKES = {
    "no such client": ((*WEIGHTS, "--samples", "1,2", "--fresh", "0,7", *ONE), "--fresh: there is no client 7"),
    "fresh words": ((*WEIGHTS, "--samples", "1,2", "--fresh", "x", *ONE), "--fresh: 'x' is not a list of clients"),
    "samples words": ((*WEIGHTS, "--samples", "1,b", *ONE), "--samples: '1,b' is not a list of numbers of samples"),
    "no samples": ((*WEIGHTS, "--samples", "0,0", *ONE), "numbers of at least 0, some of them above"),
    "nobody": ((*WEIGHTS, "--samples", ",", *ONE), "numbers of at least 0, some of them above"),
    "ratio": ((*WEIGHTS, *SMALL, "--ratio", "-1"), "streams.ratio: -1.0 must be above 0"),
    "picture": (("streams", "curves", "--out", "x", "--fresh-clients", "0"), "fresh_clients: 0 must be above 0"),
    "nothing fresh": (("streams", "ratio", "digits"), "stream: without fresh clients there is no ratio to estimate"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence(terminal: Terminal, case: str) -> None:
    words, sentence = MISTAKES[case]
    assert sentence in terminal.refused(*words)
