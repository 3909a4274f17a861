"""`turnout tune`: on a quadratic the best learning rate is known, and the test data must not matter."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest
from terminal import Terminal

from turnout import UserError
from turnout.config import config
from turnout.plan import tune

# (w - 1)^2 and (w - 3)^2 from w = 0, one full step of 2 lr: at lr = 0.5 it lands on the optimum, where the loss is 1.
QUADRATIC = """
[run]
rounds = 1
[data]
name = "quadratics"
optima = [1.0, 3.0]
samples = 5
[partition]
name = "natural"
[clients]
count = 2
[model]
name = "linear"
bias = false
zero_init = true
[local]
lr = 0.1
steps = 1
batching = "full"
[algorithm]
name = "fedavg"
[sampler]
name = "full"
[engine]
threads = 1
"""


def quadratic(terminal: Terminal) -> str:
    return terminal.write("quadratic.toml", QUADRATIC)


def tuned(terminal: Terminal, *words: str, scheme: str = "fedavg") -> Any:
    return terminal.done("tune", quadratic(terminal), *words, "--json").json()["schemes"][scheme]


# -- the search -----------------------------------------------------------------------------------------------


def test_finds_the_known_best(terminal: Terminal) -> None:
    found = tuned(terminal, "--option", "local.lr=1e-2..1")
    assert [trial["values"]["local.lr"] for trial in found["trials"]] == [0.01, 0.1, 1, 0.05, 0.2, 0.5]
    assert found["best"]["values"] == {"local.lr": 0.5}
    assert found["best"]["value"] == pytest.approx(1)
    for trial in found["trials"]:
        expected = 1 + 4 * (1 - 2 * trial["values"]["local.lr"]) ** 2
        assert trial["value"] == pytest.approx(expected, rel=1e-5)
        assert not trial["diverged"]
        assert [run["rounds"] for run in trial["runs"]] == [1]
    assert found["at_the_end"] == []
    assert found["command"] == "turnout run quadratic.toml local.lr=0.5"


def test_a_measure_of_a_whole_set_of_which_less_is_better(terminal: Terminal) -> None:
    words = ("task.metrics=rmse", "--measure", "train_rmse", "--option", "local.lr=0.01,0.1")
    found = tuned(terminal, *words)
    assert found["best"]["values"] == {"local.lr": 0.1}  # from w = 0 to 0.4, 0.6 and 2.6 away from the optima
    assert found["best"]["value"] == pytest.approx(1.6)


def test_the_default_is_the_papers_range(terminal: Terminal) -> None:
    document = terminal.done("tune", quadratic(terminal), "--json").json()
    assert document["options"] == {"local.lr": "1e-5..1"}
    assert document["schemes"]["fedavg"]["best"]["values"] == {"local.lr": 0.5}


def test_says_when_the_best_is_at_the_end(terminal: Terminal) -> None:
    found = tuned(terminal, "--option", "local.lr=1e-2..0.2")
    assert found["best"]["values"] == {"local.lr": 0.2}
    assert found["at_the_end"] == ["local.lr=0.2 is at an end of 1e-2..0.2: a better value may lie beyond"]
    shown = terminal.done("tune", "quadratic.toml", "--option", "local.lr=0.01,0.1,0.2").out
    assert "local.lr=0.2 is at an end" in shown


def test_budget(terminal: Terminal) -> None:
    found = tuned(terminal, "--option", "local.lr=1e-2..1", "--budget", "4")
    assert len(found["trials"]) == 4
    assert found["best"]["values"] == {"local.lr": 0.1}


def test_lists_and_two_options(terminal: Terminal) -> None:
    words = ("--option", "local.lr=0.05,0.25", "--option", "local.steps=1,2")
    found = tuned(terminal, *words)
    assert len(found["trials"]) == 4
    assert found["best"]["values"] == {"local.lr": 0.25, "local.steps": 2}
    assert found["command"] == "turnout run quadratic.toml local.lr=0.25 local.steps=2"


def test_divergence_is_worst(terminal: Terminal) -> None:
    found = tuned(terminal, "--option", "local.lr=1e30,0.1")
    assert [trial["diverged"] for trial in found["trials"]] == [True, False]
    assert found["trials"][0]["value"] is None
    assert found["best"]["values"] == {"local.lr": 0.1}


def test_nothing_but_divergence(terminal: Terminal) -> None:
    answer = terminal("tune", quadratic(terminal), "--option", "local.lr=1e29,1e30", "--json")
    assert answer.code == 1
    assert answer.json()["schemes"]["fedavg"]["best"] is None
    assert answer.json()["schemes"]["fedavg"]["command"] is None
    assert "Every value of fedavg diverged" in terminal("tune", "quadratic.toml", "--option", "local.lr=1e29,1e30").out


def test_schemes_have_their_own_best(terminal: Terminal) -> None:
    """One round of FedFix at half the slowest client's time hears nobody: every value is as good, the first wins."""
    words = ("--option", "local.lr=0.1,0.5", "--schemes", "fedavg, fedfix,fedavg")
    document = terminal.done("tune", quadratic(terminal), *words, "--json").json()
    assert list(document["schemes"]) == ["fedavg", "fedfix"]
    fedfix = document["schemes"]["fedfix"]
    assert [trial["value"] for trial in fedfix["trials"]] == pytest.approx([5, 5])
    assert fedfix["command"] == "turnout run quadratic.toml algorithm.name=fedfix local.lr=0.1"


