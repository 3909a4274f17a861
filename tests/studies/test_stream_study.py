"""The study of weights for data streams: what it measures, and its verdicts, which no seed can change."""

from __future__ import annotations

from pathlib import Path

import pytest

import turnout_studies as studies
from turnout_studies.stream_weights import NU, PUBLISHED, figures, weights

WRONG = {"weights of synthetic", "weights of shakespeare"}


def test_what_the_claims_say(tmp_path: Path) -> None:
    """Two columns of the published tables do not minimise the published bound; the rest does."""
    study = studies.find("stream_weights")
    results = study.run("small", range(5), tmp_path)
    assert {one.verdict for one in study.judge(results)} == {"not judged"}
    judged = [claim.judge(study.read(tmp_path)) for claim in study.claims]
    assert [one.values for one in judged] == [one.values for one in study.judge(results)]
    assert {one.claim.name: one.verdict for one in judged} == {
        one.claim.name: "does not hold" if one.claim.name in WRONG else "holds" for one in judged
    }


def test_weights_of_the_tables() -> None:
    assert all(len(row.fresh) == len(NU) for row in PUBLISHED.values())
    assert weights("cifar10")["weights"] == pytest.approx([0.1162, 0.4522, 0.9472], abs=5e-5)
    assert weights("shakespeare")["weights"][1] == pytest.approx(0.295, abs=5e-4)


def test_seeds_draw_shares_only() -> None:
    equal, again = (figures(3, "equal", seed) for seed in (0, 1))
    assert equal == again
    drawn = figures(3, "drawn", 0)
    assert drawn == figures(3, "drawn", 0) != figures(3, "drawn", 1)
    assert drawn["shares"] != equal["shares"]
