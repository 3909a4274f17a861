"""BibTeX of the methods that runs have used: `references.bib` has each entry with the names of what it is for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from turnout.config.kinds import KINDS
from turnout.core.errors import UserError, meant
from turnout.core.version import VERSION
from turnout.report.read import Recorded

_LISTS = ("modifiers", "schedules")  # options of `local` that name several things
_ITSELF = f"""@misc{{turnout,
  author = {{{{The Turnout authors}}}},
  title = {{Turnout: federated learning with whoever shows up}},
  note = {{Version {VERSION}}},
}}"""
_YEAR = re.compile(r"\b(19|20)\d\d\b")


@dataclass(frozen=True)
class Entry:
    """An entry of the file, without the field that says who uses it."""

    key: str
    text: str
    used: tuple[str, ...]  # as `algorithm.fedprox`


@cache
def entries() -> tuple[Entry, ...]:
    text = resources.files("turnout.report").joinpath("references.bib").read_text(encoding="utf-8")
    found = []
    for one in re.findall(r"^@\w+\{.*?^\}", text, re.S | re.M):
        used = re.search(r"^  turnout = \{(.*)\},\n", one, re.M)
        assert used is not None, one
        key = one[one.index("{") + 1 : one.index(",")]
        found.append(Entry(key, one.replace(used[0], ""), tuple(re.split(r",\s*", used[1]))))
    return tuple(found)


def used_by(config: dict[str, dict[str, Any]]) -> list[str]:
    """What a configuration names, each with its section: `algorithm.fedprox`, `local.proximal`."""
    found = [f"{section}.{options['name']}" for section, options in config.items() if options.get("name")]
    local = config.get("local", {})
    names = [name for option in _LISTS for name in _several(local.get(option, ()))]
    optimiser = local.get("optimiser")
    return [*found, *(f"local.{name}" for name in [*names, optimiser] if isinstance(name, str))]


def _several(value: Any) -> Iterable[Any]:
    return value.split(",") if isinstance(value, str) else value


def of_names(names: Sequence[str]) -> list[str]:
    """The same for names as people write them: `fedprox`, `sampler.md`."""
    known = {f"{kind.section.partition('.')[0]}.{thing}": thing for kind in KINDS.values() for thing in kind.things()}
    found = []
    for name in names:
        theirs = [full for full, thing in known.items() if name in (full, thing)]
        if not theirs:
            raise UserError(f"cite: {name!r} is no folder of a run and no name; {meant(name, set(known.values()))}")
        found += theirs
    return found


def of_runs(runs: Sequence[Recorded]) -> list[str]:
    """All that the configurations of runs name."""
    for run in runs:
        if not run.config:
            raise UserError(
                f"cite: {run.folder} was started from Python, and what it used has no names there; give them instead, "
                "such as: turnout cite fedavg uniform"
            )
    return list(dict.fromkeys(name for run in runs for name in used_by(run.config)))


def bibtex(used: Sequence[str]) -> str:
    """The entries of what is used, each after a line that says for what, and Turnout itself."""
    parts = [f"% Turnout\n{_ITSELF}"]
    for entry in entries():
        for_these = [name for name in used if name in entry.used]
        if for_these:
            parts.append(f"% {', '.join(map(_said, for_these))}\n{entry.text}")
    cited = {name for entry in entries() for name in entry.used}
    parts += [f"% {_said(name)}: {why}" for name in used if name not in cited and (why := _unlisted(name))]
    return "\n\n".join(parts) + "\n"


def _said(name: str) -> str:
    return " ".join(name.split(".", 1))


def _unlisted(name: str) -> str:
    """What the file of a thing says it is from, where it says so and there is no entry; a user's own is named."""
    section, _, thing = name.partition(".")
    if ":" in thing:
        return "your own; cite where it is from"
    for kind in KINDS.values():
        if kind.group and kind.section == section and thing in (things := kind.things()):
            paragraphs = (inspect.getdoc(inspect.getmodule(things[thing])) or "").split("\n\n")
            told = next((part for part in paragraphs[1:] if _YEAR.search(part) or "thesis" in part), "")
            return f"no entry; its file says: {' '.join(told.split())}" if told else ""
    return ""