def test_seeds_are_averaged_and_paid_for(terminal: Terminal) -> None:
    words = ("data.name=digits", "partition.name=iid", "model.bias=true", "local.batching=draws")
    found = tuned(terminal, *words, "run.seed=3", "--option", "local.lr=0.01..0.1", "--seeds", "2", "--budget", "6")
    assert len(found["trials"]) == 3
    for trial in found["trials"]:
        assert [run["seed"] for run in trial["runs"]] == [3, 4]
        assert trial["runs"][0]["value"] != trial["runs"][1]["value"]
        assert trial["value"] == pytest.approx(np.mean([run["value"] for run in trial["runs"]]))


def test_accuracy_is_better_when_higher(terminal: Terminal) -> None:
    words = ("data.name=digits", "partition.name=iid", "run.rounds=5", "model.bias=true", "model.zero_init=false")
    found = tuned(terminal, *words, "--option", "local.lr=1e-6,1", "--measure", "validation_accuracy")
    low, high = (trial["value"] for trial in found["trials"])
    assert low < high
    assert found["best"]["values"] == {"local.lr": 1}


# -- what is looked at ----------------------------------------------------------------------------------------

NPZ = ("data.name=numpy_files", "data.path=mine.npz", "partition.name=iid", "clients.count=4", "local.epochs=2")


def write_rows(terminal: Terminal, broken: list[int], broken_central: bool = False) -> None:
    """A regression whose targets are nonsense in the given rows."""
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("f4")
    y = (x @ [1.0, -2.0, 0.5])[:, None].astype("f4")
    y[broken] += 100
    central = {"test_inputs": x[:10] + 1, "test_targets": y[:10] * 0 + (1e6 if broken_central else 0)}
    np.savez(terminal.here / "mine.npz", inputs=x, targets=y, **central)  # type: ignore[arg-type]


@pytest.mark.parametrize("measure", ["validation_loss", "train_loss"])
def test_test_data_changes_nothing(terminal: Terminal, measure: str) -> None:
    def result() -> Any:
        return tuned(terminal, *NPZ, "--option", "local.lr=0.01,0.1", "--measure", measure)

    write_rows(terminal, [])
    clean = result()
    experiment, _, _ = config.build(config.read(quadratic(terminal), list(NPZ)))
    people = experiment.population
    assert people.test is not None
    write_rows(terminal, people.test.values.tolist(), broken_central=True)
    assert result() == clean
    write_rows(terminal, people.train.values[:1].tolist())
    assert result() != clean


def test_samples_held_back_are_not_trained_on(terminal: Terminal) -> None:
    write_rows(terminal, [])
    experiment, _, _ = config.build(config.read(quadratic(terminal), list(NPZ)))
    people = experiment.population
    split = tune.without_test_data(people, 0.25, required=True)
    assert split.test is not None
    assert split.central is None
    for client in range(people.size):
        train, held_back = set(split.train.row(client).tolist()), set(split.test.row(client).tolist())
        assert not train & held_back
        assert train | held_back == set(people.train.row(client).tolist())
        assert len(held_back) == round(0.25 * len(train | held_back))
    assert split.base_importance.tolist() == people.base_importance.tolist()


def test_train_loss_uses_all_training_samples(terminal: Terminal) -> None:
    write_rows(terminal, [])
    experiment, _, _ = config.build(config.read(quadratic(terminal), list(NPZ)))
    whole = tune.without_test_data(experiment.population, 0.0, required=False)
    assert whole.train.values.tolist() == experiment.population.train.values.tolist()
    assert whole.test is None


# -- what it leaves and says ----------------------------------------------------------------------------------


