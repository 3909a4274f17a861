"""FedProx+: FedProx, and free passes before a client serves."""

from __future__ import annotations

import pytest
import torch
from personal_problems import FULL, TRAINING, UNSEEN, assert_served, descend, run

from turnout import FedProx, Full, UserError
from turnout.algorithms.fedprox_plus import FedProxPlus


def test_it_trains_as_fedprox_and_serves_as_fedavg_plus() -> None:
    result = run(FedProxPlus(FULL, Full(), mu=2.0, tuning_epochs=3))
    w = run(FedProx(FULL, Full(), mu=2.0)).model
    torch.testing.assert_close(result.model, w, rtol=1e-12, atol=1e-14)
    assert_served(result, [descend(w, i, steps=3) for i in (*TRAINING, UNSEEN)])
    assert not result.server.store.save()["row"].ge(0).any()


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"algorithm.mu: -1 must be at least 0"):
        FedProxPlus(FULL, mu=-1)
    with pytest.raises(UserError, match=r"algorithm.tuning_epochs: 0 must be at least 1"):
        FedProxPlus(FULL, tuning_epochs=0)
