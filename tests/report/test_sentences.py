"""What is said of runs: every sentence is true of the record it is made from, and chance is not taken for more."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.record.views import Columns
from turnout.report import better, heard, sentences
from turnout.report.compare import Target
from turnout.report.page import page
from turnout.report.read import Recorded, recorded


@dataclass(frozen=True, repr=False)
class Invented(Recorded):
    """A record made by hand."""

    tables: dict[str, Columns] = field(default_factory=dict)

    def _table(self, name: str) -> Columns:
        return self.tables.get(name, {})

    def clients(self) -> Columns:
        return self.tables.get("clients", {})


def ended(
    name: str,
    accuracy: float,
    seed: int | None = 0,
    stopped: str = "9 rounds",
    used: tuple[int, ...] = (9, 9),
    **options: Any,
) -> Invented:
    """A finished run of clients that count the same, `used` so often."""
    curve = {part: np.array([0.1, accuracy]) for part in ("", "_mean", "_std", "_worst_decile")}
    rounds = {"round": np.array([0, 9]), "time": np.array([0.0, 90.0 - 10 * accuracy])}
    rounds |= {f"test_accuracy{part}": values for part, values in curve.items()}
    size = len(used)
    audit: dict[str, Any] = {"never_heard": used.count(0), "clients": size, "failures": {}, "events": {}}
    summary = {
        "rounds": 9, "virtual_seconds": 90.0, "stopped": stopped, "measures": {"test_accuracy": accuracy},
        "audit": audit,
        "clients": {"intended": [1 / size] * size, "realised": [n / 9 for n in used], "contributions": list(used)},
    }  # fmt: skip
    run = {} if seed is None else {"seed": seed}
    config = {"run": {"name": f"{name},seed={seed}", **run}, "algorithm": {"name": name}, **options}
    return Invented(Path(f"{name}-{seed}"), config, {}, summary, (), {"history": rounds})


def several(**values: tuple[float, ...]) -> list[Recorded]:
    return [ended(name, value, seed) for name, row in values.items() for seed, value in enumerate(row)]


A, B = (0.90, 0.92, 0.91, 0.94, 0.93), (0.85, 0.88, 0.86, 0.88, 0.89)


# -- which is better ------------------------------------------------------------------------------------------


def test_a_difference_beyond_chance_is_the_first_sentence() -> None:
    first, *others = sentences.of_runs(several(fedavg=B, fedfix=A))
    assert first.startswith(
        "fedfix is better than fedavg, and that is more than chance: test accuracy 0.920 ± 0.020 against"
    )
    assert "ahead by 0.048 ± 0.010" in first
    assert "paired t-test over 5 seeds, p = 0.001 or less" in first
    assert not others


def test_what_chance_explains_is_said_to_be_so() -> None:
    first, more = sentences.of_runs(several(fedavg=(0.9, 0.8, 0.85), fedfix=(0.84, 0.86, 0.88)))
    assert first.startswith("fedfix ends better than fedavg, but that may be chance: ")
    assert more.endswith("seeds would tell fedfix from fedavg.") or "take them for equal" in more


def test_one_seed_proves_nothing() -> None:
    first, last = sentences.of_runs([ended("fedavg", 0.8), ended("fedfix", 0.9)])
    assert "fedfix,seed=0 ends better" in first and "one seed proves nothing" in first
    assert last.endswith("turnout sweep fedavg-0/config.toml seed=0..4")
    assert "one seed proves nothing" in sentences.of_runs([ended("fedavg", 0.8)])[-1]
    assert "one seed" in sentences.of_runs([ended("fedavg", 0.8, seed=None)])[-1]
    assert "proves nothing" in sentences.of_runs([ended(name, 0.8 + i / 10) for i, name in enumerate("abc")])[0]


def test_of_nothing_nothing_is_said() -> None:
    assert sentences.of_rows([]) == sentences.of_runs([]) == []


def test_the_same_seed_twice_is_one() -> None:
    runs = [ended(name, value) for name, value in (("a", 0.8), ("a", 0.8), ("b", 0.9), ("b", 0.9))]
    assert "one seed proves nothing" in sentences.of_runs(runs)[0]


def test_of_many_some_are_told_apart() -> None:
    close = tuple(value + gap for value, gap in zip(A, (-0.01, 0.008, 0.0, -0.006, 0.004), strict=True))
    first, second, *_ = sentences.of_runs(several(fedavg=B, fedbuff=close, fedfix=A))
    assert first.startswith(
        "fedfix is best: test accuracy 0.920 ± 0.020. That is more than chance against fedavg (by 0.048"
    )
    assert "paired t-tests over 5 seeds, Holm's method over all pairs" in first
    assert second.startswith("Between it and fedbuff (by 0.0008, p = ") and second.endswith("these seeds cannot tell.")
    assert (
        "against every other: fedavg (by" in sentences.of_runs(several(a=A, fedavg=B, c=tuple(b - 0.1 for b in B)))[0]
    )


def test_many_settings_of_noise_are_not_told_apart() -> None:
    """Ten settings that differ by chance alone: with a p-value each, every other family would have a winner."""
    draws = np.random.default_rng(0)
    winners = 0
    for _ in range(40):
        settings = [better.setting(str(i), dict(enumerate(draws.normal(0.9, 0.01, 5)))) for i in range(10)]
        ranking = better.rank("accuracy", settings, low=False)
        assert ranking is not None
        winners += any(ranking.told)
    assert winners <= 4


def test_ties_and_seeds_that_change_nothing() -> None:
    (same, *_) = sentences.of_runs(several(a=A, b=A))
    assert same.startswith("a and b end the same in each of 5 seeds")
    (alike, *_) = sentences.of_runs(several(a=A, b=tuple(value - 0.1 for value in A)))
    assert "is ahead of b by 0.1 in each of 5 seeds alike" in alike and "no chance to test against" in alike


def test_of_many_differences_that_no_seed_changes_are_no_chance() -> None:
    (first, *_) = sentences.of_runs(several(a=A, b=B, c=tuple(value - 0.1 for value in A)))
    assert first.startswith("a is best") and "c (by 0.1 in every seed)" in first


def test_seeds_that_only_one_setting_has_decide_nothing() -> None:
    runs = [ended("a", value, seed) for seed, value in enumerate((0.80, 0.81, 0.82, 0.99, 0.98))]
    runs += [ended("b", value, seed) for seed, value in enumerate((0.85, 0.86, 0.869))]
    (first, *_) = sentences.of_runs(runs)
    assert first.startswith("a ends better than b") and "but not in the seeds that both have" in first


def test_runs_that_diverged_or_go_on_are_not_hidden() -> None:
    runs = several(a=A, b=B)
    runs[0] = ended("a", 0.99, 0, stopped="diverged: the model is not finite")
    first, *others = sentences.of_runs(runs)
    assert first.startswith("b ")  # which ended in all seeds
    assert "a diverged with seed 0: it is judged by the others and ranked last." in others
    runs[2] = ended("a", math.nan, 2)
    assert "a has no test accuracy with seed 2: it is judged by the others and ranked last." in sentences.of_runs(runs)
    runs[1] = Invented(Path("a-1"), ended("a", 0.9, 1).config, {}, {}, (), ended("a", 0.9, 1).tables)
    told = sentences.of_runs(runs)
    assert "1 unfinished run left out of what is said here." in told
    assert sentences.of_runs([runs[1]]) == [
        "a-1 is unfinished (round 9, 81 s of virtual time recorded). Go on with: turnout resume a-1"
    ]


def test_nothing_in_common() -> None:
    other = ended("b", 0.9)
    rounds = {name.replace("accuracy", "error"): values for name, values in other.tables["history"].items()}
    other.summary["measures"] = {"test_error": 0.1}
    other.tables["history"] = rounds
    assert "no measure in common" in sentences.of_runs([ended("a", 0.9), other])[0]


def test_settings_on_other_data_are_named() -> None:
    runs = [ended("a", 0.9, data={"name": "digits"}), ended("b", 0.8, data={"name": "mnist"})]
    assert any(one.startswith("They differ in data.name") for one in sentences.of_runs(runs))


def test_a_target_that_is_reached_sooner() -> None:
    runs = several(fedavg=B, fedfix=A)
    told = sentences.of_runs(runs, Target("test_accuracy", 0.8))
    assert any(one.startswith("fedfix reached test accuracy 0.8 first, after 80.8 s of virtual time") for one in told)
    told = sentences.of_runs(runs, Target("test_accuracy", 0.905))
    assert "fedavg reached test accuracy 0.905 in 0 of 5 runs." in told
    assert "It never reached test accuracy 0.99." in sentences.of_runs(runs[:1], Target("test_accuracy", 0.99))


def test_lower_is_better_where_it_is() -> None:
    settings = [better.setting("a", {0: 0.5, 1: 0.6, 2: 0.55}), better.setting("b", {0: 0.3, 1: 0.2, 2: 0.25})]
    ranking = better.rank("test_loss", settings, low=True)
    assert ranking is not None and ranking.order[0].label == "b" and ranking.against[0].mean > 0


# -- who was heard --------------------------------------------------------------------------------------------

NAMES = ["Ahorn", "Birke", "Eiche", "Fichte", "Linde", "Pappel", "Weide"]


def quorum(rounds: int = 12, late: tuple[int, ...] = (4, 6), names: bool = True) -> Invented:
    """Seven sites of which a round waits for five; those that are late are the largest."""
    sizes = np.array([40, 60, 30, 70, 300, 50, 400])
    used = tuple(0 if i in late else rounds for i in range(7))
    run = ended("fedavg", 0.9, used=used)
    run.config["algorithm"]["wait_for"] = 5
    clients = run.summary["clients"]
    clients["intended"] = (sizes / sizes.sum()).tolist()
    clients["realised"] = (sizes / sizes.sum() * np.array(used) / rounds).tolist()
    clients |= {"name": NAMES} if names else {}
    who, in_round = np.tile(np.arange(7), rounds), np.repeat(np.arange(rounds), 7)
    cut = np.isin(who, late)
    share = np.where(cut, 0.4, 1.0)
    run.tables["jobs"] = {
        "client": who, "job": in_round, "version": in_round, "round": in_round + 1, "samples": sizes[who],
        "outcome": np.where(cut, "cancelled", "arrived").astype(object), "weight": np.where(cut, 0.0, 0.1),
        "progress": share, "compute_seconds": sizes[who] * share, "download_seconds": 0.0 * who,
        "upload_seconds": 0.0 * who,
    }  # fmt: skip
    run.tables["clients"] = {"client": np.arange(7), "test_accuracy": np.where(np.isin(np.arange(7), late), 0.6, 0.9)}
    run.tables["history"] |= {"arrived": np.array([0, 60]), "cancelled": np.array([0, 24]), "failed": np.array([0, 0])}
    run.summary["audit"]["failures"] = {"cancelled": 24}
    return run


def test_a_quorum_that_leaves_out_the_largest_is_told_by_name() -> None:
    told = sentences.of_run(quorum())
    assert told[1] == (
        "Two of 7 clients were never heard: Linde and Weide, the two slowest and the two largest; 74% of what was "
        "meant to count had no say."
    )
    assert told[2] == "All 24 jobs they were asked for were cut off when a round closed (algorithm.wait_for=5)."
    assert told[3].startswith(
        "Whose work does not count is not chance: it is the same clients again and again (p = 0.001"
    )
    assert told[4].startswith("Try a round that waits for more of them")
    assert told[5].startswith("Whether it goes by size or speed in general, 7 clients are too few to tell")
    assert "p = 0.19" in told[5]  # 2 in 21, twice: what Holm's method makes of two questions
    assert (
        "The model gives those never heard test accuracy 0.600, the others 0.900 on average: which may be chance"
        in told[6]
    )
    assert "29% of the jobs brought nothing: 24 cancelled." in told
    assert "never heard: clients 4 and 6, the two" in sentences.of_run(quorum(names=False))[1]


def test_extremes_are_claimed_only_where_they_are() -> None:
    """Client 0 is neither the slowest nor the largest."""
    told = heard.sentences(quorum(late=(0, 6)))
    assert told[0].startswith("Two of 7 clients were never heard: Ahorn and Weide; ")
    assert "the slowest and the largest" in heard.sentences(quorum(late=(6,)))[0]


def test_everybody_heard() -> None:
    assert heard.sentences(ended("fedavg", 0.9)) == ["All 2 clients were heard, and counted as meant."]
    assert "counted 0.50 to 1.50 times" in heard.sentences(ended("fedavg", 0.9, used=(3, 9)))[0]
    assert heard.sentences(ended("local", 0.9, used=(0, 0))) == []  # nobody sends updates


def test_sizes_that_decide_are_found() -> None:
    """Thirty clients that count the less the larger they are, all of them the same in speed."""
    sizes = np.arange(30)
    run = ended("fedavg", 0.9, used=tuple((60 - sizes).tolist()))
    run.tables["clients"] = {"client": sizes, "train_samples": 10 + sizes}
    told = heard.sentences(run)
    assert told[1] == "Larger clients counted less than meant (rank correlation -1.00, p = 0.002, 30 clients)."
    draws = np.random.default_rng(0)
    run.tables["clients"]["train_samples"] = draws.permutation(sizes)
    assert heard.sentences(run)[1].startswith(
        "There is no sign that it goes by size (30 clients; size: rank correlation"
    )


def test_the_never_asked_are_held_against_equal_chances() -> None:
    run = ended("fedavg", 0.9, used=(0, 0, *[9] * 18))
    job = {"progress": 1.0, "compute_seconds": 1.0, "download_seconds": 0.0, "upload_seconds": 0.0, "samples": 5}
    who, when = np.tile(np.arange(2, 20), 9), np.repeat(np.arange(9), 18)
    run.tables["jobs"] = {name: np.full(162, value) for name, value in job.items()}
    run.tables["jobs"] |= {"client": who, "job": when, "version": when, "weight": np.full(162, 0.1)}
    run.tables["jobs"]["outcome"] = np.full(162, "arrived", object)
    told = heard.sentences(run)
    assert told[1].startswith(
        "None of them was ever asked. That is more than chance: equal chances would leave out 0.0"
    )
    run.tables["jobs"] = {name: values[:18] for name, values in run.tables["jobs"].items()}
    assert "That may be chance: with equal chances, so few invitations leave out 2.0" in heard.sentences(run)[1]


def test_over_seeds_those_always_left_out_are_named() -> None:
    runs: list[Recorded] = [ended("a", value, seed, used=(9, 0, 9 * (seed > 0))) for seed, value in enumerate(A)]
    told = sentences.of_runs(runs)
    assert told[0].startswith("a ends at test accuracy 0.920 ± 0.020 (mean and 95 % interval over 5 seeds)")
    assert told[1].startswith("a never heard 1 to 2 of 3 clients: client 1 in every seed. turnout inspect")


# -- what went wrong ------------------------------------------------------------------------------------------


def test_what_went_wrong_comes_first() -> None:
    run = ended("a", 0.1, stopped="diverged: the loss is not finite", local={"lr": 3.0})
    assert sentences.of_run(run)[0] == (
        "It went wrong: diverged: the loss is not finite. Try a smaller learning rate, such as local.lr=0.3; turnout "
        "tune finds one."
    )
    run.summary["nobody_heard"] = True
    assert sentences.of_run(run)[0].startswith("Nobody was ever heard")
    run.summary["audit"] |= {"events": {"rejected_update": 3}, "event_clients": {"rejected_update": 1}}
    assert "3 rejected updates of 1 client: see the log." in sentences.of_run(run)


@pytest.mark.parametrize(("curve", "rising"), [(np.linspace(0.1, 0.9, 30), True), (np.full(30, 0.9), False)])
def test_a_curve_that_still_rises(curve: np.ndarray[Any, Any], rising: bool) -> None:
    run = ended("a", 0.9)
    run.tables["history"] = dict.fromkeys(run.tables["history"], curve)
    assert any("still getting better" in one for one in sentences.of_run(run)) == rising


# -- of records that runs have left ---------------------------------------------------------------------------


def test_the_page_begins_with_the_answer(seeds: list[Path], buffered: Path) -> None:
    runs = [recorded(folder) for folder in [*seeds, buffered]]
    told = sentences.of_runs(runs)
    text = page(runs)
    place = text.index('<div class="answers">')
    assert text.index('<section id="result">') < place < text.index("<table")
    assert all(one.replace("'", "&#x27;") in text for one in told)
    assert "<strong>" in text[text.index("<table") : text.index("</table")]
    alone = page(runs[:1])
    assert sentences.of_run(runs[0])[1].replace("'", "&#x27;") in alone


def test_sizes_and_speeds_are_those_of_the_record(buffered: Path) -> None:
    run = recorded(buffered)
    people = heard.clients_of(run)
    assert people.samples.tolist() == run.clients()["train_samples"].tolist()
    jobs = run.jobs()
    arrived = jobs["outcome"] == "arrived"
    whole = jobs["download_seconds"] + jobs["compute_seconds"] + jobs["upload_seconds"]
    for client in np.unique(jobs["client"][arrived]):
        ours = whole[arrived & (jobs["client"] == client)]
        assert people.seconds[client] == pytest.approx(np.median(ours), rel=0.05)  # one duration a client