def test_table_and_progress(terminal: Terminal) -> None:
    answer = terminal.done("tune", quadratic(terminal), "--option", "local.lr=0.5,0.1")
    lines = answer.out.splitlines()
    assert any("0.5" in line and "1.0000" in line and "best" in line for line in lines)
    assert "turnout run quadratic.toml local.lr=0.5" in lines
    assert answer.err.splitlines() == [
        "fedavg local.lr=0.5: validation_loss 1",
        "fedavg local.lr=0.1: validation_loss 3.56",
    ]


def test_deterministic_and_nothing_written(terminal: Terminal) -> None:
    first = terminal.done("tune", quadratic(terminal), "--option", "local.lr=1e-2..1", "--json").out
    again = terminal.done("tune", "quadratic.toml", "--option", "local.lr=1e-2..1", "--json").out
    assert first == again
    assert [path.name for path in terminal.here.iterdir()] == ["quadratic.toml"]


def test_the_command_runs_the_winner(terminal: Terminal) -> None:
    """Overrides are kept, except of what was tuned."""
    found = tuned(terminal, "run.rounds=2", "local.lr=0.3", "model.name=mlp", "--option", "model.hidden=[4],[8, 4]")
    words = shlex.split(found["command"])
    assert words[:4] == ["turnout", "run", "quadratic.toml", "run.rounds=2"]
    assert found["best"]["values"]["model.hidden"] in ([4], [8, 4])
    assert terminal.done(*words[1:], "--json").json()["rounds"] == 2
    lr = tuned(terminal, "local.lr=0.3", "--option", "local.lr=0.1,0.2")
    assert lr["command"] == "turnout run quadratic.toml local.lr=0.2"


MISTAKES = {
    "scheme": (["--schemes", "fedavgg"], "--schemes: unknown name 'fedavgg'; did you mean fedavg?"),
    "option": (["--option", "local.lrr=0.1,1"], "local.lrr: unknown option; did you mean lr?"),
    "value": (["--option", "local.batch_size=few,many"], "local.batch_size: 'few' is not a whole number"),
    "section": (["--option", "run.seed=1,2"], "--option: run.seed cannot be tuned; allowed: options of model, local"),
    "name": (["--option", "algorithm.name=fedavg,fedfix"], "algorithm.name cannot be tuned; allowed"),
    "no values": (
        ["--option", "local.lr"],
        "--option: 'local.lr' is not section.option=values; write local.lr=1e-4..1",
    ),
    "backwards": (["--option", "local.lr=1..0.1"], "local.lr=1..0.1 is not a range; write LOW..HIGH with 0 < LOW"),
    "no number": (["--option", "local.lr=low..high"], "local.lr=low..high is not a range"),
    "zero": (["--option", "local.lr=0..1"], "local.lr=0..1 is not a range"),
    "empty": (["--option", "local.lr=3..4"], "local.lr=3..4 holds no value of the 1-2-5 grid; list the values"),
    "twice": (["--option", "local.lr=1,2", "--option", "local.lr=3,4"], "--option: local.lr is given twice"),
    "budget": (["--budget", "0"], "--budget: 0 must be at least 1"),
    "small budget": (["--budget", "5"], "--budget: 5 runs do not cover the 6 to begin with"),
    "seeds": (["--seeds", "0"], "--seeds: 0 must be at least 1"),
    "measure": (["--measure", "test_loss"], "--measure: 'test_loss' cannot be tuned on; allowed: validation_loss"),
    "override": (["run.round=3"], "run.round: unknown option; did you mean rounds?"),
    "nothing to hold back": (["data.samples=1"], "no client has samples to hold back for validation; use train_loss"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(terminal: Terminal, mistake: str) -> None:
    words, sentence = MISTAKES[mistake]
    assert sentence in terminal.refused("tune", quadratic(terminal), *words)
    assert [path.name for path in terminal.here.iterdir()] == ["quadratic.toml"]


def test_no_algorithm(terminal: Terminal) -> None:
    path = terminal.write("none.toml", QUADRATIC.replace('name = "fedavg"', ""))
    assert "algorithm.name: missing" in terminal.refused("tune", path)
    assert terminal.done("tune", path, "--schemes", "fedavg", "--option", "local.lr=0.1").code == 0


def test_grid() -> None:
    choice = tune.Choice.parse("local.lr=3e-3..0.5")
    assert choice.values == ("0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5")
    assert choice.first == ("0.01", "0.1")
    assert tune.Choice.parse("local.lr=2..5").first == ("2", "5")
    assert tune.Choice.parse("local.batching=full,draws").at_the_end("full") is False
    with pytest.raises(UserError):
        tune.Choice.parse("local.lr=1..2..3")


def test_help(terminal: Terminal) -> None:
    assert "Example: turnout tune" in terminal.done("tune", "--help").out
