"""APFL: a client serves alpha times its own model plus 1 - alpha times the global one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from personal_problems import (
    FULL,
    LR,
    START,
    STEPS,
    TRAINING,
    UNSEEN,
    assert_served,
    average,
    descend,
    loss,
    run,
    slope,
)
from torch import Tensor
from toy_problems import clients, simulate, steps

from support import local, population
from turnout import FedAvg, Full, Task, UserError
from turnout.algorithms import Local
from turnout.algorithms.apfl import APFL


def follow(
    v: Tensor, w: Tensor, client: int, alpha: float, steps: int = STEPS, frozen: bool = False
) -> tuple[Tensor, Tensor]:
    """v and w of one client after so many steps."""
    for _ in range(steps):
        g = slope(alpha * v + (1 - alpha) * w, client)
        v, w = v - LR * alpha * g, w if frozen else w - LR * slope(w, client)
    return v, w


def test_a_plain_loop() -> None:
    """Algorithm 1. Unseen: w frozen, v from w."""
    alpha, w, v = 0.3, START, [START] * 4
    for _ in range(3):
        pairs = [follow(v[i], w, i, alpha) for i in TRAINING]
        v, w = [own for own, _ in pairs], average([shared for _, shared in pairs])
    new, _ = follow(w, w, UNSEEN, alpha, steps=5, frozen=True)
    result = run(APFL(FULL, Full(), alpha=alpha, tuning_epochs=5))
    torch.testing.assert_close(result.model, w, rtol=1e-11, atol=1e-13)
    assert_served(result, [alpha * own + (1 - alpha) * w for own in (*v, new)])


def task() -> Task:
    return Task(lambda: torch.nn.Linear(5, 3), seed=2)


def test_alpha_0_is_fedavg() -> None:
    people = population()
    mixed, shared = (
        run(a, 4, people=people, task=task()) for a in (APFL(local(), Full(), alpha=0.0), FedAvg(local(), Full()))
    )
    torch.testing.assert_close(mixed.model, shared.model, rtol=1e-11, atol=1e-13)
    assert mixed.measures["test_loss"] == pytest.approx(shared.measures["test_loss"], rel=1e-11)


def test_alpha_0_is_fedavg_for_the_unseen_too() -> None:
    result = run(APFL(FULL, Full(), alpha=0.0, tuning_epochs=7))
    shared = run(FedAvg(FULL, Full()))
    np.testing.assert_allclose(result.server.clients()["train_loss"], shared.server.clients()["train_loss"], rtol=1e-11)


def test_alpha_1_is_local_training() -> None:
    people = population()
    mixed, alone = (run(a, 4, people=people, task=task()) for a in (APFL(local(), Full(), alpha=1.0), Local(local())))
    own = [r.server.store.get({"model": (r.server.task.size,)}, people.ids)["model"] for r in (mixed, alone)]
    torch.testing.assert_close(own[0], own[1], rtol=1e-11, atol=1e-13)
    assert mixed.measures["test_loss"] == pytest.approx(alone.measures["test_loss"], rel=1e-11)


def test_alpha_1_is_training_alone_for_the_unseen() -> None:
    result = run(APFL(FULL, Full(), alpha=1.0, tuning_epochs=3))
    alone = run(APFL(FULL, Full(), alpha=1.0, tuning_epochs=3, server_lr=0.5))  # begins elsewhere: it matters
    losses = [r.server.clients()["train_loss"][UNSEEN] for r in (result, alone)]
    w = result.model
    assert losses[0] != losses[1]
    assert_served(result, [*_own(result), descend(w, UNSEEN, steps=3)])


def _own(result: object) -> list[Tensor]:
    store = result.server.store  # type: ignore[attr-defined]
    return list(store.get({"model": (len(START),)}, np.arange(4))["model"])


def test_clients_find_their_own_alpha() -> None:
    """Of clients at 0, 3.6 and 8 the global model suits the second, whose alpha falls; those of the others grow, the
    further away the more, and no further than 1."""
    people = clients((0.0, 3.6, 8.0), "equal")
    ended = simulate(APFL(steps(1, 0.05), Full(), alpha=0.5, adaptive=True), people, 100)
    alpha = ended.server.store.get({"alpha": ()}, people.ids)["alpha"].numpy()
    assert alpha[2] == 1
    assert 0.9 < alpha[0] < 1
    assert alpha[1] < 0.1
    fixed = simulate(APFL(steps(1, 0.05), Full(), alpha=0.5), people, 2)
    assert fixed.server.store.get({"alpha": ()}, people.ids)["alpha"].tolist() == [0.5] * 3


def test_a_client_serves_the_mixture_by_the_alpha_it_has_found() -> None:
    result = run(APFL(FULL, Full(), alpha=0.5, adaptive=True))
    alpha = result.server.store.get({"alpha": ()}, np.arange(4))["alpha"]
    assert float((alpha - 0.5).abs().min()) > 1e-4
    served = [float(a) * v + (1 - float(a)) * result.model for a, v in zip(alpha, _own(result), strict=True)]
    expected = [float(loss(vector, client)) for client, vector in enumerate(served)]
    np.testing.assert_allclose(result.server.clients()["train_loss"][:4], expected, rtol=1e-9)


def test_mistakes() -> None:
    for alpha in (-0.1, 1.1):
        with pytest.raises(UserError, match=rf"algorithm.alpha: {alpha} must be from 0 to 1"):
            APFL(FULL, alpha=alpha)
