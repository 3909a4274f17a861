"""What the promise rests on: every fact of a run decides its own sentence, of any branch the model came through."""

from __future__ import annotations

from typing import Any

import pytest

from turnout.record.unlearning import Unlearning
from turnout.trust.certificate import ASSUMED, FAILS, HOLDS, UNKNOWN, assumptions, heuristic

GOOD: dict[str, Any] = {
    "stale_rounds": 0, "unexplained_rounds": 0, "largest_step": 1.0, "largest_lr": 0.5, "everybody": True,
    "full_batches": True, "momentum": False, "clipped": False, "client_state": False, "largest_pull": 0.0,
    "transformed": False, "proximal": False, "other_work": False, "prying": [],
}  # fmt: skip
KNOWN: dict[str, Any] = {"convex": True, "smoothness": 4.0}


def states(facts: dict[str, Any], **settings: Any) -> dict[str, str]:
    """Of two branches, the second as good as can be."""
    return {one.sentence: one.state for one in assumptions(Unlearning(**KNOWN | settings), [facts, GOOD])}


def test_all_that_can_hold_holds() -> None:
    found = states(GOOD)
    assert list(found.values()) == [HOLDS] * 9 + [ASSUMED]
    assert not heuristic(assumptions(Unlearning(**KNOWN), [GOOD]))


@pytest.mark.parametrize(
    ("fact", "value", "words", "state"),
    [
        ("largest_lr", 0.6, "learning rate times smoothness is at most 2", FAILS),
        ("momentum", True, "plain SGD", FAILS),
        ("clipped", True, "plain SGD", FAILS),
        ("client_state", True, "plain SGD", FAILS),
        ("transformed", True, "plain SGD", FAILS),
        ("other_work", True, "plain SGD", FAILS),
        ("largest_pull", 0.1, "learning rate times smoothness is at most 2", FAILS),
        ("prying", ["sampler Oort"], "does not follow from the clients' data", FAILS),
        ("unexplained_rounds", 1, "weighted sum of the updates", FAILS),
        ("stale_rounds", 1, "from the current global model", FAILS),
        ("largest_step", 1.1, "server's step is at most 1", FAILS),
        ("full_batches", False, "use the same batches", ASSUMED),
        ("everybody", False, "invited to the same rounds", ASSUMED),
    ],
)
def test_each_fact_decides_its_sentence(fact: str, value: Any, words: str, state: str) -> None:
    before, after = states(GOOD), states(GOOD | {fact: value})
    assert [sentence for sentence in after if after[sentence] != before[sentence]] == [
        sentence for sentence in after if words in sentence
    ]
    assert [after[sentence] for sentence in after if words in sentence] == [state]
    assert heuristic(assumptions(Unlearning(**KNOWN), [GOOD, GOOD | {fact: value}])) == (state == FAILS)


@pytest.mark.parametrize(
    ("settings", "words", "state"),
    [
        ({"convex": False}, "is convex", UNKNOWN),
        ({"smoothness": None}, "learning rate times smoothness", UNKNOWN),
        ({"bound": "contracted"}, "contracted bound", FAILS),
        ({"bound": "contracted", "smoothness": 2.0}, "contracted bound", HOLDS),
        ({"bound": "contracted", "smoothness": None}, "contracted bound", UNKNOWN),
        ({"weights": "population"}, "realised in each round", FAILS),
    ],
)
def test_what_is_stated_decides_the_rest(settings: dict[str, Any], words: str, state: str) -> None:
    found = states(GOOD, **settings)
    assert [found[sentence] for sentence in found if words in sentence] == [state]


def test_fedprox_bends_the_loss_and_is_not_contracted() -> None:
    """lr (L + mu) <= 2; and what is drawn back to where it began does not come together as fast as the loss says."""
    assert "L = 3 + 0.9" in next(
        one.why
        for one in assumptions(Unlearning(convex=True, smoothness=3.0), [GOOD | {"largest_pull": 0.9}])
        if "times smoothness" in one.sentence
    )
    slow = GOOD | {"largest_lr": 0.1, "largest_pull": 0.5, "proximal": True}
    stated = assumptions(Unlearning(**KNOWN, bound="contracted"), [slow])
    found = {one.sentence: one.state for one in stated}
    assert [found[sentence] for sentence in found if "contracted bound" in sentence] == [FAILS]
    assert [found[sentence] for sentence in found if "times smoothness" in sentence] == [HOLDS]


def test_what_was_not_recorded_is_not_assumed_to_hold() -> None:
    new = ("largest_pull", "transformed", "proximal", "other_work", "prying")
    old = {name: value for name, value in GOOD.items() if name not in new}
    failed = [one.sentence for one in assumptions(Unlearning(**KNOWN), [old]) if one.state == FAILS]
    assert len(failed) == 3
