"""With `[privacy]` nothing but noised sums comes out of updates: by the word of every class, and because they are
sealed. An epsilon is stated only where the whole way is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from support import ALGORITHMS, WORLD, chained, experiment, local, population
from turnout.config import registry
from turnout.local.answers import LossReport
from turnout.local.own import OwnModelSGD
from turnout.local.sgd import ClientData, LocalSGD, Named
from turnout.sampling._sampler import Sampler, Selection
from turnout.server.privacy import Privacy, prying
from turnout.server.server import Server
from turnout.server.updates import Updates

SELDOM = turnout.Evaluation(None, clients=1)
NOISY = Privacy(noise=2.0, clip=0.3, max_weight=0.4)


def run(method: Any, rounds: int = 1, privacy: Privacy | None = NOISY, **options: Any) -> turnout.Result:
    people = options.pop("people", None) or population()
    plan = experiment("fedavg", rounds, algorithm=method, people=people, privacy=privacy, evaluation=SELDOM)
    return turnout.execute(plan, **options)


# -- every algorithm and every sampler --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_an_epsilon_or_is_refused_in_a_sentence(name: str) -> None:
    """Whatever says that it reads no updates runs on sealed ones."""
    pytest.importorskip("dp_accounting")
    plan = experiment(name, 2, people=population(**WORLD), evaluation=SELDOM, privacy=NOISY)
    refused = prying(plan.algorithm, plan.population) or name == "centralised"
    if refused:
        with pytest.raises(turnout.UserError, match=r"^privacy\.noise: algorithm \w+ (may take more|pools)"):
            turnout.execute(plan)
        return
    result = turnout.execute(plan)
    assert result.privacy["central"]["epsilon"] == result.rounds()["epsilon"][-1] > 0
    assert ("assumes" in result.privacy["central"]) == (name in ("windowed", "standing"))
    assert name not in (
        "clustered_fl",
        "ifca",
        "scaffold",
        "mifa",
        "safa",
        "hierfavg",
        "robust_mean",
        "dpasgd",
        "local",
    )


@pytest.mark.parametrize("name", registry.names("sampler"))
def test_every_sampler_chooses_blindly_or_is_refused(name: str) -> None:
    """Whatever says that it looks at no data gets sealed updates; and the same clients with other updates."""
    sampler = registry.find("sampler", name)
    options: dict[str, Any] = {"clients_per_round": 3} if "clients_per_round" in sampler.__dataclass_fields__ else {}
    people = population(regions=np.array([0, 1, 0, 1, 0, 0, 1, 0]))
    method = turnout.FedAvg(local(), sampler(**options))
    if prying(method, people):
        with pytest.raises(turnout.UserError, match=r"^privacy\.noise: sampler \w+ may take more"):
            run(method, people=people)
        assert name in ("afl", "cafed", "clustered_similarity", "oort", "optimal", "power_of_choice", "profiled")
        return
    jobs = [run(method, 3, replace(NOISY, noise_seed=seed), people=people).jobs() for seed in (1, 2)]
    assert (jobs[0]["client"] == jobs[1]["client"]).all()


# -- an algorithm of one's own ----------------------------------------------------------------------------------


@dataclass
class Peeking(turnout.FedAvg):
    """FedAvg with a look at updates somewhere."""

    peek: Callable[[Server, Updates], Any] = lambda *_: None

    def aggregate(self, server: Server, updates: Updates, chosen: Selection) -> None:
        self.peek(server, updates)
        super().aggregate(server, updates, chosen)


@dataclass
class Trusted(Peeking):
    """The same, which says that it does not look."""

    reads_updates = False


def after(server: Server, updates: Updates) -> Any:
    return server.step(updates, np.full(len(updates), 0.1)).deltas


def held(server: Server, _: Updates) -> Any:
    server.invite([0], local(), hold=True)
    server.wait()
    return server.fetch([0]).deltas


def asked(server: Server, _: Updates) -> None:
    server.invite([0], LossReport())


def kept(server: Server, updates: Updates) -> Any:
    return server.store.get(OwnModelSGD(0.1).state_shapes(server.task), updates.clients)


PEEKS: dict[str, Callable[[Server, Updates], Any]] = {
    "deltas": lambda _, updates: updates.deltas,
    "named": lambda _, updates: updates["delta"],
    "gather": lambda _, updates: updates.gather("delta", held=True),
    "returned": lambda _, updates: updates.returned(),
    "norms": lambda _, updates: updates.norms(),
    "gram": lambda _, updates: updates.gram(),
    "finite": lambda _, updates: updates.finite(),
    "finite rows": lambda server, updates: server.finite(updates),
    "sum of one": lambda _, updates: updates.weighted_sum(np.eye(len(updates))[0]),
    "jobs": lambda _, updates: updates.jobs[0].result,
    "crew": lambda _, updates: updates.crew.block,  # type: ignore[union-attr]
    "one row": lambda _, updates: updates.select([0]).deltas,
    "joined": lambda _, updates: (updates + updates).norms(),
    "after the step": after,
    "held": held,
    "a report": asked,
    "what clients keep": kept,
    "a model": lambda server, updates: server.publish(server.model + 1, updates, None),
}


@pytest.mark.parametrize("name", PEEKS)
def test_whoever_looks_at_updates_has_no_epsilon(name: str) -> None:
    """Refused before it begins unless it says that it does not look; and then as soon as it does."""
    with pytest.raises(turnout.UserError, match=r"^privacy\.noise: algorithm Peeking may take more from updates"):
        run(Peeking(local(), turnout.Full(), peek=PEEKS[name]))
    with pytest.raises(turnout.UserError, match=r"^privacy(\.noise)?: "):
        run(Trusted(local(), turnout.Full(), peek=PEEKS[name]))
    open_to_all = run(Peeking(local(), turnout.Full(), peek=PEEKS["deltas"]), privacy=None)
    assert not open_to_all.privacy


def test_whoever_only_sums_says_so_itself() -> None:
    pytest.importorskip("dp_accounting")
    result = run(Trusted(local(), turnout.Full()))
    assert result.privacy["central"]["epsilon"] > 0
    assert result.privacy["central"]["assumes"].startswith("Trusted takes nothing from clients but the sums")

    @dataclass
    class Derived(Trusted):
        """Says nothing of itself."""

    with pytest.raises(turnout.UserError, match="algorithm Derived may take more"):
        run(Derived(local(), turnout.Full()))


@dataclass
class Chooser(Sampler):
    """Invites whoever it likes, after a look."""

    def sample(self, server: Server) -> Selection:
        answers = self.answers_of(server, np.arange(4), local())
        return Selection(np.arange(2), answers.norms().double().numpy()[:2])


@dataclass
class TrustedChooser(Chooser):
    looks_at_data = False


@dataclass
class Elsewhere(Trusted):
    """Keeps its sampler under another name."""

    reads_updates = False
    chooser: Sampler = None  # type: ignore[assignment]

    def choose(self, server: Server) -> Selection:
        return self.chooser.sample(server)


def test_samplers_adversaries_and_observers_that_look() -> None:
    for method in (turnout.FedAvg(local(), Chooser()), Elsewhere(local(), turnout.Full(), chooser=Chooser())):
        with pytest.raises(turnout.UserError, match=r"^privacy\.noise: sampler Chooser may take more"):
            run(method)
    with pytest.raises(turnout.UserError, match="updates are sealed"):
        run(turnout.FedAvg(local(), TrustedChooser()))
    plain = turnout.FedAvg(local(), turnout.Full())
    with pytest.raises(turnout.UserError, match=r"^privacy\.noise: adversary LargestNorm may take more"):
        run(plain, people=population(adversary=turnout.clients.adversary.LargestNorm(0.3)))
    run(plain, privacy=replace(NOISY, noise_seed=1), people=population(adversary=turnout.clients.adversary.Random(0.3)))

    class Weigher(turnout.Observer):
        def on_step(self, server: Server, updates: Updates, weights: Any) -> Any:
            return weights * (updates.norms().numpy() < 1)

    with pytest.raises(turnout.UserError, match="nobody's weight may follow from updates, and Weigher changes"):
        run(plain, observers=[Weigher()])


# -- noise that clients add -------------------------------------------------------------------------------------


@dataclass
class Quiet(turnout.FedAvg):
    """Asks for updates without the noise that was promised."""

    def work(self, server: Server) -> LocalSGD:
        return replace(self.local, modifiers=())


@dataclass(frozen=True)
class Chatty(LocalSGD):
    """Sends a number that it does not name."""

    def finish(
        self, task: Any, received: torch.Tensor, params: torch.Tensor, carry: Any, state: Named, data: ClientData
    ) -> tuple[Named, Named]:
        return {"delta": params - received, "secret": params.sum()}, {}


def test_every_upload_has_the_noise_that_is_charged_for() -> None:
    noise = "clip:1.0,noise:0.5"
    with pytest.raises(turnout.UserError, match=r"^privacy: clients are to add the noise of local\.modifiers, but"):
        run(Quiet(local(modifiers=chained(noise)), turnout.Full()), privacy=None)
    with pytest.raises(turnout.UserError, match="Chatty sends secret, which its payload_shapes do not name"):
        run(turnout.FedAvg(Chatty(0.1, modifiers=chained(noise)), turnout.Full()), privacy=None)
