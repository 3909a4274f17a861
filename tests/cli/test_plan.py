"""`turnout plan`."""

from __future__ import annotations

import pytest
from terminal import Terminal

FIVE = (
    "clients.count=5", "clients.importance=equal", "partition.name=iid", "devices.name=fx", "devices.percent=80",
    "links.down=inf", "links.up=inf", "links.latency=0", "availability.name=always", "crashes.probability=0",
)  # fmt: skip


def test_json(terminal: Terminal) -> None:
    answer = terminal.done("plan", "digits", *FIVE, "--json")
    document = answer.json()
    assert set(document) == {
        "clients", "reliable", "fixed_durations", "fastest_seconds", "slowest_seconds", "policies", "advice",
    }  # fmt: skip
    assert (document["clients"], document["reliable"], document["fixed_durations"]) == (5, True, True)
    assert (document["fastest_seconds"], document["slowest_seconds"]) == (0.2, 1.0)
    by_name = {row["policy"]: row for row in document["policies"]}
    assert by_name["async_fedavg"]["fairness_window"] == 137
    assert by_name["async_fedavg"]["chi_square"] == pytest.approx(0.37)
    assert by_name["fedfix 0.5 s"]["fairness_window"] == 2
    assert by_name["fedbuff 2 wait"]["fairness_window"] == 56
    assert all(isinstance(sentence, str) for sentence in document["advice"])
    assert answer.err == ""
    assert list(terminal.here.iterdir()) == []


def test_windows_nobody_waits_for(terminal: Terminal) -> None:
    """Null for scripts, in words for people."""
    many = (*FIVE, "clients.count=10")
    rows = terminal.done("plan", "digits", *many, "--json").json()["policies"]
    assert rows[1]["fairness_window"] is None
    (line,) = [line for line in terminal.done("plan", "digits", *many).out.splitlines() if line.startswith("async_")]
    assert "> 1e6" in line


def test_table(terminal: Terminal) -> None:
    shown = terminal.done("plan", "digits", *FIVE).out
    (line,) = [line for line in shown.splitlines() if line.startswith("async_fedavg ")]
    assert line.split() == ["async_fedavg", "41.1k", "1", "41.1k", "4.01", "12", "137", "0%", "0.370", "2.19"]
    assert "weight_rule=unbiased" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_unreliable_configuration(terminal: Terminal) -> None:
    """As configured: links, absences and crashes included."""
    answer = terminal.done("plan", "digits", "clients.count=20", "--json").json()
    assert answer["reliable"] is False
    assert all(row["fairness_window"] is None for row in answer["policies"])
    assert answer["policies"][0]["participants_per_round"] == pytest.approx(20 * 0.7 * 0.9, rel=0.1)


def test_the_model_takes_time_on_the_wire(terminal: Terminal) -> None:
    """650 parameters of 4 bytes at 5200 bits a second, and back at 10400."""
    words = (*FIVE, "model.name=linear", "links.down=5200", "links.up=10400")
    document = terminal.done("plan", "digits", *words, "--json").json()
    assert document["slowest_seconds"] == pytest.approx(1 + 4 + 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digit"], "did you mean digits?"),
        (["digits", "devices.sigm=1"], "devices.sigm: unknown option; did you mean sigma?"),
        (["digits", "clients.count=many"], "clients.count: 'many' is not a whole number"),
    ],
)
def test_mistakes(terminal: Terminal, words: list[str], sentence: str) -> None:
    assert sentence in terminal.refused("plan", *words)


def test_help(terminal: Terminal) -> None:
    assert "Example: turnout plan" in terminal.done("plan", "--help").out
