"""What FEM-OMD is compared with: each by its formula, all by the protocol, and all resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from online.small_worlds import GAUSSIANS, classifiers, drawn, labelled, numbers, ragged, task
from turnout import UserError
from turnout.theory.mirror import floored
from turnout_studies.online.baselines import FedOMD, FollowTheLeader, LastStep, LocalEMOMD, StaticFedEM
from turnout_studies.online.em import em_step, federated_em
from turnout_studies.online.environment import GaussianStream, gaussian_centres, near
from turnout_studies.online.learner import FEMOMD, Learner
from turnout_studies.online.samples import Samples

CENTRES = gaussian_centres(3, 5, 5.0, seed=1)
START = near(CENTRES, 1 / 16, seed=1)
STREAM = GaussianStream(CENTRES, 4, 6)
MIXTURES: list[type[FEMOMD]] = [FEMOMD, LastStep, FollowTheLeader, StaticFedEM, LocalEMOMD]


def run(learner: Learner, steps: int) -> Learner:
    for step in range(learner.step, learner.step + steps):
        learner.play()
        learner.observe(STREAM.samples(step))
    return learner


def estimates(steps: int) -> list[torch.Tensor]:
    """pi~ of every step, with the components of FEM-OMD, which do not depend on the weights played."""
    learner, found = FEMOMD(GAUSSIANS, START, 4), []
    for step in range(steps):
        found.append(federated_em(GAUSSIANS, learner.components, STREAM.samples(step), 5)[1])
        learner.play()
        learner.observe(STREAM.samples(step))
    return found


def test_last_step() -> None:
    torch.testing.assert_close(run(LastStep(GAUSSIANS, START, 4), 3).weights, floored(estimates(3)[-1], 0.01))


def test_follow_the_leader() -> None:
    """The mean of the estimates, over the steps at which there were samples."""
    learner = run(FollowTheLeader(GAUSSIANS, START, 4), 3)
    torch.testing.assert_close(learner.weights, floored(torch.stack(estimates(3)).mean(0), 0.01))
    kept = learner.weights[1]
    learner.play()
    learner.observe({0: STREAM.samples(3).inputs[0]})
    assert torch.equal(learner.weights[1], kept)
    learner.join()
    assert isinstance(learner, FollowTheLeader)
    assert learner.explained[1].sum() == pytest.approx(3)
    learner.play()
    learner.observe({4: STREAM.samples(3).inputs[0], 1: STREAM.samples(4).inputs[1]})
    ahead = floored(federated_em(GAUSSIANS, learner.components, STREAM.samples(3), 5)[1], 0.01)[0]
    assert float((learner.weights[4] - ahead).abs().max()) < 0.05
    assert float((learner.weights[1] - kept).abs().max()) > 0.01


def test_static_fedem_refits_everything() -> None:
    """From what was played, over all samples so far."""
    learner = run(StaticFedEM(GAUSSIANS, START, 4, em_steps=2), 2)
    expected, pi = START, torch.full((4, 3), 1 / 3, dtype=torch.float64)
    for samples in (STREAM.samples(0), STREAM.samples(0).then(STREAM.samples(1))):
        for _ in range(2):
            expected, pi = em_step(GAUSSIANS, expected, pi, samples)
            pi = floored(pi, 0.01)
    torch.testing.assert_close(learner.components, expected)
    torch.testing.assert_close(learner.weights, pi)


@pytest.mark.parametrize("labels", [False, True])
def test_local_learners_are_so_many_learners(labels: bool) -> None:
    family, start = (classifiers(), task().initials(2)) if labels else (GAUSSIANS, START)
    options: dict[str, Any] = {} if labels else {"gradient": "samples"}
    received = labelled(3, 7) if labels else GaussianStream(CENTRES, 3, 7).samples(0)
    received = received._replace(counted=(torch.arange(7) < torch.tensor([[7], [2], [5]])).double())
    together = LocalEMOMD(family, start, 3, **options)
    alone = [FEMOMD(family, start, 1, **options) for _ in range(3)]
    for _ in range(2):
        together.play()
        together.observe(received)
        for client, learner in enumerate(alone):
            learner.play()
            learner.observe(Samples(*(column[client : client + 1] for column in received)))
    torch.testing.assert_close(together.components, torch.stack([learner.components for learner in alone]))
    torch.testing.assert_close(together.weights, torch.cat([learner.weights for learner in alone]))
    expected = [one.log_prob(Samples(*(c[i : i + 1] for c in received))) for i, one in enumerate(alone)]
    torch.testing.assert_close(together.log_prob(received), torch.cat(expected))


def test_local_learners_draw_from_their_own_sources() -> None:
    """The default gradient of Gaussians, and a client that joins."""
    learner = run(LocalEMOMD(GAUSSIANS, START, 4), 2)
    assert learner.components.shape == (4, 3, 5)
    learner.join()
    assert torch.equal(learner.play().components[4], START)
    assert bool(torch.isfinite(learner.weights).all())


@pytest.mark.parametrize("em_steps", [1, 3])
def test_one_classifier_is_fedomd(em_steps: int) -> None:
    """FEM-OMD with one component and synchronised steps is online federated gradient descent, sizes as weights."""
    received = ragged(labelled(3, 7), [7, 2, 0])
    one = FEMOMD(classifiers(0.2), task().initials(1), 3, em_steps=em_steps)
    other = FedOMD(classifiers(), task().initials(1), 3, lr=0.2)
    for _ in range(2):
        one.play()
        one.observe(received)
        for _ in range(em_steps):
            other.play()
            other.observe(received)
    torch.testing.assert_close(one.components, other.components)


def test_fedomd_by_hand() -> None:
    """Two local steps on Gaussians: theta moves by eta (mean - theta) each; then the weighted mean, in the ball."""
    x, y = drawn("x", 3, 2), drawn("y", 1, 2) + 4
    learner = FedOMD(GAUSSIANS, numbers([1, 1]), 2, lr=0.25, local_steps=2)
    learner.play()
    learner.observe({0: x, 1: y})
    start = numbers(1, 1)
    own = [start + (1 - 0.75**2) * (rows.mean(0) - start) for rows in (x, y)]
    torch.testing.assert_close(learner.components[0], (3 * own[0] + own[1]) / 4)
    inside = FedOMD(GAUSSIANS, numbers([1, 1]), 1, lr=1.0, radius=2.0)
    inside.play()
    inside.observe({0: numbers([30, 40])})
    torch.testing.assert_close(inside.components[0], numbers(1.2, 1.6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial": START}, r"online.initial: 3 models; FedOMD has one for all"),
        ({"lr": 0.0}, r"online.lr: 0.0 must be above 0"),
        ({"radius": -1.0}, r"online.radius: -1.0 must be above 0"),
        ({"local_steps": 0}, r"online.local_steps: 0 must be at least 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FedOMD(**{"family": GAUSSIANS, "initial": START[:1], "clients": 4, **options})


@pytest.mark.parametrize("kind", [*MIXTURES, FedOMD])
def test_runs_resume(kind: type[Learner]) -> None:
    """From a dictionary of tensors, between a play and what follows it too; to the bit."""
    start = START[:1] if kind is FedOMD else START
    whole, first = run(kind(GAUSSIANS, start, 4), 5), kind(GAUSSIANS, start, 4)
    second = kind(GAUSSIANS, start, 4)
    second.load_state_dict(first.state_dict())
    run(second, 3)
    second.play()
    third = kind(GAUSSIANS, start, 4)
    state = {name: value.clone() for name, value in second.state_dict().items()}
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    third.load_state_dict(state)
    third.observe(STREAM.samples(3))
    run(third, 1)
    for name, value in whole.state_dict().items():
        assert torch.equal(third.state_dict()[name], value), name
    whole.join()
    third.load_state_dict(whole.state_dict())
    assert third.clients == 5
