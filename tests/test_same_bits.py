"""The guard of a change that changes no bit: its list names everything, and it sees a single bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from turnout.config import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import same_bits
import same_bits_list

LISTED = same_bits_list.configurations()


@pytest.mark.parametrize("kind", ["algorithm", "sampler"])
def test_every_algorithm_and_sampler_is_listed(kind: str) -> None:
    assert set(registry.names(kind)) <= {settings.get(kind, {}).get("name") for settings in LISTED.values()}


def test_a_run_that_was_stopped_half_way_ends_with_the_same_digests(tmp_path: Path) -> None:
    settings = LISTED["rough: algorithm=fedbuff algorithm.buffer_size=3 run.rounds=8"] | {"engine": {"threads": 1}}
    whole, half = tmp_path / "whole", tmp_path / "half"
    before = same_bits.digests(same_bits.run(settings, whole, half=half), whole)
    assert not (half / "result.json").exists()
    assert before == same_bits.digests(same_bits.run(settings, half, resume=True), half)
    assert {name.partition(".")[0] for name in before} == {"model", "rounds", "jobs", "clients", "result", "log"}


def test_what_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    before = {
        "one": {"jobs.weight": "1", "log.events": "2"},
        "two": {"jobs.weight": "1"},
        "three": {"jobs.weight": "1"},
    }
    after = {"one": {"jobs.weight": "3", "log.events": "2"}, "two": {"jobs.weight": "1", "jobs.new": "1"}}
    assert same_bits._differences(before, after) == 2
    shown = capsys.readouterr().out
    assert "one\n    jobs.weight\n" in shown
    assert "three\n    it was not run\n" in shown
    assert "only after: jobs.new (1)" in shown
    assert same_bits._differences(before, before) == 0
