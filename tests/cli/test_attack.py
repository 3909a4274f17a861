"""`turnout attack`: tables for people, a document for scripts, one sentence for every mistake."""

from __future__ import annotations

from terminal import Terminal

FEW = ("clients.count=6", "partition.name=iid", "sampler.name=full")


def test_a_run_is_attacked(terminal: Terminal) -> None:
    folder = str(terminal.run("a", *FEW).relative_to(terminal.here))
    found = terminal.done("attack", folder, "--json").json()
    assert (found["run"], found["kind"], found["by"]) == ("runs/a", "loss", None)
    assert (found["reference"], found["groups"]) == (None, {})
    train = found["train"]
    assert train["members"] + train["non_members"] == 1438
    assert abs(train["accuracy"] - 0.5) < 0.15  # three rounds remember nothing
    shown = terminal.done("attack", folder)
    assert shown.err == ""
    for words in ("runs/a: test loss", "by the loss attack", "training data", f"{train['accuracy']:.3f} ± "):
        assert words in shown.out
    assert "reference data" not in shown.out


def test_groups_reference_data_and_shadows(terminal: Terminal) -> None:
    folder = str(terminal.run("a", *FEW, "algorithm.name=werm", "algorithm.reference_clients=[1, 4]"))
    found = terminal.done("attack", folder, "--by", "class", "--json").json()
    assert list(found["groups"]) == [str(digit) for digit in range(10)]
    assert found["reference"]["members"] < found["train"]["members"]
    words = ("attack", folder, "--by", "client", "--kind", "calibrated", "--shadows", "2")
    shown = terminal.done(*words).out
    for part in ("reference data", "Of each client, most first", "by the calibrated attack"):
        assert part in shown
    rows = [line.split() for line in shown.splitlines() if line.split()[:1] in [[str(client)] for client in range(6)]]
    accuracies = [float(row[3]) for row in rows]
    assert sorted(row[0] for row in rows) == [str(client) for client in range(6)]
    assert accuracies == sorted(accuracies, reverse=True)
    other = terminal.done(*words, "--seed", "1", "--json").json()
    assert other["train"] != terminal.done(*words, "--json").json()["train"]


def test_too_few_samples_are_said_once(terminal: Terminal) -> None:
    """A hundred clients of a few samples each: no table of NaN, and one line that says why."""
    folder = str(terminal.run("a"))
    answer = terminal.done("attack", folder, "--by", "client", "--json")
    assert answer.err == "turnout: 100 of 100 groups have fewer than 20 members or non-members: what they leak is NaN\n"
    assert answer.json()["groups"]["0"]["accuracy"] is None
    assert "nan" not in terminal.done("attack", folder, "--by", "client").out


def test_mistakes_are_sentences(terminal: Terminal) -> None:
    terminal.run("a", *FEW)
    for words, sentence in (
        (("runs/b",), "attack: runs/b is not the folder of a run (it has no config.toml)"),
        (("runs/a", "--kind", "los"), "attack.kind: unknown name 'los'; did you mean loss?"),
        (("runs/a", "--by", "label"), "attack.by: unknown name 'label'; allowed: class, client"),
        (("runs/a", "--shadows", "5"), "attack.shadows: 5 must be an even number of at least 2"),
    ):
        assert terminal.refused("attack", *words) == sentence


def test_help(terminal: Terminal) -> None:
    assert "Example: turnout attack" in terminal.done("attack", "--help").out
