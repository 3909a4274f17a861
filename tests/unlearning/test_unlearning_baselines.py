"""What SIFU is compared with, and the watermark: closed forms on small problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import turnout
from support import images, population
from turnout import Evaluation, Experiment, FedAvg, Full, LocalSGD, Plan, Stopping, Task, UserError
from turnout.record.unlearning import Unlearning, noise_ratio
from turnout_studies.forgetting import baselines
from turnout_studies.forgetting.watermark import accuracy_on, places, stamped


def made(rounds: int = 5, **options: Any) -> Experiment:
    return Experiment(
        Task(lambda: nn.Linear(5, 3), seed=3),
        options.pop("people", population(test=None)),
        options.pop("algorithm", FedAvg(LocalSGD(0.1, steps=4, batching="full"), Full())),
        5,
        Stopping(rounds),
        Evaluation(rounds=1000),
        plan=Plan(precision="float64", threads=1),
        unlearning=Unlearning(),
    )


@pytest.fixture(scope="module")
def trained() -> tuple[turnout.Result, baselines.Archive]:
    archive = baselines.Archive()
    return turnout.execute(made(), observers=[archive]), archive


def test_fedaccum_with_everybody_is_the_training(trained: tuple[turnout.Result, baselines.Archive]) -> None:
    result, archive = trained
    torch.testing.assert_close(baselines.fedaccum(archive, []), result.model)
    assert archive.bytes == 5 * 8 * 18 * 8


def test_fedaccum_adds_up_what_the_others_once_sent(trained: tuple[turnout.Result, baselines.Archive]) -> None:
    _, archive = trained
    expected = archive.start.clone()
    stay = [0, 1, 3, 5, 6, 7]
    sizes = np.array([3.0, 17, 1, 10, 6, 12])
    for stored in archive.rounds:
        updates = torch.stack([stored.updates[stored.clients.tolist().index(client)] for client in stay])
        expected += torch.from_numpy(sizes / sizes.sum()) @ updates
    torch.testing.assert_close(baselines.fedaccum(archive, [2, 4]), expected)


def test_fedaccum_skips_rounds_with_nobody_left() -> None:
    archive = baselines.Archive()
    archive.start = torch.zeros(1)
    ones, weight = torch.ones(1, 1), np.ones(1)
    archive.rounds = [baselines.StoredRound(np.array([client]), weight, ones) for client in (0, 1, 1)]
    assert baselines.fedaccum(archive, [1]).tolist() == [1.0]


def test_federaser_goes_as_far_as_the_updates_once_did() -> None:
    """One client left, scalar quadratics: the direction is towards its optimum, the length is what it once moved."""
    data = turnout.datasets.load("quadratics", optima=[0.0, 8.0])
    people = turnout.Population.of(data, 2, "natural", test="none")
    from support import quadratic_loss, theta

    experiment = replace(made(4, people=people), task=Task(lambda: theta(), quadratic_loss))
    archive = baselines.Archive()
    turnout.execute(experiment, observers=[archive])
    moved = [float(stored.updates[stored.clients.tolist().index(1)].norm()) for stored in archive.rounds]
    model = baselines.federaser(experiment, archive, [0])
    assert model.tolist() == pytest.approx([moved[0] + moved[2]])
    whole = baselines.federaser(experiment, archive, [0], interval=1)
    assert whole.tolist() == pytest.approx([sum(moved)])
    with pytest.raises(UserError, match="no local work"):
        baselines.federaser(replace(experiment, algorithm=Nothing()), archive, [0])


class Nothing(turnout.Algorithm):
    pass


def test_federaser_repeats_half_of_the_steps(trained: tuple[turnout.Result, baselines.Archive]) -> None:
    _, archive = trained
    rounds = [stored for each in archive.rounds if (stored := each.without([2])) is not None]
    people = made().population.without([2])
    work = baselines.FedEraser(LocalSGD(0.1, steps=4, batching="full"), rounds)
    jobs = turnout.execute(made(2, people=people, algorithm=work)).jobs()
    assert set(jobs["steps"]) == {2}
    assert set(jobs["client"]) == {0, 1, 3, 4, 5, 6, 7}


def test_last_is_noise_for_the_largest_sensitivity(trained: tuple[turnout.Result, baselines.Archive]) -> None:
    result, _ = trained
    assert result.sensitivity is not None
    table, settings = result.sensitivity.table, Unlearning(calibration="classic")
    sigma = noise_ratio(10, 0.01, "classic") * max(table.psi([client])[-1] for client in range(8))
    noise = baselines.last(torch.zeros(200_000), table, settings, range(8), seed=1)
    assert float(noise.std()) == pytest.approx(sigma, rel=0.01)


def test_clipped_and_noised_training() -> None:
    """A single huge update: what is left of it is the clip, and the noise is 2 clip max weight times the ratio."""
    huge = replace(made(1, algorithm=FedAvg(LocalSGD(5.0, steps=4, batching="full"), Full())), unlearning=None)
    quiet = baselines.clipped(0.01, epsilon=1e12, noise_seed=0)
    model = turnout.execute(replace(huge, privacy=quiet)).model
    assert 0 < float((model - made().task.initial.double()).norm()) <= 0.01 + 1e-9
    wide = replace(huge, task=Task(lambda: nn.Linear(5, 3000)), privacy=quiet)
    loud = replace(wide, privacy=baselines.clipped(0.01, noise_seed=0))
    noise = turnout.execute(loud).model - turnout.execute(wide).model
    largest = 25 / 82  # of the importance
    assert float(noise.std()) == pytest.approx(2 * 0.01 * largest * noise_ratio(10, 0.01, "classic"), rel=0.02)


def test_a_budget_a_round_is_no_budget() -> None:
    paper = baselines.clipped()
    assert baselines.spent(paper, 1) == pytest.approx(11.918, abs=1e-3)
    assert baselines.spent(paper, 100) > 500
    assert baselines.spent(baselines.clipped(rounds=100), 100) == pytest.approx(10)
    for options in ({"clip": 0.0}, {"rounds": 0}, {"delta": 2.0}, {"epsilon": 0.0}):
        with pytest.raises(UserError):
            baselines.clipped(**options)


def test_a_newton_step_is_the_model_without_the_client() -> None:
    """Model scrubbing (theta minus the inverse Hessian of the others times their gradient) on least squares is exact,
    and it is what retraining from scratch converges to."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.1 * torch.arange(40) / 40
    rows = turnout.Ragged(np.array([0, 10, 25, 40]), np.arange(40))
    people = turnout.Population(x, y[:, None], rows)
    task = Task(lambda: nn.Linear(3, 1, bias=False), lambda out, target: (out - target).square().sum(1) / 2)
    local = LocalSGD(0.5, steps=1, batching="full")
    experiment = Experiment(
        task,
        people,
        FedAvg(local, Full()),
        0,
        Stopping(80),
        Evaluation(rounds=1000),
        Plan(precision="float64", threads=1),
    )
    theta = turnout.execute(experiment).model
    others, answers = x[10:], y[10:]
    hessian, gradient = others.T @ others, others.T @ (others @ theta - answers)
    scrubbed = theta - torch.linalg.solve(hessian, gradient)
    scratch = turnout.execute(replace(experiment, population=people.without([0]))).model
    torch.testing.assert_close(scrubbed, scratch, rtol=1e-5, atol=1e-7)


