"""Every mistake is exit code 2, one sentence, and no folder left behind; every way to bring one's own works."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from terminal import QUICK, Terminal, bits, table

from turnout.config import config, registry

MODULE = """
import numpy as np
from torch import nn


def net(inputs: int, outputs: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))


class Net(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.layer(x)


def samples(n=40):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype("float32")
    return {"inputs": x, "targets": (x[:, 0] > 0).astype(int)}


def broken():
    raise RuntimeError("disc full")
"""
CSV = ("data.name=csv_table", "data.path=mine.csv", "data.target=y")
NPZ = ("data.name=numpy_files", "data.path=mine.npz")


def bring_npz(terminal: Terminal, broken: bool = False) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("f4")
    if broken:
        x[7, 1] = np.nan
    np.savez(terminal.here / "mine.npz", inputs=x, targets=(x[:, 0] > 0).astype(int))


# -- mistakes -------------------------------------------------------------------------------------------------

MISTAKES = {
    "unknown section": (["runs.rounds=3"], "section: unknown name 'runs'; did you mean run?"),
    "unknown option": (["local.learning_rate=1"], "local.learning_rate: unknown option; allowed: lr"),
    "sampler without a use": (["algorithm.name=fedfix", "sampler.clients_per_round=3"], "decides by itself who is"),
    "sampler of one client": (["algorithm.name=centralised", "sampler.name=md"], "decides by itself who is"),
    "option without a use": (["algorithm.name=mifa", "algorithm.normalise=responders"], "would change nothing in Mifa"),
    "misspelt option": (["sampler.client_per_round=3"], "sampler.client_per_round: unknown option; did you mean"),
    "wrong type": (["run.rounds=soon"], "run.rounds: 'soon' is not a whole number"),
    "wrong list": (["clients.importance=[1, true, x]"], "'[1, true, x]' is not samples, equal or a list of numbers"),
    "no override": (["rounds=3"], "'rounds=3': write an override as section.option=value"),
    "dataset folder": (["data.name=mnist", "data.folder=nowhere"], "dataset mnist: there is no folder nowhere"),
    "no dataset folder": (["data.name=cifar10"], "dataset cifar10: no folder was given"),
    "importance": ([f"clients.importance={[0.02] * 100}"], "the values sum to 2, they must sum to 1"),
    "unknown importance": (["clients.importance=size"], "'size' is not samples, equal or a list of numbers"),
    "empty client": (
        ["partition.alpha=0.001", "partition.min_samples=0"],
        "has no training sample; choose another partition",
    ),
    "too many clients": (["partition.name=iid", "clients.count=5000"], "partition: 5000 clients for 1438 samples"),
    "no clients": (["partition.name=iid", "clients.count=0"], "clients.count: 0 must be at least 1"),
    "wrong column": (["clients.joined_at=[1.0, 2.0]"], "population.joined_at: 2 values for 100 clients"),
    "unknown model": (["model.name=mpl"], "model.name: unknown name 'mpl'; did you mean mlp?"),
    "own model": (["model.name=mine:net"], "model.name: 'mine:net' cannot be imported"),
    "unknown loss": (["model.loss=crossentropy"], "unknown name 'crossentropy'; did you mean cross_entropy?"),
    "unknown algorithm": (["algorithm.name=fedavgg"], "did you mean fedavg?"),
    "rate": (["local.lr=0", "algorithm.server_lr=0"], "algorithm.server_lr: 0.0 must be above 0"),
    "endless": (["algorithm.deadline=-1"], "algorithm.deadline: -1.0 must be above 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(terminal: Terminal, mistake: str) -> None:
    overrides, words = MISTAKES[mistake]
    assert words in terminal.refused("run", "digits", *QUICK, *overrides)
    assert list(terminal.here.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run\nrounds = 3\n", "configuration mine.toml: not valid TOML (Expected"),
        ("[run]\nrounds = 3\nrounds = 4\n", "not valid TOML (Cannot overwrite a value"),
        ("rounds = 3\n", "rounds: options stand in sections such as [run]; allowed: run, data"),
        ("[run]\nrounds = 3\n", "data.name: missing; say which one with data.name=..."),
        ("[ruin]\nrounds = 3\n", "section: unknown name 'ruin'; did you mean run?"),
    ],
)
def test_mistakes_in_a_file(terminal: Terminal, text: str, words: str) -> None:
    path = terminal.write("mine.toml", text)
    assert words in terminal.refused("run", path)
    assert [file.name for file in terminal.here.iterdir()] == ["mine.toml"]


def test_missing_configuration(terminal: Terminal) -> None:
    assert terminal.refused("run", "mine.toml") == "configuration mine.toml: cannot be read (No such file or directory)"
    assert "did you mean digits?" in terminal.refused("run", "digit")
    assert "cannot be read (Is a directory)" in terminal.refused("run", str(terminal.here))


@pytest.mark.parametrize("broken", ["csv", "npz"])
def test_data_with_nan(terminal: Terminal, broken: str) -> None:
    if broken == "csv":
        terminal.write("mine.csv", table(broken=4))
        sentence = terminal.refused("run", terminal.own(), *CSV)
        assert sentence.startswith("dataset csv_table: mine.csv line 6: column b is missing; the option missing, or")
    else:
        bring_npz(terminal, broken=True)
        assert "training inputs contain NaN or infinity" in terminal.refused("run", terminal.own(), *NPZ)
    assert terminal.runs == []


def test_own_function_that_fails(terminal: Terminal) -> None:
    terminal.write("my_broken.py", MODULE)
    own = ("data.name=function", "data.function=my_broken:broken")
    assert "my_broken:broken raised RuntimeError: disc full" in terminal.refused("run", terminal.own(), *own)
    assert terminal.runs == []


def test_run_name_already_used(terminal: Terminal) -> None:
    folder = terminal.run("a")
    before = (folder / "result.json").read_bytes()
    sentence = terminal.refused("run", "digits", *QUICK, "run.name=a", "run.seed=1")
    assert sentence.startswith("run.name: runs/a already holds a run; choose another run.name, pass --overwrite")
    assert (folder / "result.json").read_bytes() == before
    terminal.done("run", "digits", *QUICK, "run.name=a", "run.seed=1", "--overwrite")
    assert (folder / "result.json").read_bytes() != before


LATE = {
    "too many draws": ["sampler.clients_per_round=1000"],
    "panel": ["evaluation.clients=1000"],
    "measure": ["run.target=0.9", "run.measure=test_f1"],
    "checkpoints": ["run.checkpoint_every=0"],
    "model and data": ["model.name=cnn_cifar"],
}


@pytest.mark.parametrize("mistake", LATE)
def test_late_mistakes_are_sentences(terminal: Terminal, mistake: str) -> None:
    terminal.refused("run", "digits", *QUICK, *LATE[mistake])


@pytest.mark.parametrize("mistake", LATE)
def test_late_mistakes_leave_nothing(terminal: Terminal, mistake: str) -> None:
    """A run that never began must not claim its name: the corrected command is refused otherwise."""
    terminal.refused("run", "digits", *QUICK, *LATE[mistake])
    assert terminal.runs == []


def test_loss_that_does_not_fit_the_targets(terminal: Terminal) -> None:
    terminal.refused("run", "digits", *QUICK, "model.loss=hinge")


def test_model_that_cannot_be_built(terminal: Terminal) -> None:
    terminal.refused("run", "digits", *QUICK, "model.hidden=[-3]")


# -- one's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), [("net", 64 * 6 + 6 + 6 * 10 + 10), ("Net", 650)])
def test_own_model(terminal: Terminal, name: str, parameters: int) -> None:
    from safetensors.torch import load_file

    terminal.write(f"my_{name}.py", MODULE)
    width = ["model.width=6"] if name == "net" else []
    terminal.done("run", terminal.own(), "data.name=digits", f"model.name=my_{name}:{name}", *width)
    state = load_file(terminal.here / "runs/run/model.safetensors")
    assert sum(value.numel() for value in state.values()) == parameters
    assert all(bool(torch.isfinite(value).all()) for value in state.values())


def bring_csv(terminal: Terminal) -> tuple[str, ...]:
    terminal.write("mine.csv", table())
    return CSV


def bring_arrays(terminal: Terminal) -> tuple[str, ...]:
    bring_npz(terminal)
    return NPZ


def bring_function(terminal: Terminal) -> tuple[str, ...]:
    terminal.write("my_samples.py", MODULE)
    return ("data.name=function", "data.function=my_samples:samples", "data.arguments={n = 36}")


@pytest.mark.parametrize("bring", [bring_csv, bring_arrays, bring_function])
def test_own_data(terminal: Terminal, bring: Callable[[Terminal], tuple[str, ...]]) -> None:
    """The table's classes are told apart by its first column: training must see that."""
    document = terminal.done(
        "run", terminal.own(), *bring(terminal), "run.rounds=20", "local.lr=1", "clients.test=none", "--json"
    ).json()
    assert document["measures"]["train_accuracy"] > 0.9
    assert document["audit"]["clients"] == 4


@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_every_algorithm_runs_with_nothing_but_its_name(terminal: Terminal, name: str) -> None:
    """Over fewer clients than a sampler draws from many, some of whom crash, and resumed with what it chose itself."""
    text = config.builtin_text("digits").partition("[sampler]")[0]
    few = terminal.write("few.toml", text.replace("= 100", "= 5").replace("epochs = 2", "steps = 2"))
    words = ("run", few, *QUICK, f"algorithm.name={name}", "run.report=false", "run.checkpoint_every=1")
    document = terminal.done(*words, "--json").json()
    assert document["rounds"] == 3
    assert document["audit"]["clients"] <= 5
    assert not document["nobody_heard"]
    if name in ("fedcs", "hierfavg", "hybridfl"):
        assert document["deadline"] > 0
        terminal.done(*words, "run.rounds=2", "run.name=again")
        terminal.done("resume", "runs/again", "run.rounds=3")
        assert bits(terminal.here / "runs/again")["model"] == bits(terminal.here / "runs/digits")["model"]
        given = terminal.done(*words, f"algorithm.deadline={document['deadline']!r}", "run.name=given", "--json").json()
        assert given["measures"] == document["measures"]
        assert "deadline" not in given


@pytest.mark.parametrize("name", ["uniform", "fill", "renormalised", "binomial", "poisson_binomial"])
def test_a_sampler_without_a_size_adapts_and_its_size_is_written_down(terminal: Terminal, name: str) -> None:
    text = config.builtin_text("digits").partition("[sampler]")[0].replace("epochs = 2", "steps = 2")
    given = (f"sampler.name={name}", "run.report=false", "partition.name=iid")
    words = ("run", terminal.write("own.toml", text), *QUICK, *given)
    for clients, size in ((4, 4 if name != "poisson_binomial" else 3), (100, 10)):
        terminal.done(*words, f"clients.count={clients}", f"run.name=c{clients}")
        written = tomllib.loads((terminal.here / f"runs/c{clients}/config.toml").read_text())
        assert written["sampler"]["clients_per_round"] == size
    terminal.done("resume", "runs/c4", "run.rounds=4")
    refused = terminal.refused(*words, "clients.count=4", "sampler.clients_per_round=10")
    assert refused.startswith("sampler.clients_per_round: 10 ")


def test_where_nobody_is_ever_heard_the_first_line_says_so(terminal: Terminal) -> None:
    words = ("run", terminal.own(), "data.name=digits", "crashes.probability=1.0")
    answer = terminal(*words, "run.name=a")
    assert answer.code == 1
    assert answer.out.splitlines()[0].startswith("Nobody was ever heard:")
    document = terminal(*words, "run.name=b", "--json")
    assert document.code == 1
    assert document.json()["nobody_heard"] is True
    assert terminal.done("inspect", "runs/a").out.startswith("Nobody was ever heard:")
    assert terminal("resume", "runs/a", "run.rounds=3").code == 1
    heard = terminal.done("run", terminal.own(), "data.name=digits", "run.name=c", "--json").json()
    assert heard["nobody_heard"] is False


def test_clients_join_and_leave(terminal: Terminal) -> None:
    """Rounds of a second; client 2 comes at 2 s, client 1 goes at 1.5 s, in the middle of its second job."""
    import pyarrow.parquet as pq

    times = ("clients.joined_at=[0, 0, 2, 0]", "clients.left_at=[99, 1.5, 99, 99]")
    terminal.done("run", terminal.own(), "data.name=digits", *times, "run.rounds=4")
    jobs = pq.read_table(terminal.here / "runs/run/jobs").to_pydict()
    by_round = {
        number: {
            client: outcome
            for r, client, outcome in zip(jobs["round"], jobs["client"], jobs["outcome"], strict=True)
            if r == number
        }
        for number in range(1, 5)
    }
    assert by_round[1] == {0: "arrived", 1: "arrived", 3: "arrived"}
    assert by_round[2] == {0: "arrived", 1: "left", 3: "arrived"}
    assert by_round[3] == by_round[4] == {0: "arrived", 2: "arrived", 3: "arrived"}
    weights = np.array(jobs["weight"])[np.array(jobs["round"]) == 3]
    assert weights.sum() == pytest.approx(1)  # importance is shared out anew over the members


@pytest.mark.parametrize(
    "at",
    [
        1.5,
        1.0,
    ],
)
def test_everybody_leaves(terminal: Terminal, at: float) -> None:
    """With nobody left the rounds are empty, and the audit still speaks of those who were there."""
    words = (f"clients.left_at={[at] * 4}", "run.rounds=4")
    answer = terminal.done("run", terminal.own(), "data.name=digits", *words, "--json")
    assert answer.json()["audit"]["events"]["empty_round"] >= 2
