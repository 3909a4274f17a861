"""Samples as a model is shown them: prepared always, augmented in training by keys, the same on every path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import turnout
from turnout import Dataset, FedAvg, LocalSGD, Plan, Population, Task, UserError
from turnout.core.random import key
from turnout.engine.batches import Jobs
from turnout.engine.train import Cohort
from turnout.task.samples import Crop, Cutout, Flip, Noise, Normalise

IMAGES = (torch.arange(30 * 2 * 6 * 5) * 37 % 251).view(30, 2, 6, 5).to(torch.uint8)
KINDS = torch.arange(30) % 3
WORK = LocalSGD(0.1, steps=3, batch_size=4)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 3))


def smooth() -> nn.Module:
    """No chain of known layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(60, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 3))


def people(sizes: tuple[int, ...] = (3, 9, 5, 7), inputs: Tensor = IMAGES, targets: Tensor = KINDS) -> Population:
    clients = np.repeat(np.arange(len(sizes)), sizes)
    data = Dataset("images", inputs[: len(clients)], targets[: len(clients)], 3, groups=clients)
    return Population.of(data, len(sizes), "natural", test="none")


def train(task: Task, clients: Population | None = None, work: LocalSGD = WORK, **plan: Any) -> Tensor:
    full = FedAvg(work, turnout.Full())
    return turnout.simulate(task, clients or people(), full, 2, plan=Plan(**{"threads": 1} | plan), seed=5).model


# -- prepared ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_pixels_and_normalise_are_what_they_say(precision: str) -> None:
    """Training and evaluation are those of a run on data that were prepared beforehand, in its precision."""
    plan = Plan(precision=precision, threads=1, kernels="general")
    given = Task(net, prepare=["pixels", Normalise(mean=(0.4, 0.6), std=(0.2, 0.3))], seed=1)
    dtype = getattr(torch, precision)
    ready = (IMAGES.to(dtype) / 255 - torch.tensor([0.4, 0.6], dtype=dtype).view(2, 1, 1)) / torch.tensor(
        [0.2, 0.3], dtype=dtype
    ).view(2, 1, 1)
    algorithm = FedAvg(WORK, turnout.Full())
    one = turnout.simulate(given, people(), algorithm, 2, plan=plan, seed=5)
    other = turnout.simulate(Task(net, seed=1), people(inputs=ready), algorithm, 2, plan=plan, seed=5)
    assert one.measures == pytest.approx(other.measures, rel=1e-5)
    assert torch.allclose(one.model, other.model, rtol=0, atol=1e-6 if precision == "float32" else 1e-14)


def test_samples_stay_as_they_are_stored() -> None:
    cohort = Cohort(Task(net, prepare="pixels"), IMAGES, KINDS, Plan(threads=1).resolve())
    assert cohort.inputs.dtype == torch.uint8 and cohort.sample_bytes == 60 * 4  # what the model makes of them


def test_images_of_uint8_name_the_way_out() -> None:
    with pytest.raises(UserError, match=r"cannot process an input.*task\.prepare=pixels makes numbers"):
        train(Task(net))


def test_a_chain_does_not_skip_them() -> None:
    cohort = Cohort(Task(net, prepare="pixels"), IMAGES, KINDS, Plan(threads=1).resolve())
    assert str(cohort.path(WORK, ())) == "vmap: chain does not prepare or augment samples (task.prepare, task.augment)"


# -- augmented --------------------------------------------------------------------------------------------------

X = torch.arange(1, 3 * 2 * 6 * 5 + 1).view(3, 2, 6, 5).float()
KEYS = torch.arange(400)


def every(part: Callable[..., Tensor], x: Tensor = X) -> list[Tensor]:
    return [part(x, key) for key in KEYS]


def test_crop_moves_each_sample_by_itself() -> None:
    """Every shift comes up, both channels move together, what comes in is 0."""
    seen = set()
    for moved in every(Crop(padding=2)):
        for before, after in zip(X, moved, strict=True):
            wide = nn.functional.pad(before, (2, 2, 2, 2))
            shifts = [(i, j) for i in range(5) for j in range(5) if wide[:, i : i + 6, j : j + 5].equal(after)]
            assert len(shifts) == 1
            seen.add(shifts[0])
    assert len(seen) == 25


