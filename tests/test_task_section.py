"""The section [task] of a configuration: names, options under their own names, functions of the user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from turnout import UserError
from turnout.cli import app
from turnout.config import config
from turnout.task.losses import CrossEntropy, Focal
from turnout.task.metrics import ClassAccuracy
from turnout.task.samples import Crop, Flip, Noise, Normalise, Pixels


def mine(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss, or a metric, of the user's own."""
    return (outputs[:, 0] - targets).square()


def doubled(inputs: Tensor) -> Tensor:
    return 2 * inputs


def read(*overrides: str, source: str = "digits") -> config.Settings:
    return config.read(source, ["engine.threads=1", *overrides])


def built(*overrides: str) -> tuple[Any, config.Settings]:
    experiment, _, complete = config.build(read(*overrides))
    return experiment, complete


def test_options_stand_under_their_own_names() -> None:
    experiment, complete = built(
        "task.loss=cross_entropy", "task.cross_entropy.smoothing=0.1", "task.metrics=accuracy,top_k", "task.top_k.k=3",
        "task.prepare=pixels,normalise", "task.normalise.mean=[0.5]", "task.normalise.std=[0.2]",
        "task.augment=crop,flip,noise", "task.crop.padding=2",
    )  # fmt: skip
    task, loss = experiment.task, CrossEntropy(smoothing=0.1)
    assert task.loss == loss
    assert task.metrics == {"accuracy": ClassAccuracy(loss), "top_k": ClassAccuracy(loss, 3)}
    assert isinstance(task.preparing[0], Pixels)
    assert task.preparing[1:] == (Normalise((0.5,), (0.2,)),)
    assert task.augmenting == (Crop(2), Flip(), Noise())
    assert complete["task"]["cross_entropy"] == {"ignore": None, "smoothing": 0.1, "weights": ()}
    assert complete["task"]["augment"] == ["crop", "flip", "noise"]


def test_what_is_written_is_what_is_read(tmp_path: Any) -> None:
    experiment, complete = built("task.loss=focal", "task.focal.weights=[1,2,3,4,5,6,7,8,9,1]", "task.augment=noise")
    (tmp_path / "again.toml").write_text(config.as_toml(complete))
    again, _, rewritten = config.build(read(source=str(tmp_path / "again.toml")))
    assert again.fingerprint == experiment.fingerprint
    assert again.task.loss == experiment.task.loss == Focal(weights=(1, 2, 3, 4, 5, 6, 7, 8, 9, 1))
    assert config.as_toml(rewritten) == config.as_toml(complete)


def test_functions_of_the_users_own() -> None:
    experiment, _ = built(
        f"task.loss={__name__}:mine", f"task.metrics=['{__name__}:mine']", f"task.prepare={__name__}:doubled"
    )
    assert experiment.task.loss is mine
    assert experiment.task.metrics == {"mine": mine}
    assert experiment.task.preparing == (doubled,)
    experiment, _ = built("task.loss=torch.nn:CrossEntropyLoss", "task.metrics=[]")
    assert isinstance(experiment.task.loss, torch.nn.CrossEntropyLoss)
    assert experiment.task.metrics == {}


def test_a_loss_where_it_stood_before() -> None:
    """It is read, and names the same configuration; so a run of before goes on."""
    old, complete = built("model.loss=nll")
    new, same = built("task.loss=nll")
    assert complete == same
    assert old.fingerprint == new.fingerprint
    former = {name: values for name, values in complete.items() if name != "task"}
    former["model"] = former["model"] | {"loss": "nll"}
    assert config.fingerprint(former) == new.fingerprint
    different = ("task.nll.ignore=3", "task.augment=noise", "task.metrics=accuracy", "task.metrics=[]")
    prints = [built("task.loss=nll", one)[0].fingerprint for one in different]
    assert len({new.fingerprint, *prints}) == 5


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["task.loss=entropy"], "task.loss: unknown name 'entropy'; did you mean cross_entropy"),
        (["task.loss=nll", "model.loss=mse"], "model.loss: it is task.loss now, which says another"),
        (["task.focal.gamma=1"], "task.focal: options of something that .task. does not name; write task.loss=focal"),
        (["task.crop.padding=1"], "write task.augment=crop"),
        (["task.zoom.by=1"], "allowed: loss, metrics, prepare, augment"),
        (["task.loss=focal", "task.focal.gamma=-1"], "task.focal.gamma: -1.0 must be at least 0"),
        (["task.loss=focal", "task.focal.alpha=1"], "task.focal.alpha: unknown option"),
        (["task.prepare=normalise"], "task.normalise.mean: missing; give it a value"),
        (["task.augment=flip,flip"], "task.augment: flip stands there twice"),
        (["task.augment.crop=1"], "task.augment: it is a name, not a table"),
        (["task.metrics=3"], "task.metrics: 3 is not"),
        (["task.augment=no_module:here"], "task.augment: 'no_module:here' cannot be imported"),
        (["task.shuffle=true"], "task.shuffle: unknown option"),
    ],
)
def test_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        config.build(read(*overrides))


def test_show_lists_every_option() -> None:
    shown = CliRunner().invoke(app, ["show", "task"]).output
    for text in (
        "[task] option",
        "[task.cross_entropy] option",
        "smoothing",
        "share of the target's",
        "[task.crop] option",
    ):
        assert text in shown
    assert "[task.focal] option" in CliRunner().invoke(app, ["show", "focal"]).output
