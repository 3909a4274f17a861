"""The study of unlearning at its smallest size, and its claims from given measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import turnout_studies as studies
from turnout_studies.study import Results


def test_the_small_size_runs(tmp_path: Path) -> None:
    study = studies.find("unlearning")
    results = study.run("small", [0], tmp_path)
    measures: dict[str, Any] = results.trials[0][1]
    for scheme in ("sifu", "sifu_paper", "scratch", "fine_tuning", "fedaccum"):
        assert len(measures[scheme]["rounds"]) == len(measures[scheme]["forgotten"]) == 2
    assert measures["sifu"]["lineage"][0][1] <= measures["sifu_paper"]["lineage"][0][1]  # it promises more
    assert len(study.judge(study.read(tmp_path))) == len(study.claims)


def measures(sifu: float, forgotten: float, tuned: float) -> dict[str, Any]:
    def of(rounds: list[int], accuracy: float) -> dict[str, Any]:
        return {"rounds": rounds, "forgotten": [accuracy] * 3}

    slow = [round(100 * sifu), round(100 * sifu), 1000]
    schemes = {name: of(slow, forgotten) for name in ("sifu", "sifu_paper")}
    others = {"scratch": of([100] * 3, 0.1), "fine_tuning": of([5] * 3, tuned), "fedaccum": of([5] * 3, tuned)}
    return {**schemes, **others, "last": {"short_of": -0.1}, "tracking": 1.03}


@pytest.mark.parametrize(
    ("given", "verdicts"),
    [
        ((0.5, 0.12, 0.4), {"holds"}),
        ((0.9, 0.3, 0.1), {"holds", "does not hold"}),
        ((0.5, 0.0, 0.4), {"does not hold"}),
    ],
)
def test_what_the_claims_say(given: tuple[float, float, float], verdicts: set[str]) -> None:
    study = studies.find("unlearning")
    trials = [({"seed": seed}, measures(*given)) for seed in range(5)]
    judged = {
        one.claim.name: one for one in study.judge(Results("unlearning", "default", list(range(5)), {}, {}, trials))
    }
    if given == (0.5, 0.12, 0.4):
        assert {one.verdict for one in judged.values()} == verdicts
    if given == (0.9, 0.3, 0.1):
        failing = {name for name, one in judged.items() if one.verdict == "does not hold"}
        assert failing == {
            f"{scheme} {what}" for scheme in ("sifu", "sifu_paper") for what in ("saves rounds", "forgets")
        } | {f"{scheme} does not forget" for scheme in ("fine_tuning", "fedaccum")}
    if given == (0.5, 0.0, 0.4):
        assert judged["sifu forgets"].verdict == "does not hold"  # too little is as far from scratch as too much
