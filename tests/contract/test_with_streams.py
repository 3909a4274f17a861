"""The contract while data arrive: the same bits twice and through a checkpoint with half-filled memories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import turnout
from support import ALGORITHMS, SMALL, WORLD, experiment, population, same
from turnout.clients import arriving, memories
from turnout.clients.population import Population

FRESH = [0, 1, 2, 4, 5, 7]


def people() -> Population:
    """Two have their data before, the others get some now and then, and keep eight of them."""
    return population(SMALL, **WORLD).streaming(arriving.poisson(0.3), memories.Reservoir(8), fresh=FRESH, seconds=0.2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_bits_twice_and_after_a_resume(name: str, tmp_path: Path) -> None:
    whole = turnout.execute(experiment(name, 4, people=people()))
    turnout.execute(experiment(name, 2, people=people()), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(experiment(name, 4, people=people()), tmp_path, checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, resumed.model)
    jobs = whole.jobs()
    assert same(whole.rounds(), resumed.rounds())
    assert same(jobs, resumed.jobs())
    assert torch.isfinite(whole.model).all()
    if name != "centralised":  # which has everybody's data
        fresh = np.isin(jobs["client"], FRESH) & (jobs["outcome"] == "arrived")
        assert ((jobs["samples"][fresh] >= 1) & (jobs["samples"][fresh] <= 8)).all()
        assert (jobs["samples"][fresh] < 8).any()  # memories were still filling
