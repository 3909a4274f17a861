"""Parts of several papers in one method, from the command line: it runs, goes on to the same bits, and is exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from plain_combinations import COMBINATIONS, CONFIGURATION, OWN_MODIFIER, Combination, Setting, served_loss
from safetensors.torch import load_file
from typer.testing import CliRunner

from turnout.cli.commands import app
from turnout.config import config

EACH = pytest.mark.parametrize("combination", COMBINATIONS.values(), ids=COMBINATIONS)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(CONFIGURATION)
    (tmp_path / "steep_modifier.py").write_text(OWN_MODIFIER)
    monkeypatch.chdir(tmp_path)


def turnout(*words: str) -> dict[str, float]:
    """What a command says."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.stderr or repr(done.exception)
    said: dict[str, float] = json.loads(done.stdout)
    return said


def run(name: str, combination: Combination, rounds: int) -> dict[str, float]:
    return turnout("run", "tiny.toml", f"run.name={name}", f"run.rounds={rounds}", *combination.words)


def model(name: str) -> torch.Tensor:
    """`[P]` weights and biases, as saved."""
    parts = load_file(Path("runs") / name / "model.safetensors")
    return torch.cat([parts[part].flatten() for part in sorted(parts, key=lambda part: "bias" in part)])


@EACH
def test_runs_from_the_command_line(combination: Combination) -> None:
    assert run("whole", combination, combination.rounds)["rounds"] == combination.rounds
    assert torch.isfinite(model("whole")).all()


@EACH
def test_goes_on_to_the_same_bits(combination: Combination) -> None:
    run("whole", combination, combination.rounds)
    run("part", combination, combination.rounds // 2)
    assert not torch.equal(model("part"), model("whole"))
    turnout("resume", "runs/part", f"run.rounds={combination.rounds}")
    assert torch.equal(model("part"), model("whole"))


@EACH
def test_equals_a_plain_loop(combination: Combination) -> None:
    said = run("whole", combination, combination.rounds)
    experiment, _, _ = config.build(config.read("tiny.toml", list(combination.words)))
    first = experiment.task.seeded(experiment.seed).initial.double()
    expected = combination.loop(Setting(first, combination.rounds, Path("runs/whole")))
    torch.testing.assert_close(model("whole"), expected, rtol=1e-10, atol=1e-12)
    if "knn_per" in combination.words[0]:
        assert said["measures"]["train_loss"] == pytest.approx(served_loss(expected), rel=1e-9)  # type: ignore[index]
