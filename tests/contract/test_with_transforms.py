"""The contract with transformed updates: every algorithm takes them or says in one sentence why not; the same bits
twice and through a checkpoint, in both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import turnout
from support import ALGORITHMS, SMALL, WORLD, chained, experiment, local, population, same
from turnout import Plan
from turnout.core.errors import UserError

CHAIN = "clip:0.5,noise:0.01:4,top_k:0.2,quantise:6"
COMPRESSED = "clip:0.5,top_k:0.2,quantise:6"
REFUSE = {"local", "mocha", "l2sgd", "continuing", "dpasgd", "d_fedem"}
MORE = {"scaffold", "fedprof", "stateful", "ifca"}  # more than the update is sent, which noise hides

KINDS = ("fedavg", "fedbuff", "safa", "scaffold", "fedem", "fedper", "windowed", "standing", "fetching", "stateful")


def transformed(name: str, rounds: int, chain: str, plan: Plan | None = None) -> turnout.Experiment:
    made = experiment(
        name,
        rounds,
        people=population(SMALL, **WORLD),
        evaluation=turnout.Evaluation(rounds=None, clients=1),
        plan=plan or Plan(threads=1),
    )
    made.algorithm.local = local(modifiers=chained(chain))  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("name", ALGORITHMS)
def test_taken_or_refused_with_a_sentence(name: str) -> None:
    if name in REFUSE | MORE:
        why = "local.modifiers: clients of this algorithm" if name in REFUSE else "privacy: noise hides updates, but"
        with pytest.raises(UserError, match=f"^{why}"):
            turnout.execute(transformed(name, 1, CHAIN))
    else:
        assert torch.isfinite(turnout.execute(transformed(name, 1, CHAIN)).model).all()


@pytest.mark.parametrize("name", KINDS)
def test_same_bits_twice_and_after_a_resume(name: str, tmp_path: Path) -> None:
    chain = COMPRESSED if name in MORE else CHAIN
    whole = turnout.execute(transformed(name, 3, chain))
    turnout.execute(transformed(name, 1, chain), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(transformed(name, 3, chain), tmp_path, checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert same(whole.jobs(), resumed.jobs())


@pytest.mark.parametrize("name", ["scaffold", "windowed"])
def test_both_engines_and_a_difference(name: str) -> None:
    """Quantisation and the largest entries are decided by values: double precision, or a last bit could decide."""
    plans = [Plan(precision="float64", threads=1, engine=engine) for engine in ("vectorised", "sequential")]
    one, two = (turnout.execute(transformed(name, 3, COMPRESSED, plan)).model for plan in plans)
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
    plain = turnout.execute(transformed(name, 3, "", plans[0])).model
    assert not torch.allclose(plain, one, rtol=1e-4)
