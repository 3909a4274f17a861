"""Early stop by patience, and the best model kept beside the last: judged on validation samples, resumed to the bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import turnout
from support import SIZES, local, mlp, population, same
from turnout import Evaluation, FedAvg, FedBuff, Plan, Ragged, Stopping, Task, Unlearning, UserError

ROWS = Ragged(np.concatenate([[0], np.cumsum(SIZES)]), np.arange(sum(SIZES)))
METHODS: dict[str, Any] = {
    "fedavg": lambda: FedAvg(local(lr=3.0)),  # so fast that the loss rises again
    "fedbuff": lambda: FedBuff(local(lr=3.0), buffer_size=3),  # which passes rounds in stretches
}


def experiment(name: str = "fedavg", rounds: int = 60, **options: Any) -> turnout.Experiment:
    stopping = Stopping(rounds, judge=options.pop("judge", None), patience=options.pop("patience", 3))
    people = options.pop("people", None) or population(validation=ROWS)
    task = Task(mlp, seed=3, metrics=options.pop("metrics", None))
    return turnout.Experiment(task, people, METHODS[name](), 5, stopping, plan=Plan(threads=1), **options)


@pytest.mark.parametrize("name", METHODS)
def test_patience_ends_a_run_and_the_best_model_is_kept(name: str, tmp_path: Path) -> None:
    result = turnout.execute(experiment(name), tmp_path)
    losses = result.rounds()["validation_loss"]
    best, last = int(losses.argmin()), len(losses) - 1
    assert last == best + 3 < 60
    assert result.best is not None and result.best["round"] == best
    assert (
        result.server.stopped == f"validation_loss no better than {losses[best]:.4g} of round {best} for 3 evaluations"
    )
    assert result.best["measures"]["validation_loss"] == losses[best]
    until = turnout.execute(experiment(name, rounds=best, patience=None))
    assert result.best_model is not None and torch.equal(result.best_model, until.model)
    assert not torch.equal(result.best_model, result.model)
    kept = load_file(tmp_path / "best.safetensors")
    assert torch.equal(until.server.task.from_state_dict(kept), until.model)
    assert json.loads((tmp_path / "result.json").read_text())["best"]["round"] == best


def test_of_a_measure_of_which_more_is_better() -> None:
    """And without patience, where the run goes on to its end."""
    result = turnout.execute(experiment(judge="validation_balanced_accuracy", metrics="balanced_accuracy,auc"))
    values = result.rounds()["validation_balanced_accuracy"]
    assert result.best is not None and result.best["round"] == int(values.argmax())
    whole = turnout.execute(experiment(judge="validation_loss", patience=None, rounds=20))
    assert whole.server.version == 20
    assert whole.best is not None and whole.best["round"] == int(whole.rounds()["validation_loss"].argmin())
    plain = turnout.execute(experiment(patience=None, rounds=20))
    assert plain.best is None and plain.best_model is None and torch.equal(plain.model, whole.model)
    assert "best" not in plain.summary()


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_stops_where_it_would_have(name: str, tmp_path: Path) -> None:
    whole = turnout.execute(experiment(name), tmp_path / "whole", checkpoint_every=2)
    assert whole.best is not None
    for cut in (1, whole.best["round"], whole.best["round"] + 2):
        folder = tmp_path / f"{cut}"
        turnout.execute(experiment(name, rounds=cut), folder, checkpoint_every=2)
        again = turnout.execute(experiment(name), folder, checkpoint_every=2, resume=True)
        assert torch.equal(again.model, whole.model) and again.best == whole.best
        assert again.best_model is not None and whole.best_model is not None
        assert torch.equal(again.best_model, whole.best_model)
        assert same(again.rounds(), whole.rounds())
    longer = replace(experiment(name), stopping=Stopping(60, patience=5))  # more patience: it goes on
    assert turnout.execute(longer, tmp_path / "whole", resume=True).server.version > whole.server.version


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"people": population()},
            "run.patience: the best model is chosen on samples held back for validation, and there",
        ),
        (
            {"people": population(), "judge": "validation_loss"},
            "run.judge: the best model is chosen on samples held back",
        ),
        ({"judge": "validation_aucc"}, "run.judge: unknown name 'validation_aucc'; did you mean validation_accuracy"),
        ({"unlearning": Unlearning(track=True)}, "unlearning.track: the best model is kept beside the last"),
    ],
)
def test_what_is_refused(options: Any, sentence: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(UserError, match=sentence):
        turnout.execute(experiment(**options), folder)
    assert not folder.exists()


def test_test_samples_never_judge() -> None:
    with pytest.raises(UserError, match="'test_accuracy' is not a measure of samples held back for validation"):
        Stopping(10, judge="test_accuracy")
    with pytest.raises(UserError, match="it counts evaluations; give evaluation"):
        experiment(evaluation=Evaluation(rounds=None))
