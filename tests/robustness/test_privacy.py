"""Differential privacy: what a step does, what noise is made of, what is spent, and what is refused."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

import turnout
from support import WORLD, Standing, chained, experiment, local, population, same, simulation
from turnout import Plan, Stopping
from turnout.algorithms.robust_mean import RobustMean
from turnout.config import config
from turnout.core.errors import UserError
from turnout.core.random import key, normal
from turnout.record.accounting import ORDERS
from turnout.record.watch import Screening
from turnout.server.privacy import Privacy

EXACT = Plan(precision="float64", threads=1)
SELDOM = turnout.Evaluation(None, clients=1)
SEEDED = Privacy(noise=0.5, clip=0.3, max_weight=0.4, noise_seed=11)


def server(privacy: Privacy, method: Any = None, **options: Any) -> turnout.Simulation:
    method = method or turnout.FedAvg(local(), turnout.Full())
    return simulation(method, privacy=privacy, plan=EXACT, seed=5, **options)


def run(privacy: Privacy | None, rounds: int = 3, chain: str = "", folder: Path | None = None, **options: Any) -> Any:
    people = options.pop("people", None) or population()
    sampler = options.pop("sampler", None) or turnout.Full()
    method = turnout.FedAvg(local(modifiers=chained(chain)), sampler, **options.pop("method", {}))
    plan = experiment("fedavg", rounds, algorithm=method, people=people, privacy=privacy, evaluation=SELDOM)
    return turnout.execute(plan, folder, checkpoint_every=2, **options)


# -- a step -----------------------------------------------------------------------------------------------------


def test_a_step_by_hand() -> None:
    """Clipped updates, weights of at most 0.4, and the noise of the seed: std 0.5 * 0.3 * 0.4 in every parameter."""
    private, plain = server(SEEDED), simulation(turnout.FedAvg(local(), turnout.Full()), plan=EXACT, seed=5)
    for one in (private, plain):
        one.invite(np.arange(8), local())
    updates, expected = private.wait(), plain.wait().deltas
    weights = np.array([0.5, 0.1, 0.1, 0.05, 0.05, 0.1, 0.05, 0.05])
    before = private.model.clone()
    private.step(updates, weights)
    total = torch.zeros_like(before)
    for row, weight in zip(expected, weights, strict=True):
        total += min(weight, 0.4) * row * min(1.0, 0.3 / float(row.norm()))
    assert float(expected.norm(dim=1).max()) > 0.3
    noise = 0.5 * 0.3 * 0.4 * torch.from_numpy(normal(key(11, "central noise", 0), len(before)))
    torch.testing.assert_close(private.model - before, total + noise, rtol=1e-9, atol=1e-12)


def test_no_client_moves_a_step_by_more_than_clip_times_weight() -> None:
    """The very quantity that the noise is to hide, with one of the updates all zero."""
    private = server(SEEDED)
    private.invite(np.arange(8), local())
    updates = private.wait().sealed(False)
    weights = SEEDED.bounded(updates.clients, np.full(8, 0.6))
    whole = SEEDED.noised_sum(updates, weights, private.model, 0)
    for row in range(8):
        others = np.arange(8) != row
        without = SEEDED.noised_sum(updates.select(others), weights[others], private.model, 0)
        assert 0 < float((whole - without).norm()) <= 0.3 * 0.4 * (1 + 1e-9)


def test_updates_of_one_client_share_its_weight() -> None:
    bounded = SEEDED.bounded(np.array([3, 1, 3, 2]), np.array([0.3, 0.3, 0.5, 0.4]))
    np.testing.assert_allclose(bounded, [0.15, 0.3, 0.25, 0.4])
    signed = SEEDED.bounded(np.array([3, 1, 3]), np.array([0.3, -0.8, -0.5]))  # the sum of two may move by both
    np.testing.assert_allclose(signed, [0.15, -0.4, -0.25])


@pytest.mark.parametrize(
    ("sampler", "weight"),
    [
        (turnout.Full(), 25 / 82),
        (turnout.Uniform(4), 2 * 25 / 82),
        (turnout.samplers.Fill(4), 25 / 82),
        (turnout.samplers.PoissonBinomial(2), 0.5),
        (turnout.samplers.Binomial(2), 4 * 25 / 82),
    ],
)
def test_the_largest_weight_is_that_of_the_sampler(sampler: Any, weight: float) -> None:
    private = server(Privacy(1.0, 1.0, noise_seed=1), turnout.FedAvg(local(), sampler))
    assert private.privacy is not None
    assert private.privacy.max_weight == pytest.approx(weight)


def test_an_empty_round_is_noised_too() -> None:
    private = server(SEEDED)
    before = private.model.clone()
    private.step(private.wait(0), [])
    assert float((private.model - before).std()) == pytest.approx(0.5 * 0.3 * 0.4, rel=0.3)


def test_the_noise_is_of_the_operating_system_and_of_the_right_size() -> None:
    private = replace(SEEDED, noise_seed=None)
    nobody = server(SEEDED).wait(0)
    model = torch.zeros(200_000, dtype=torch.float64)
    one, two = (private.noised_sum(nobody, np.zeros(0), model, 0) for _ in range(2))
    assert float(one.std()) == pytest.approx(0.5 * 0.3 * 0.4, rel=0.01)
    assert abs(float(one.mean())) < 4 * 0.06 / sqrt(200_000)
    assert abs(float(torch.corrcoef(torch.stack([one, two]))[0, 1])) < 0.01


def test_a_nan_update_is_rejected_before_it_is_clipped() -> None:
    private = server(SEEDED)
    private.invite(np.arange(8), local())
    updates = private.wait().sealed(False)
    updates.deltas[0].fill_(0)
    block, row = updates.jobs[2].result  # type: ignore[misc]
    block["delta"][row] = torch.nan
    assert len(private.step(updates, np.full(8, 0.1))) == 7
    assert torch.isfinite(private.model).all()


# -- a seed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedadam", "fedbuff", "windowed"])
def test_with_a_seed_the_same_bits_twice_and_after_a_resume_and_not_private(name: str, tmp_path: Path) -> None:
    def plan(rounds: int) -> turnout.Experiment:
        return experiment(name, rounds, people=population(**WORLD), evaluation=SELDOM, privacy=SEEDED)

    whole = turnout.execute(plan(3))
    turnout.execute(plan(2), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(plan(3), tmp_path, checkpoint_every=1, resume=True)
    assert torch.equal(whole.model, resumed.model)
    assert same(whole.jobs(), resumed.jobs())
    assert not torch.equal(whole.model, turnout.execute(replace(plan(3), privacy=None)).model)
    assert whole.summary()["privacy"]["central"]["private"] is False
    assert "epsilon" not in whole.rounds()


def test_seeded_local_noise_is_not_private_either() -> None:
    result = run(None, chain="clip:1.0,noise:0.1:3")
    assert result.summary()["privacy"] == {"local": result.privacy["local"]}
    assert result.privacy["local"]["private"] is False
    assert "privacy" not in run(None).summary()


# -- what is spent ----------------------------------------------------------------------------------------------


def exact_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang, ICML 2018: the least epsilon of a Gaussian mechanism of sensitivity mu standard deviations."""

    def excess(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return float(brentq(excess, 0, 50))


def test_epsilon_grows_by_the_round_and_is_close_to_the_exact_one_from_above() -> None:
    """Steps without sampling are one Gaussian mechanism of sqrt(t) / z."""
    pytest.importorskip("dp_accounting")
    result = run(Privacy(noise=3.0, clip=0.3, delta=1e-6), 8)
    spent = result.rounds()["epsilon"]
    assert spent[0] == 0
    for steps, epsilon in enumerate(spent[1:], 1):
        exact = exact_epsilon(sqrt(steps) / 3.0, 1e-6)
        assert exact < epsilon < 1.15 * exact
    findings = result.summary()["privacy"]["central"]
    assert findings == {"private": True, "epsilon": spent[-1], "delta": 1e-6, "events": 8, "of": "gaussian(3)"}


def test_local_noise_is_spent_by_uploads_of_the_busiest_client() -> None:
    """clip 0.5 and noise 2: any two updates are half a standard deviation apart."""
    pytest.importorskip("dp_accounting")
    result = run(None, 6, "clip:0.5,noise:2.0", sampler=turnout.MD(3))
    jobs = result.jobs()
    uploads = int(np.bincount(jobs["client"][jobs["outcome"] == "arrived"]).max())
    assert 1 < uploads < 6
    epsilon = result.rounds()["local_epsilon"][-1]
    exact = exact_epsilon(sqrt(uploads) / 2, 1e-5)
    assert exact < epsilon < 1.15 * exact
    assert result.privacy["local"] | {"epsilon": 0, "events": 0} == {
        "private": True, "epsilon": 0, "delta": 1e-5, "events": 0, "of": "gaussian(2)",
    }  # fmt: skip


def test_an_upload_is_paid_for_once_however_often_it_is_used() -> None:
    pytest.importorskip("dp_accounting")
    plan = experiment("safa", 6, people=population(**WORLD), evaluation=SELDOM)
    plan.algorithm.local = local(modifiers=chained("clip:0.5,noise:2.0"))  # type: ignore[attr-defined]
    result = turnout.execute(plan)
    jobs = result.jobs()
    assert (jobs["outcome"] == "used_later").any()
    uploads = np.bincount(jobs["client"][jobs["outcome"] == "arrived"])
    assert result.privacy["local"]["events"] == uploads.max()


def test_a_secret_sample_amplifies_where_that_holds() -> None:
    """Poisson: of the same noise less is spent. Without replacement neighbours are others, and twice as far apart."""
    pytest.importorskip("dp_accounting")
    sizes = (10,) * 40
    people, unreliable = population(sizes), population(sizes, crashes=turnout.Crashes(0.2))
    private = Privacy(noise=2.0, clip=0.3)
    plain = run(private, 2, sampler=turnout.samplers.Binomial(4), people=people).privacy["central"]
    assert plain["of"] == "gaussian(2)"
    secret = replace(private, amplified=True)
    poisson = run(secret, 2, sampler=turnout.samplers.Binomial(4), people=unreliable).privacy["central"]
    assert poisson["of"] == "poisson_sampled(0.1, gaussian(2))"
    assert poisson["epsilon"] < 0.5 * plain["epsilon"]
    drawn = run(secret, 2, sampler=turnout.Uniform(4), people=people).privacy["central"]
    assert drawn["of"] == "sampled_without_replacement(4 of 40, gaussian(1))"
    assert drawn["epsilon"] < plain["epsilon"]
    import dp_accounting as package

    for found, relation, event in (
        (poisson, "ADD_OR_REMOVE_ONE", package.PoissonSampledDpEvent(0.1, package.GaussianDpEvent(2.0))),
        (drawn, "REPLACE_ONE", package.SampledWithoutReplacementDpEvent(40, 4, package.GaussianDpEvent(1.0))),
    ):
        accountant = package.rdp.RdpAccountant(ORDERS, package.NeighboringRelation[relation])
        assert found["epsilon"] == pytest.approx(accountant.compose(event, 2).get_epsilon(1e-5))
    refused: list[dict[str, Any]] = [
        {"sampler": turnout.Uniform(4), "people": unreliable},
        {"sampler": turnout.MD(4), "people": people},
        {
            "sampler": turnout.samplers.Binomial(4),
            "people": population(sizes, adversary=turnout.clients.adversary.Random(0.5)),
        },
        {"sampler": turnout.samplers.Binomial(4), "people": people, "method": {"normalise": "responders"}},
    ]
    for options in refused:
        with pytest.raises(UserError, match=r"privacy\.amplified: it holds for samplers"):
            run(replace(secret, max_weight=0.3), 1, **options)


def test_a_resumed_run_has_new_noise_and_pays_for_what_was_lost(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = Privacy(noise=1.0, clip=0.3)
    run(private, 2, folder=tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = (run(private, 4, folder=tmp_path / name, resume=True) for name in ("one", "two"))
    assert not torch.allclose(one.model, two.model, atol=1e-3)
    assert one.privacy["central"]["events"] == 4 + 2  # two rounds may have been computed after the checkpoint
    again = run(private, 4, folder=tmp_path / "one", resume=True)  # nothing is left to do
    assert torch.equal(again.model, one.model)
    assert again.privacy["central"]["events"] == 4 + 2 + 2
    assert again.privacy["central"]["epsilon"] > one.privacy["central"]["epsilon"]


def test_uploads_that_were_lost_are_paid_for_as_the_busiest_client_sends(tmp_path: Path) -> None:
    """A standing invitation: some client answers several times in a round of ten answers."""
    pytest.importorskip("dp_accounting")

    @dataclass
    class Ten(Standing):
        def run(self, server: turnout.Server) -> None:
            for _ in server.rounds():
                server.step(server.wait(10), np.full(10, 0.1))

    def answers(rounds: int, **options: Any) -> Any:
        method = Ten(local(modifiers=chained("clip:0.5,noise:5")))
        people = population(devices=turnout.devices.lognormal(0.5, 1.5))
        plan = experiment("standing", rounds, algorithm=method, people=people, evaluation=SELDOM)
        return turnout.execute(plan, tmp_path, checkpoint_every=2, **options)

    jobs = answers(2).jobs()
    arrived = jobs["outcome"] == "arrived"
    busiest = max(int(np.bincount(jobs["client"][arrived & (jobs["round"] == number)]).max()) for number in (1, 2))
    assert busiest > 1
    resumed = answers(2, resume=True)
    assert resumed.privacy["local"]["events"] == np.bincount(jobs["client"][arrived]).max() + 2 * busiest


def test_without_the_accountant_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[privacy\]"'):
        run(Privacy(noise=1.0, clip=1.0))


def test_sections_of_a_configuration() -> None:
    names = ["local.modifiers=clip,noise,quantise", "local.clip.norm=1", "local.noise.std=0.1", "local.quantise.bits=8"]
    overrides = [*names, "privacy.noise=1.5", "privacy.clip=2", "run.rounds=1"]
    plan, _, complete = config.build(config.read("digits", overrides))
    assert plan.privacy == Privacy(noise=1.5, clip=2.0)
    assert complete["privacy"] == {
        "noise": 1.5, "clip": 2.0, "max_weight": None, "delta": 1e-5, "amplified": False, "noise_seed": None,
    }  # fmt: skip
    assert complete["local"]["modifiers"] == ["clip", "noise", "quantise"]
    assert complete["local"]["noise"] == {"std": 0.1, "seed": None}
    assert config.build(config.read("digits"))[0].privacy is None
    with pytest.raises(UserError, match=r"privacy\.clipp: unknown option; did you mean clip\?"):
        config.build(config.read("digits", ["privacy.clipp=1"]))


# -- refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"noise": -1.0}, "privacy.noise: -1.0 must be at least 0"),
        ({"noise": 1.0}, "privacy.clip: missing"),
        ({"noise": 1.0, "clip": 0.0}, "privacy.clip: 0.0 must be above 0"),
        ({"delta": 1.0}, "privacy.delta: 1.0 must be above 0 and below 1"),
    ],
)
def test_mistakes(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Privacy(**options)


def test_noise_of_nothing_is_a_mistake() -> None:
    with pytest.raises(UserError, match=r"privacy\.noise: 0 hides nothing"):
        run(Privacy())


def test_samplers_and_rules_that_take_more_than_a_sum() -> None:
    for sampler in (
        turnout.samplers.Optimal(2),
        turnout.samplers.ClusteredSimilarity(2),
        turnout.samplers.PowerOfChoice(2, candidates=4),
    ):
        with pytest.raises(UserError, match=r"privacy\.noise: sampler \w+ may take more from updates than their sum"):
            server(SEEDED, turnout.FedAvg(local(), sampler))
    with pytest.raises(UserError, match=r"privacy\.max_weight: missing"):
        server(replace(SEEDED, max_weight=None), turnout.FedAvg(local(), turnout.MD(3)))
    with pytest.raises(UserError, match="algorithm RobustMean may take more from updates than their sum"):
        server(SEEDED, RobustMean(local(), sampler=turnout.Full()))
    with pytest.raises(UserError, match="also asks clients for loss"):
        server(SEEDED, turnout.FedAvg(local(report="loss"), turnout.Full()), stopping=Stopping(1)).run()
    plan = replace(experiment("fedavg", 1, people=population()), privacy=SEEDED)
    with pytest.raises(UserError, match=r"detectors\.response: with privacy\.noise"):
        turnout.execute(replace(plan, screening=Screening(response="exclude")))
