"""`turnout sweep`: every combination once, each an ordinary run, whatever happens on the way."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal, bits

from turnout.config import config
from turnout.plan import choices, sweep
from turnout.record.history import History
from turnout.run.experiment import execute
from turnout.server.observer import Round
from turnout.server.server import Server

# (w - 1)^2 and (w - 3)^2 from w = 0: a full step of 2 lr goes from the distance 2 to 2 (1 - 2 lr).
QUADRATIC = """
[run]
name = "q"
rounds = 4
checkpoint_every = 1
report = false
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
"""


@pytest.fixture
def quadratic(terminal: Terminal) -> str:
    return terminal.write("quadratic.toml", QUADRATIC)


def swept(terminal: Terminal, source: str, *words: str) -> Any:
    """In this process."""
    return terminal("sweep", source, *words, "--workers", "1")


# -- what is run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("0..4", ("0", "1", "2", "3", "4")),
        ("-1..1", ("-1", "0", "1")),
        ("1e-2..0.1", ("0.01", "0.02", "0.05", "0.1")),
        ("a,b, a", ("a", "b")),
        ("[1, 2],[3]", ("[1, 2]", "[3]")),
        ("../mine.csv", ("../mine.csv",)),
        ("0..x", ("0..x",)),
    ],
)
def test_values(written: str, values: tuple[str, ...]) -> None:
    assert choices.several("some.option", written) == values


def test_every_combination_is_an_ordinary_run(terminal: Terminal, quadratic: str) -> None:
    answer = swept(terminal, quadratic, "lr=0.1,0.25", "seed=0..1", "--json")
    document = answer.json()
    assert answer.code == 0, answer.err
    assert document["sweep"] == "runs/q-sweep"
    assert document["failed"] == []
    folders = [folder for row in document["rows"] for folder in row["runs"]]
    assert folders == [f"runs/q-sweep/lr={lr},seed={seed}" for lr in (0.1, 0.25) for seed in (0, 1)]
    for row, lr in zip(document["rows"], (0.1, 0.25), strict=True):
        found = row["quantities"]["train_loss"]
        expected = 1 + 4 * (1 - 2 * lr) ** 8  # half of each optimum's square distance, of the mean 2
        assert found["values"] == pytest.approx([expected, expected], rel=1e-4)
        assert found["half_width"] == pytest.approx(0, abs=1e-6)
    settings = config.read(f"{folders[0]}/config.toml")
    assert settings["engine"]["threads"] == 1
    terminal.done("inspect", folders[0])
    terminal.done("run", f"{folders[3]}/config.toml", "run.folder=again")
    assert bits(Path(folders[3])) == bits(Path("again/lr=0.25,seed=1"))


def test_finished_ones_are_not_run_again(terminal: Terminal, quadratic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(terminal, quadratic, "seed=0..1")
    ran = []
    monkeypatch.setattr(
        sweep,
        "execute",
        lambda *args, **options: ran.append(args[1].name) or execute(*args, **options),  # type: ignore[func-returns-value]
    )
    answer = swept(terminal, quadratic, "seed=0..2")
    assert ran == ["seed=2"]
    assert "2 of 3 are finished already" in answer.err
    swept(terminal, quadratic, "seed=0..2", "run.rounds=5")  # longer: these go on
    assert ran == ["seed=2", "seed=0", "seed=1", "seed=2"]
    document = terminal.done("compare", "runs/q-sweep/seed=0", "--json").json()
    assert document["rows"][0]["quantities"]["rounds"]["values"] == [5]


class BrokenError(Exception):
    pass


def stop_in_round(patch: pytest.MonkeyPatch, number: int, seed: int, error: type[BaseException]) -> None:
    record = History.on_round

    def stops(self: History, server: Server, done: Round) -> None:
        if (done.number, server.seed) == (number, seed):
            raise error
        record(self, server, done)

    patch.setattr(History, "on_round", stops)


def test_a_failure_leaves_the_rest_alone_and_goes_on(terminal: Terminal, quadratic: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_in_round(patch, 3, 1, BrokenError)
        answer = swept(terminal, quadratic, "seed=0..2", "--json")
    assert answer.code == 1
    assert answer.json()["failed"] == [{"run": "runs/q-sweep/seed=1", "why": "BrokenError: "}]
    assert [len(row["runs"]) for row in answer.json()["rows"]] == [2]
    assert terminal("sweep", quadratic, "seed=0..2", "--dry-run").out.split()[2:] == [
        "runs/q-sweep/seed=0", "finished", "runs/q-sweep/seed=1", "unfinished", "runs/q-sweep/seed=2", "finished",
    ]  # fmt: skip
    assert swept(terminal, quadratic, "seed=0..2").code == 0
    assert "resumed" in (terminal.here / "runs/q-sweep/seed=1/log.txt").read_text()
    swept(terminal, quadratic, "seed=1", "run.name=whole")
    assert bits(Path("runs/q-sweep/seed=1")) == bits(Path("runs/whole/seed=1"))


def test_interrupted(terminal: Terminal, quadratic: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_in_round(patch, 2, 1, KeyboardInterrupt)
        answer = swept(terminal, quadratic, "seed=0..2")
    assert answer.code == 130
    assert "interrupted with 1 of 3 done; the same command goes on" in answer.err
    states = [one["state"] for one in terminal.done("sweep", quadratic, "seed=0..2", "--dry-run", "--json").json()]
    assert states == ["finished", "unfinished", "new"]
    assert swept(terminal, quadratic, "seed=0..2").code == 0


def test_interrupted_while_it_got_longer(terminal: Terminal, quadratic: str) -> None:
    """The result of the shorter run is not the result of the longer one."""
    swept(terminal, quadratic, "seed=1")
    with pytest.MonkeyPatch.context() as patch:
        stop_in_round(patch, 6, 1, KeyboardInterrupt)
        swept(terminal, quadratic, "seed=1", "run.rounds=7")
    (left,) = terminal.done("sweep", quadratic, "seed=1", "run.rounds=7", "--dry-run", "--json").json()
    assert left["state"] == "unfinished"


def test_killed_before_anything_was_written(terminal: Terminal, quadratic: str) -> None:
    folder = terminal.here / "runs/q-sweep/seed=0"
    folder.mkdir(parents=True)
    (folder / ".config.toml.partial").touch()
    assert swept(terminal, quadratic, "seed=0").code == 0


def test_names_come_before_their_options(terminal: Terminal, quadratic: str) -> None:
    """Another algorithm has other options: a name alone would forget them."""
    terminal.done("sweep", quadratic, "algorithm.mu=0.5", "algorithm=fedprox", "--workers", "1")
    settings = config.read("runs/q-sweep/algorithm.mu=0.5,algorithm=fedprox/config.toml")
    assert (settings["algorithm"]["name"], settings["algorithm"]["mu"]) == ("fedprox", 0.5)


def test_the_listed_command_makes_that_run(terminal: Terminal, quadratic: str) -> None:
    (listed,) = terminal.done("sweep", quadratic, "model.name=mlp", "model.hidden=[4, 2]", "--dry-run", "--json").json()
    assert not (terminal.here / "runs").exists()
    terminal.done(*shlex.split(listed["command"])[1:])
    assert config.read(f"{listed['run']}/config.toml")["model"]["hidden"] == [4, 2]
    states = terminal.done("sweep", quadratic, "model=mlp", "model.hidden=[4, 2]", "--dry-run", "--json").json()
    assert [one["state"] for one in states] == ["finished"]


# -- what is shown --------------------------------------------------------------------------------------------


def test_time_to_a_target_of_a_whole_set(terminal: Terminal, quadratic: str) -> None:
    """An error is reached from above: w = 0.4, 0.72 are 1.6 and 1.28 away from the optima on average."""
    words = ("lr=0.1", "task.metrics=rmse", "--target", "train_rmse=1.3", "--workers", "1", "--json")
    (row,) = terminal.done("sweep", quadratic, *words).json()["rows"]
    assert row["quantities"]["rounds_to_target"]["values"] == [2]


def test_time_to_target_with_intervals(terminal: Terminal, quadratic: str) -> None:
    words = ("lr=0.01,0.25", "seed=0..1", "--target", "train_loss=1.1")
    answer = swept(terminal, quadratic, *words)
    assert "Means over 2 seeds" in answer.out
    never, reached = swept(terminal, quadratic, *words, "--json").json()["rows"]
    assert never["quantities"]["rounds_to_target"] == {"values": [None, None], "mean": None, "half_width": None}
    # 1 + 4 / 4^k for lr = 0.25: at most 1.1 from k = 3, at a second a round
    assert reached["quantities"]["rounds_to_target"] == {"values": [3, 3], "mean": 3, "half_width": 0}
    assert reached["quantities"]["seconds_to_target"]["mean"] == 3


def test_three_by_five_in_one_command(terminal: Terminal, quadratic: str) -> None:
    """Tables, figures, BibTeX and a row a run; and first whether it is more than chance."""
    pytest.importorskip("matplotlib")
    words = ("algorithm=fedavg,fedprox,fedfix", "seed=0..4", "run.rounds=2", "--paper", "paper")
    answer = swept(terminal, quadratic, *words)
    assert answer.code == 0
    folder = terminal.here / "paper"
    assert {"table.tex", "runs.csv", "references.bib", "curves.pdf", "bars.pdf"} <= {p.name for p in folder.iterdir()}
    assert len((folder / "runs.csv").read_text().splitlines()) == 16
    first = (folder / "answers.txt").read_text().splitlines()[0]
    assert " ".join(answer.out.split()).startswith(first)
    (terminal.here / "file").write_text("x")
    assert "--paper: file is a file" in terminal.refused("sweep", quadratic, "seed=7", "--paper", "file")


# -- mistakes -------------------------------------------------------------------------------------------------

MISTAKES = {
    "nothing": ([], "sweep: nothing to sweep; give options their values"),
    "no option": (["fedavg"], "sweep: 'fedavg' is not an option with values; write algorithm=fedavg,fedfix"),
    "unknown": (["rate=1,2"], "sweep: 'rate=1,2' is not an option with values"),
    "twice": (["seed=0", "run.seed=1"], "sweep: run.seed is given twice; give all its values at once"),
    "names": (["run.name=a,b"], "run.name: a sweep has one folder"),
    "backwards": (["seed=4..0"], "run.seed=4..0 is not a range; write LOW..HIGH with LOW at most HIGH"),
    "the last of all": (["algorithm=fedavg,fedprox,fedfixx"], "unknown name 'fedfixx'; did you mean fedfix?"),
    "a value": (["seed=0,one"], "run.seed: 'one' is not a whole number"),
    "workers": (["seed=0", "--workers", "-1"], "--workers: -1 must be at least 1, or 0"),
    "target": (["seed=0", "--target", "accuracy"], "--target: 'accuracy' is not MEASURE=VALUE"),
    "measure": (["seed=0", "--target", "train_los=1"], "--target: unknown name 'train_los'; did you mean train_loss?"),
    "page": (["seed=0..10", "--report", "a.html"], "--report: 11 runs; a page shows at most 10"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(terminal: Terminal, quadratic: str, mistake: str) -> None:
    words, sentence = MISTAKES[mistake]
    assert sentence in terminal.refused("sweep", quadratic, *words)
    assert [path.name for path in terminal.here.iterdir()] == ["quadratic.toml"]


def test_another_configuration_of_that_name(terminal: Terminal, quadratic: str) -> None:
    swept(terminal, quadratic, "seed=0")
    terminal.write("quadratic.toml", QUADRATIC.replace("lr = 0.1", "lr = 0.2"))
    assert "seed=0 holds a run of another configuration" in terminal.refused("sweep", quadratic, "seed=0,1")
    terminal.done("run", quadratic)
    assert "runs/q holds a single run" in terminal.refused("sweep", quadratic, "seed=0,1", "run.name=q")