# -- watermark ------------------------------------------------------------------------------------------------


def test_every_sample_of_a_client_is_stamped() -> None:
    plain = images((4, 3, 5), test=turnout.Ragged(np.array([0, 1, 2, 3]), np.array([1, 1, 7])))
    marked = stamped(plain, pixels=5, marks=2)
    assert marked.test is not None
    for part in ("train", "test"):
        before, after = getattr(plain, part), getattr(marked, part)
        assert after.counts.tolist() == before.counts.tolist()
        for client in range(3):
            where = places(client, 36, pixels=5, marks=2)
            old = plain.inputs[torch.as_tensor(before.row(client))].flatten(1)
            new = marked.inputs[torch.as_tensor(after.row(client))].flatten(1)
            assert torch.equal(new[:, where], old.amax(1, keepdim=True).expand(-1, 5))
            rest = np.setdiff1d(np.arange(36), where)
            assert torch.equal(new[:, rest], old[:, rest])
            assert torch.equal(
                marked.targets[torch.as_tensor(after.row(client))], plain.targets[torch.as_tensor(before.row(client))]
            )
    assert places(0, 36).tolist() == places(10, 36).tolist() != places(1, 36).tolist()
    with pytest.raises(UserError, match="40 pixels of samples with 36 numbers"):
        stamped(plain, pixels=40)


def test_a_learnt_watermark_is_seen_and_scratch_does_not_know_it() -> None:
    """Labels of client 0 are told by its mark alone: whoever has learnt the mark is right on it."""
    inputs = torch.zeros(40, 6)
    inputs[:, 5] = 1.0
    targets = torch.tensor([1] * 20 + [0] * 20)
    rows = turnout.Ragged(np.array([0, 20, 40]), np.arange(40))
    people = stamped(turnout.Population(inputs, targets, rows), pixels=1, seed=4)
    assert places(0, 6, pixels=1, seed=4) != places(1, 6, pixels=1, seed=4)
    local = LocalSGD(0.5, steps=5, batching="full")
    experiment = replace(made(10, people=people, algorithm=FedAvg(local, Full())), task=Task(lambda: nn.Linear(6, 2)))
    original = turnout.execute(experiment)
    scratch = turnout.execute(replace(experiment, population=people.without([0])))
    assert accuracy_on(original.server, [0]) == 1
    assert accuracy_on(scratch.server, [0]) == 0
    assert accuracy_on(original.server, [0, 1]) == 1
