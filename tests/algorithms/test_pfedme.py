"""pFedMe: own models as proximal points of the global one, in two variants."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from personal_problems import FULL, LR, START, STEPS, TRAINING, UNSEEN, assert_served, average, descend, run, slope
from torch import Tensor
from toy_problems import clients, fixed_point, simulate, steps

from support import local, population
from turnout import Full, Task, UserError
from turnout.algorithms import Local
from turnout.algorithms.pfedme import PFedMe

C = np.array([0.0, 1.0, 5.0])


def envelope(w: Tensor, client: int, mu: float, outer_lr: float, inner_steps: int) -> tuple[Tensor, Tensor]:
    """w_i and theta_i after a job."""
    theta = w
    for _ in range(STEPS):
        for _ in range(inner_steps):
            theta = theta - LR * (slope(theta, client) + mu * (theta - w))
        w = w - outer_lr * mu * (w - theta)
    return w, theta


def test_moreau_is_a_plain_loop() -> None:
    """Algorithm 1, with beta. Unseen: the proximal point of w, solved for once."""
    w, theta = START, [START] * 4
    for _ in range(3):
        pairs = [envelope(w, i, mu=0.8, outer_lr=0.3, inner_steps=3) for i in TRAINING]
        theta = [own for _, own in pairs]
        w = w + 0.6 * (average([shared for shared, _ in pairs]) - w)
    algorithm = PFedMe(FULL, Full(), mu=0.8, outer_lr=0.3, inner_steps=3, server_lr=0.6, tuning_epochs=4)
    result = run(algorithm)
    torch.testing.assert_close(result.model, w, rtol=1e-11, atol=1e-13)
    assert_served(result, [*theta, descend(w, UNSEEN, steps=4, mu=0.8, anchor=w)])


def test_averaged_is_a_plain_loop() -> None:
    w, theta = START, [START] * 4
    for _ in range(3):
        theta = [descend(theta[i], i, mu=0.8, anchor=w) for i in TRAINING]
        w = average(theta)
    result = run(PFedMe(FULL, Full(), mu=0.8, variant="averaged", tuning_epochs=4))
    torch.testing.assert_close(result.model, w, rtol=1e-11, atol=1e-13)
    assert_served(result, [*theta, descend(w, UNSEEN, steps=4, mu=0.8, anchor=w)])


@pytest.mark.parametrize("mu", [0.5, 2.0, 8.0])
def test_inner_solution(mu: float) -> None:
    """federated-em.md O16: theta = (c + mu w) / (1 + mu) for f = 1/2 (theta - c)^2."""
    people = clients(C, "equal")
    ended = simulate(PFedMe(steps(1, 0.1), Full(), mu=mu, inner_steps=300), people, 1, start=2.5)
    theta = ended.server.store.get({"model": (1,)}, people.ids)["model"][:, 0].numpy()
    np.testing.assert_allclose(theta, (C + mu * 2.5) / (1 + mu), rtol=1e-12)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_where_moreau_rests(mu: float) -> None:
    """The envelope of a/2 (x - c)^2 is that of curvature a mu / (a + mu): w rests at their weighted mean."""
    a, c = np.array([1.0, 4.0]), np.array([0.0, 1.0])
    people, pull = clients(c, "equal", a), a * mu / (a + mu)
    solved = fixed_point(PFedMe(steps(1, 0.1), Full(), mu=mu, inner_steps=300, outer_lr=0.2), people)
    assert solved == pytest.approx((pull @ c) / pull.sum(), rel=1e-10)


def test_where_averaged_rests() -> None:
    """federated-em.md O16: the penalised optimum (c + mu mean) / (1 + mu), here (1.3333, 1.6667, 3)."""
    people = clients(C, "equal")
    ended = simulate(PFedMe(steps(5, 0.1), Full(), mu=2.0, variant="averaged"), people, 100)
    theta = ended.server.store.get({"model": (1,)}, people.ids)["model"][:, 0].numpy()
    np.testing.assert_allclose(theta, [4 / 3, 5 / 3, 3], rtol=1e-12)
    assert float(ended.model[0]) == pytest.approx(2, rel=1e-12)


def test_averaged_without_a_pull_is_local_training() -> None:
    """mu = 0; the global model is then what Local publishes with `average`."""
    people, task = population(), Task(lambda: torch.nn.Linear(5, 3), seed=2)
    runs = PFedMe(local(), Full(), mu=0.0, variant="averaged"), Local(local()), Local(local(), average=True)
    ours, alone, averaged = (run(algorithm, 4, people=people, task=task) for algorithm in runs)
    assert ours.measures["train_loss"] == pytest.approx(alone.measures["train_loss"], rel=1e-11)
    torch.testing.assert_close(ours.model, averaged.model, rtol=1e-11, atol=1e-13)


def test_moreau_without_a_pull_never_moves_the_global_model() -> None:
    result = run(PFedMe(FULL, Full(), mu=0.0))
    assert torch.equal(result.model, START)
    assert_served(result, [*(descend(START, i, steps=5 * STEPS) for i in TRAINING), descend(START, UNSEEN, steps=1)])


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.variant: unknown name 'moro'; did you mean moreau\?"):
        PFedMe(FULL, variant="moro")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"algorithm.mu: -1 must be at least 0"):
        PFedMe(FULL, mu=-1)
    with pytest.raises(UserError, match=r"algorithm.inner_steps: 0 must be at least 1"):
        PFedMe(FULL, inner_steps=0)