def test_flip_mirrors_half_of_the_samples() -> None:
    flipped = torch.stack([(after == X.flip(-1)).flatten(1).all(1) for after in every(Flip())])
    kept = torch.stack([(after == X).flatten(1).all(1) for after in every(Flip())])
    assert (flipped ^ kept).all()
    assert 0.4 < float(flipped.float().mean()) < 0.6
    assert len({tuple(row.tolist()) for row in flipped}) == 8  # by itself
    assert all(after.equal(X.flip(-1)) for after in every(Flip(chance=1.0)))


def test_noise_and_cutout() -> None:
    noise = torch.stack(every(Noise(sigma=0.5))) - X
    assert float(noise.mean()) == pytest.approx(0, abs=0.01) and float(noise.std()) == pytest.approx(0.5, abs=0.01)
    for cut in every(Cutout(side=3)):
        for after, before in zip(cut, X, strict=True):
            gone = after == 0
            rows, columns = gone.any(0).any(1).sum(), gone.any(0).any(0).sum()
            assert after[~gone].equal(before[~gone])
            assert gone[0].equal(gone[1]) and int(gone[0].sum()) == int(rows * columns)
            assert 1 <= rows <= 3 and 1 <= columns <= 3


class RandomFlip(nn.Module):
    """As torchvision's transforms draw: from torch's global generator, a number for Python."""

    def forward(self, *inputs: Any) -> Any:
        x = inputs[0]
        if torch.rand(1).item() < 0.5:
            x = x.flip(-1)
        side = int(torch.randint(0, 3, size=(1,)).item())
        return x.roll(side, -2) * torch.empty(1).uniform_(0.8, 1.2).item()


def shaken(x: Tensor, key: Tensor) -> Tensor:
    """Of the user's own, by the key or by functions of torch."""
    return x + 0.1 * torch.randn_like(x) * (1 + (key & 1))


AUGMENTS: dict[str, Any] = {
    "names": "crop,flip,noise,cutout",
    "objects": [Crop(padding=1), shaken],
    "own": shaken,
    "of inputs alone": lambda x: x * torch.rand(len(x), 1, 1, 1),
    "as torchvision": RandomFlip(),
}


@pytest.mark.parametrize("augment", AUGMENTS.values(), ids=AUGMENTS)
def test_the_same_draws_on_every_path(augment: Any) -> None:
    """Together with padding, or one after another on any number of threads; and they change what is trained."""
    task = Task(smooth, prepare="pixels", augment=augment, seed=1)
    together = train(task, precision="float64")
    alone = train(task, precision="float64", engine="sequential")
    assert torch.allclose(together, alone, rtol=0, atol=1e-12)
    assert alone.equal(train(task, precision="float64", engine="sequential", threads=2))
    assert together.equal(train(task, precision="float64"))
    assert not torch.allclose(together, train(Task(smooth, prepare="pixels", seed=1), precision="float64"), atol=1e-4)


@pytest.mark.parametrize("augment", AUGMENTS.values(), ids=AUGMENTS)
def test_whoever_is_trained_beside(augment: Any) -> None:
    """Among clients with more samples a client's batches are padded."""
    cohort = Cohort(
        Task(smooth, prepare="pixels", augment=augment, seed=1), IMAGES, KINDS,
        Plan(threads=1, precision="float64").resolve(),
    )  # fmt: skip
    samples, keys = people().train, key(3, "beside", np.arange(4))
    start = cohort.task.initial[None]

    def trained(who: list[int]) -> Tensor:
        jobs = Jobs(WORK, keys[who], start, np.zeros(len(who), np.int64), samples.rows(np.array(who)), {}, {})
        return cohort.train(jobs).payload["delta"]

    assert torch.allclose(trained([0, 1, 2, 3])[0], trained([0])[0], rtol=0, atol=1e-12)


def test_draws_of_a_number_for_python_are_keyed_one_client_after_another() -> None:
    cohort = Cohort(Task(smooth, prepare="pixels", augment=RandomFlip()), IMAGES, KINDS, Plan(threads=1).resolve())
    assert cohort.path(WORK, ()).name == "threads"
    assert "cannot be mapped over clients" in cohort.path(WORK, ()).why


