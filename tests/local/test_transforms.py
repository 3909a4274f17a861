"""What becomes of an update on its way: clipping, noise, top-k with error feedback, quantisation, and their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import chained, experiment, local, mlp, population, simulation
from turnout import Plan, Stopping, Task
from turnout.core.errors import UserError
from turnout.core.random import key, normal
from turnout.local import transforms
from turnout.local.head import HeadSGD
from turnout.local.modifiers import ControlVariates
from turnout.local.transforms import Clip, Noise, Quantise, TopK
from turnout.server.dispatch import Dispatch

ROWS = torch.from_numpy(normal(key(6, "updates", np.arange(5)), 40))
KEYS = torch.from_numpy(key(6, "jobs", np.arange(5)))
NOTHING = torch.zeros_like(ROWS)


def applied(chain: str, rows: torch.Tensor = ROWS, **options: Any) -> torch.Tensor:
    return transforms.apply(chained(chain), rows, options.get("keys", KEYS), options.get("residual"), rows.shape[1])[0]


# -- one by one -------------------------------------------------------------------------------------------------


def test_clip_shortens_and_does_not_turn() -> None:
    radius = float(ROWS.norm(dim=1).median())
    found = applied(f"clip:{radius}")
    for row, before in zip(found, ROWS, strict=True):
        scale = min(1.0, radius / float(before.norm()))
        torch.testing.assert_close(row, before * scale)
    assert (found.norm(dim=1) < ROWS.norm(dim=1)).any()
    assert torch.equal(applied("clip:1e9"), ROWS)


def test_top_k_sends_the_largest_and_keeps_the_rest() -> None:
    sent, left = transforms.apply(chained("top_k:0.1"), ROWS, KEYS, NOTHING, 40)
    assert left is not None
    for row, before in zip(sent, ROWS, strict=True):
        largest = before.abs().argsort(descending=True)[:4]
        expected = torch.zeros(40).double()
        expected[largest] = before[largest]
        assert torch.equal(row, expected)
    assert torch.equal(sent + left, ROWS)


def test_error_feedback_loses_nothing_in_the_long_run() -> None:
    """What was sent and what is left make up all that should have been sent; the rest stays bounded."""
    left, total = NOTHING, NOTHING
    for _ in range(200):
        sent, left = transforms.apply(chained("top_k:0.1"), ROWS, KEYS, left, 40)  # type: ignore[assignment]
        total = total + sent
    torch.testing.assert_close(total + left, 200 * ROWS)
    assert float(left.abs().max()) < 12 * float(ROWS.abs().max())  # every entry has its turn


def test_what_is_not_finite_is_sent_and_not_remembered() -> None:
    rows = ROWS.clone()
    rows[0, 0] = torch.nan
    sent, left = transforms.apply(chained("top_k:0.1"), rows, KEYS, NOTHING, 40)
    assert not torch.isfinite(sent[0]).all()
    assert left is not None
    assert torch.isfinite(left).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantise_has_that_many_levels_and_keeps_the_expectation(bits: int) -> None:
    levels = 2 ** (bits - 1) - 1
    step = ROWS.abs().amax(1, keepdim=True) / levels
    mean = torch.zeros_like(ROWS)
    for number in range(400):
        keys = torch.from_numpy(key(7, "again", np.arange(5), number))
        found = applied(f"quantise:{bits}", keys=keys) / step
        torch.testing.assert_close(found, found.round(), rtol=0, atol=1e-9)
        assert float(found.abs().max()) <= levels + 1e-9
        assert float((found - ROWS / step).abs().max()) < 1 + 1e-9  # the level below or the one above
        mean += found / 400
    assert float((mean - ROWS / step).abs().max()) < 5 * 0.5 / np.sqrt(400)


def test_quantise_depends_on_the_job_and_on_nobody_else() -> None:
    found = applied("quantise:4")
    assert torch.equal(applied("quantise:4", ROWS[3:4], keys=KEYS[3:4]), found[3:4])
    assert not torch.equal(applied("quantise:4", keys=KEYS.flip(0)), found)
    assert torch.equal(applied("quantise:4", NOTHING), NOTHING)


def test_noise_has_its_size_and_is_never_the_same_twice() -> None:
    rows = torch.zeros(4, 50_000).double()
    one, two = (applied("clip:1.0,noise:0.3", rows, keys=KEYS[:4]) for _ in range(2))
    assert float(one.std()) == pytest.approx(0.3, rel=0.01)
    assert abs(float(one.mean())) < 4 * 0.3 / np.sqrt(200_000)
    assert abs(float(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1])) < 0.01
    assert abs(float(torch.corrcoef(one)[0, 1])) < 0.02


def test_seeded_noise_is_the_same_twice_in_any_company() -> None:
    one = applied("clip:1.0,noise:0.3:7")
    assert torch.equal(one, applied("clip:1.0,noise:0.3:7"))
    assert torch.equal(one[2:3], applied("clip:1.0,noise:0.3:7", ROWS[2:3], keys=KEYS[2:3]))
    assert not torch.equal(one, applied("clip:1.0,noise:0.3:8"))


def test_the_order_is_the_order_given() -> None:
    first = applied("clip:1.0,quantise:3")
    second = applied("quantise:3,clip:1.0")
    assert not torch.equal(first, second)
    assert float(second.norm(dim=1).max()) <= 1 + 1e-9


def test_many_rows_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "top_k:0.2,quantise:6"
    whole = transforms.apply(chained(chain), ROWS, KEYS, ROWS.flip(0), 40)
    monkeypatch.setattr(transforms, "_TOGETHER", 80)
    parts = transforms.apply(chained(chain), ROWS, KEYS, ROWS.flip(0), 40)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TopK(0.0), "top_k.share: 0.0 must be above 0"),
        (lambda: Clip(0.0), "clip.norm: 0.0 must be above 0"),
        (lambda: Clip(np.ones(3)), "clip.norm: .* must be one number"),  # type: ignore[arg-type]
        (lambda: Quantise(1), "quantise.bits: 1 must be from 2 to 16"),
        (lambda: Quantise(2.5), "quantise.bits: 2.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: Noise(-1.0), "noise.std: -1.0 must be above 0"),
        (lambda: local(modifiers=[Clip(1.0), Clip(2.0)]), "modifiers: Clip stands there twice"),
        (lambda: local(modifiers=[Noise(1.0)]), "modifiers: noise must stand directly after clip"),
        (lambda: local(modifiers=chained("clip:1,top_k:0.1,noise:1")), "modifiers: noise must stand directly after"),
        (lambda: local(modifiers=["clip"]), "modifiers: 'clip' is neither a Modifier nor a Transform"),
        (lambda: local(transform="clip:1.0,top_k:0.01"), r"transform: it is now local.modifiers; write local.modifiers="
         r"clip,top_k local.clip.norm=1.0 local.top_k.share=0.01, in Python modifiers=\[Clip\(norm=1.0\), TopK"),
    ],
)  # fmt: skip
def test_mistakes(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^local.{sentence}"):
        make()


# -- bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "bits"),
    [
        ("", 75 * 32),
        ("clip:1.0", 75 * 32),
        ("top_k:0.1", 8 * (32 + 32)),  # a value and its place
        ("quantise:8", 75 * 8 + 32),
        ("top_k:0.1,quantise:4", 8 * (4 + 32) + 32),
        ("top_k:0.1,clip:1.0,noise:1.0", 75 * 32),  # noise leaves no entry zero
        ("clip:1.0,noise:1.0,quantise:8", 75 * 8 + 32),
    ],
)
def test_bytes_on_the_wire(chain: str, bits: int) -> None:
    """The model has 75 numbers; a population that says what a model takes scales all of it."""
    task, work = Task(mlp, seed=3), local(modifiers=chained(chain))
    assert task.size == 75
    assert Dispatch(population(), task).demand(work).bytes_up == bits / 8
    assert Dispatch(population(model_bytes=75_000), task).demand(work).bytes_up == round(75_000 * bits / (75 * 32))
    assert Dispatch(population(), task).demand(work).bytes_down == 300


def test_bytes_of_works_that_send_more_or_less() -> None:
    task = Task(mlp, seed=3)
    dispatch = Dispatch(population(), task)
    controlled = local(modifiers=chained("top_k:0.1")).modified(ControlVariates(torch.zeros(75)))
    assert dispatch.demand(controlled).bytes_up == 8 * 8 + 75 * 4
    body = HeadSGD.extend(local(modifiers=chained("top_k:0.1")))  # 48 of the numbers are not the head's
    assert dispatch.demand(body).bytes_up == 5 * 8
    assert dispatch.demand(local(modifiers=chained("top_k:0.1"), report="loss")).bytes_up == 8 * 8 + 4


def test_uploads_take_less_time_and_the_history_counts_fewer_bytes() -> None:
    people = population(links=turnout.Links(down=1e4, up=1e3))
    plain, small = (
        turnout.simulate(
            Task(mlp, seed=3),
            people,
            turnout.FedAvg(local(modifiers=chained(chain)), turnout.Full()),
            2,
            plan=Plan(threads=1),
        )
        for chain in ("", "top_k:0.1")
    )
    assert small.rounds()["bytes_up"].tolist() == [0, 8 * 64, 8 * 64]
    assert plain.rounds()["bytes_up"].tolist() == [0, 8 * 300, 8 * 300]
    assert plain.server.now - small.server.now == pytest.approx(2 * 8 * (300 - 64) / 1e3, rel=1e-3)  # links in bits


# -- in a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_what_arrives_is_what_the_transform_makes_of_the_plain_update(engine: str) -> None:
    """Two rounds by hand: deltas of the plain work, then the residual of the first in the second."""
    plan = Plan(threads=1, engine=engine, precision="float64")
    ids, left = np.arange(8), None
    server = simulation(turnout.FedAvg(local(modifiers=chained("top_k:0.1,quantise:6"))), plan=plan, seed=5)
    plain = simulation(turnout.FedAvg(local()), plan=plan, seed=5)
    for number in range(2):
        server.invite(ids, server.algorithm.local)  # type: ignore[attr-defined]
        plain.invite(ids, plain.algorithm.local)  # type: ignore[attr-defined]
        updates, expected = server.wait(), plain.wait()
        assert updates.clients.tolist() == expected.clients.tolist()
        keys = torch.from_numpy(key(5, "local work", updates.clients, number))
        deltas = expected.deltas
        before = torch.zeros_like(deltas) if left is None else left[np.argsort(np.argsort(updates.clients))]
        sent, after = transforms.apply(chained("top_k:0.1,quantise:6"), deltas, keys, before, 75)
        torch.testing.assert_close(updates.deltas, sent, rtol=1e-9, atol=1e-12)
        assert after is not None
        left = after[np.argsort(updates.clients)]
        server.settle()
        stored = server.store.get({"residual": (75,)}, ids)["residual"]
        torch.testing.assert_close(stored, left, rtol=1e-9, atol=1e-12)


def test_a_lossy_upload_still_learns_and_error_feedback_is_why() -> None:
    def loss(chain: str) -> float:
        method = turnout.FedAvg(local(modifiers=chained(chain)), turnout.Full())
        plan = experiment("fedavg", 20, algorithm=method, people=population(), evaluation=turnout.Evaluation(None))
        return turnout.execute(plan).measures["test_loss"]

    start = simulation(turnout.FedAvg(local())).evaluate()["test_loss"]
    plain = loss("")
    assert loss("quantise:4") == pytest.approx(plain, abs=0.05 * (start - plain))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms.TopK, "apply", _forgetful)
        forgetful = loss("top_k:0.05")
    assert loss("top_k:0.05") - plain < 0.3 * (forgetful - plain)


def _forgetful(self: transforms.TopK, rows: transforms.Rows, numbers: int) -> transforms.Rows:
    """Top-k without a memory."""
    places = rows.values.abs().topk(self.count(numbers)).indices
    return rows._replace(values=torch.zeros_like(rows.values).scatter(1, places, rows.values.gather(1, places)))


REFUSED = {"local": "send nothing", "mocha": "where their own models are", "l2sgd": "where their own models are",
           "continuing": "models of their own", "dpasgd": "exchange models", "d_fedem": "exchange models"}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_algorithms_that_refuse(name: str) -> None:
    plan = experiment(name, 1)
    plan.algorithm.local = local(modifiers=chained("top_k:0.1"))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=REFUSED[name]):
        turnout.execute(plan)


@pytest.mark.parametrize(("name", "what"), [("scaffold", "control"), ("fedprof", "profile")])
def test_noise_is_refused_where_more_is_sent(name: str, what: str) -> None:
    plan = experiment(name, 1)
    plan.algorithm.local = local(modifiers=chained("clip:1.0,noise:0.1:3"))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"also asks clients for {what}"):
        turnout.execute(plan)


def test_reports_before_anybody_is_chosen_are_refused_with_noise_and_left_alone_without() -> None:
    sampler = turnout.samplers.PowerOfChoice(2, candidates=4)
    for chain, fine in (("top_k:0.1", True), ("clip:1.0,noise:0.1:3", False)):
        method = turnout.FedAvg(local(modifiers=chained(chain)), sampler)
        server = simulation(method, stopping=Stopping(2))
        if fine:
            assert server.run().version == 2
        else:
            with pytest.raises(UserError, match="also asks clients for loss"):
                server.run()
