"""Random configurations: whatever is written, the answer is one sentence or an experiment whose file names it again.

    python tests/walk/random_configurations.py --count 22000 --seed 1

Each is a base with some options at random values, sensible or not: numbers out of every range, other types, words in
other scripts, lists nested for ever. It is read from a file or from overrides, built, written, read and built again,
and some are run for a round. Counted as failures: an exception that is no sentence, more than eight CPU seconds,
another fingerprint after the round trip. With any of these the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import catalogue

import turnout
from turnout import UserError
from turnout.config import config, written
from turnout.config.options import shown

SECONDS = 8
RUN_SHARE = 0.4
LONG_WORK = 2_000  # local steps of a client, beyond which a round is not waited for
MEMORY = 6 << 30
NUMBERS = [
    "0", "-1", "1", "2", "3", "5", "7", "10", "12", "100", "1000", "2147483648", "1000000000000",
    "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "1" + "0" * 24, "1" + "0" * 30, "-1" + "0" * 25, "9" * 400, "9" * 5000, "0x" + "f" * 6000, "1_000", "+5",
    "0.0", "-0.0", "0.1", "0.25", "0.5", "0.999", "1.0", "1.5", "2.5", "1e-9", "1e-300", "5e-324", "1e9", "1e18",
    "1e30", "1e300", "1.7976931348623157e308", "1e400", "-0.5", "-1e300", "nan", "-nan", "inf", "-inf",
]  # fmt: skip
OTHERS = [
    "true", "false", '""', "''", '" "', '"x"', '"auto"', '"none"', '"0"', '"1"', '"1e5"', '"inf"', '"nan"', '"true"',
    '"../x"', '"/"', '"."', '"\\u0000"', '"\\u007f"', '"\\n"', '"\\u202e"', '"é"', '"😀"', '"名前"', "é", "word",
    '"' + "a" * 300 + '"', '"' + "é" * 200 + '"', '"' + "a" * 100_000 + '"', "\ud800",
    '"a.b:c"', '"os:getcwd"', '"builtins:print"', '"math:hypot"', '"sys:path"', '"json:loads"',
    "[]", "[1]", "[1, 2]", "[0.5, 0.5]", "[1, 1, 1, 1, 1, 1]", "[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]", "[nan]", "[inf]",
    "[-1]", "[1" + "0" * 25 + "]", "[true]", '["a"]', '["norm"]', "[[1]]", "[[], []]", "[[1, 2], [3]]", '[1, "a"]',
    "[" * 3000 + "]" * 3000, "[" * 60 + "1" + "]" * 60, "{}", "{a = 1}", "{norm = 3}", "{norm = nan}", '{"é" = []}',
    "{a = " * 3000 + "1" + "}" * 3000, "{a." + "b." * 2000 + "c = 1}", "1979-05-27", "07:32:00",
    "1979-05-27T07:32:00Z", "1 2", "[1, 2", "1\n2", "1\n[x]\ny = 2", "= 3", "", "#", "1 # one",
]  # fmt: skip
OPTIONS = list(catalogue.options())
EVERYWHERE = [(section, thing) for section, thing, _ in catalogue.things()]


class Hang(BaseException):
    """More CPU time than a build may take."""


def draw(chance: random.Random) -> tuple[config.Settings, list[str]]:
    """A base, and what is changed of it, each `section.option=value` with the value as it is written."""
    section, thing = chance.choice(EVERYWHERE)
    base = catalogue.settings(section, thing)
    for _ in range(chance.choice([0, 0, 0, 1, 2])):  # more things of other sections
        other, name = chance.choice(EVERYWHERE)
        if name:
            base[other] = catalogue.settings(other, name)[other]
    return base, [_change(chance, base, section) for _ in range(chance.choice([1, 1, 1, 2, 3, 5]))]


def _change(chance: random.Random, base: config.Settings, section: str) -> str:
    own = [o for o in OPTIONS if o.section == section and o.thing == base.get(section, {}).get("name", "")]
    there = [o for o in OPTIONS if o.section in base and o.thing in ("", base[o.section].get("name"))]
    option = chance.choice(own or there) if chance.random() < 0.6 else chance.choice(there)
    kind = chance.random()
    if kind < 0.03:
        return f"{option.section}.name={chance.choice(OTHERS)}"
    if kind < 0.05:
        return f"{chance.choice(['', 'x', 'é', 'run', option.section])}.{chance.choice(['', 'x', 'é', 'a.b'])}=1"
    values = catalogue.values(option)
    if kind < 0.4 and values:
        return f"{option.section}.{option.name}={written._value(chance.choice(values))}"
    return f"{option.section}.{option.name}={chance.choice(NUMBERS if chance.random() < 0.6 else OTHERS)}"


def read(base: config.Settings, changes: list[str], by_file: bool) -> config.Settings:
    """The configuration, from a file with overrides, or from a file alone where the changes can be written into it."""
    path, text = Path("drawn.toml"), config.as_toml(base)
    if by_file:
        for change in changes:
            place, _, value = change.partition("=")
            section, _, option = place.partition(".")
            head = f"[{section}]\n"
            kept = [line for line in text.split("\n") if not line.startswith(f"{option} = ")]
            text = "\n".join(kept).replace(head, f"{head}{option} = {value}\n", 1)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return config.read(str(path))
    path.write_text(text, encoding="utf-8")
    return config.read(str(path), changes)


def attempt(base: config.Settings, changes: list[str], by_file: bool, run: bool) -> str:
    """What becomes of one: refused, built, ran, or another fingerprint."""
    try:
        settings = read(base, changes, by_file)
        experiment, _, complete = config.build(settings)
    except UserError as refusal:
        assert "\n" not in str(refusal), f"more than a line: {refusal}"
        return "refused"
    text = config.as_toml(complete)
    again, _, complete_again = config.build(tomllib.loads(text))
    if again.fingerprint != experiment.fingerprint or config.as_toml(complete_again) != text:
        return "another fingerprint"
    if not run or _long(experiment):
        return "built"
    try:
        experiment.stopping = turnout.Stopping(1)
        turnout.execute(experiment)
    except UserError as refusal:
        assert "\n" not in str(refusal), f"more than a line: {refusal}"
        return "refused when run"
    return "ran"


def _long(experiment: turnout.Experiment) -> bool:
    """Whether a round is much honest work, or needs what is not here."""
    local, plan = experiment.algorithm.local, experiment.plan  # type: ignore[attr-defined]
    steps = int(local.num_steps(experiment.population.train.counts).max())
    steps *= getattr(experiment.algorithm, "tuning_epochs", None) or 1
    numbers = [value for value in vars(experiment.algorithm).values() if isinstance(value, int)]
    elsewhere = plan.engine == "ray" or plan.threads > 8
    return max([steps, *numbers]) > LONG_WORK or elsewhere or experiment.task.size > 100_000


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """An alarm for CPU time: it rings inside Python, as soon as that is asked."""

    def ring(_signal: int, _frame: Any) -> None:
        raise Hang

    previous = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def walk(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Outcomes, and a description of each failure, of so many configurations."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        base, changes = draw(chance)
        by_file, run = chance.random() < 0.3, chance.random() < RUN_SHARE
        try:
            with limited(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = attempt(base, changes, by_file, run)
        except Hang:
            outcome = "hang"
            failures.append(f"hang: {traceback.format_exc(limit=-4)}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = "traceback"
            failures.append(traceback.format_exc(limit=-4))
        if outcome == "another fingerprint":
            failures.append(outcome)
        if outcome in ("hang", "traceback", "another fingerprint"):
            names = {section: values["name"] for section, values in base.items() if "name" in values}
            failures[-1] = f"number {number}: {[shown(change) for change in changes]} on {names}\n{failures[-1]}"
        outcomes[outcome] += 1
    return outcomes, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=22_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # what asks for more is told so, and the machine lives on
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        outcomes, failures = walk(given.count, given.seed)
    for failure in failures:
        print(failure)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{given.count} configurations, seed {given.seed}, {spent.ru_utime + spent.ru_stime:.0f} CPU seconds:")
    for outcome in ("refused", "built", "ran", "refused when run", "traceback", "hang", "another fingerprint"):
        print(f"  {outcome:20} {outcomes[outcome]}")
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