def test_training_is_a_plain_loop_over_augmented_batches() -> None:
    """One client, all samples, one step: the batch is the stored one, augmented by the key of the step."""
    seen: list[Tensor] = []

    def watched(x: Tensor) -> Tensor:
        seen.append(x.detach())
        return -x

    task = Task(net, prepare="pixels", augment=watched, seed=1)
    clients = people((8,))
    work = LocalSGD(0.5, steps=1, batching="full")
    moved = turnout.simulate(task, clients, FedAvg(work, turnout.Full()), 1, plan=Plan(threads=1), seed=2).model
    module = net()
    module.load_state_dict(task.state_dict(task.initial))
    loss = nn.functional.cross_entropy(module(-(IMAGES[:8] / 255.0)), KINDS[:8])
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
    assert seen
    assert torch.allclose(moved, task.initial - 0.5 * gradient, atol=1e-6)


def test_evaluation_is_not_augmented() -> None:
    def broken(x: Tensor) -> Tensor:
        return x * 0

    params = Task(net, seed=1).initial
    plain, augmented = Task(net, prepare="pixels", seed=1), Task(net, prepare="pixels", augment=broken, seed=1)
    assert plain.outputs(params, IMAGES).equal(augmented.outputs(params, IMAGES))
    assert not plain.outputs(params, IMAGES, KEYS[0]).equal(augmented.outputs(params, IMAGES, KEYS[0]))


def test_draws_of_the_model_stay_the_same() -> None:
    """A part that changes nothing changes no bit: the model's own dropout has its own keys."""
    task = Task(smooth, prepare="pixels", seed=1)
    assert train(task).equal(
        train(Task(smooth, prepare="pixels", augment=lambda x: x * torch.rand(1).div(9).exp().ceil() / 2, seed=1))
    )


# -- refused ----------------------------------------------------------------------------------------------------


def masks() -> nn.Module:
    return nn.Conv2d(2, 3, 1)


def drawing_from_numpy(x: Tensor) -> Tensor:
    return x + float(np.random.rand())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prepare": "pixel"}, r"task\.prepare: unknown name 'pixel'; did you mean pixels"),
        ({"augment": "rotate"}, r"task\.augment: unknown name 'rotate'; allowed: crop, cutout, flip, noise"),
        ({"augment": 3}, r"task\.augment: 3 is neither a name nor a function"),
        ({"prepare": "normalise"}, r"task\.prepare: normalise has options that it needs"),
        ({"prepare": lambda x: x.flatten(1).float(), "augment": "crop"}, r"task\.crop is for images \[B, C, H, W\]"),
        ({"prepare": "pixels", "augment": drawing_from_numpy}, r"draws from NumPy's generator"),
        ({"prepare": lambda x: x.float() + torch.rand(1)}, r"draws from torch's generator"),
        ({"prepare": lambda x: x @ x}, r"task\.prepare: it cannot process samples"),
        (
            {"prepare": [Normalise(mean=(0.1, 0.2, 0.3), std=(1.0,)), "pixels"]},
            r"task\.normalise is for samples of float",
        ),
        ({"prepare": ["pixels", Normalise((0.1, 0.2, 0.3), (1.0,))]}, r"task\.normalise\.mean: 3 numbers"),
        ({"prepare": "pixels", "model": masks, "augment": "noise,flip"}, r"task\.flip: it moves the pixels of inputs"),
    ],
)
def test_one_sentence(options: dict[str, Any], sentence: str) -> None:
    model = options.pop("model", net)
    clients = people(targets=(IMAGES[:, 0] % 3).long() if model is masks else KINDS)
    with pytest.raises(UserError, match=sentence):
        train(Task(model, **options), clients)


@pytest.mark.parametrize("call", [lambda: Crop(padding=0), lambda: Flip(chance=2.0), lambda: Noise(sigma=-1.0)])
def test_options_are_checked(call: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=r"task\.(crop\.padding|flip\.chance|noise\.sigma): "):
        call()
