"""What the shell offers when somebody presses TAB: commands and their options, configurations, runs, sections, names.

The catalogue of all that is read from the code, which takes as long as `turnout list`; so it is kept in the user's
cache (`~/.cache/turnout`) until the code, or what is installed beside it, changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any

import click
from click.shell_completion import CompletionItem
from typer.core import TyperCommand

from turnout.core.version import VERSION

Catalogue = dict[str, Any]
Found = dict[str, str]  # what is offered, and a line of help
_PACKAGE = Path(__file__).parents[1]


class Completing(TyperCommand):
    """Stands for `turnout` while a shell completes: it takes any words and imports no command."""

    def __init__(self) -> None:
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__("turnout", context_settings=anything, add_help_option=False)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        try:
            found = answers(catalogue(), ctx.args, incomplete)
        except Exception:  # in the middle of a line that is being typed there is no place for what is wrong
            return []
        os.environ["COLUMNS"] = "1000"  # a line of help that is broken would be taken for another answer
        return [CompletionItem(value, help=_short(line)) for value, line in found.items()]


def _short(line: str) -> str:
    """A line of help that fits beside what it explains; square brackets would be taken for markup."""
    return shorten(line, 70, placeholder=" ...").replace("[", "(").replace("]", ")")


# -- the catalogue ----------------------------------------------------------------------------------------------


def catalogue() -> Catalogue:
    """Read the catalogue, from the cache if it has that of this code."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnout"
    path = folder / f"completion-{_state()}.json"
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    made = _catalogue()
    with suppress(OSError):  # a home that cannot be written: it is made every time
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("completion-*.json"):
            old.unlink()
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(made), encoding="utf-8")
        partial.replace(path)
    return made


def _state() -> str:
    """Name the code as it is: another one for any file that was changed, any distribution that was installed."""
    files = [path for kind in ("py", "toml") for path in sorted(_PACKAGE.rglob(f"*.{kind}"))]
    places = [*files, *(Path(place) for place in sys.path if place.endswith("-packages") and os.path.isdir(place))]
    seen = [VERSION, *(f"{path} {path.stat().st_mtime_ns}" for path in places)]
    return hashlib.blake2b("\n".join(seen).encode(), digest_size=8).hexdigest()


def _catalogue() -> Catalogue:
    import typer.main

    from turnout.cli.commands import app
    from turnout.cli.names import LISTED, listed
    from turnout.config.kinds import KINDS, NAMED, PLAIN
    from turnout.config.sections import ABOUT

    sections: dict[str, Any] = {}
    for section, about in ABOUT.items():
        kind = NAMED.get(section)
        chosen = kind is not None and section not in PLAIN
        things = {name: _options(section, made) for name, made in kind.things().items()} if kind and chosen else {}
        plain = _options(section, PLAIN[section]) if section in PLAIN else {}
        default = kind.default if kind is not None and chosen else None
        sections[section] = {"about": about, "things": things, "default": default, "options": plain}
    inner = {
        f"{kind.section.partition('.')[0]}.{name}": _options(kind.section.format(name), made)
        for kind in KINDS.values()
        if "{}" in kind.section
        for name, made in kind.things().items()
    }
    command: Any = typer.main.get_command(app)
    names = {name: listed(name) for name in LISTED}
    return {"commands": _commands(command), "sections": sections, "inner": inner, "names": names}


def _options(section: str, made: Any) -> dict[str, Any]:
    from turnout.config.kinds import options

    found = {}
    for option in options(section, made):
        values = option.takes.removeprefix("one of ").split(", ") if option.takes.startswith("one of ") else []
        values = ["true", "false"] if option.takes == "true or false" else values
        found[option.name] = {"help": option.help, "default": option.default, "values": values}
    return found


def _commands(group: Any) -> dict[str, Any]:
    found = {}
    for name in group.list_commands(None):
        command = group.commands[name]
        about: dict[str, Any] = {"help": command.get_short_help_str(80)}
        if hasattr(command, "commands"):
            about["commands"] = _commands(command)
        else:
            given = [part for part in command.params if isinstance(part, click.Option)]
            about["options"] = {word: [part.help or "", not part.is_flag] for part in given for word in part.opts}
            about["arguments"] = [_metavar(part) for part in command.params if isinstance(part, click.Argument)]
        found[name] = about
    return found


def _metavar(argument: click.Argument) -> str:
    return argument.metavar or (argument.name or "").upper()


# -- the answers ------------------------------------------------------------------------------------------------

# The kinds of things that an option names, besides the names of sections.
_NAMES_OF = {
    "task.loss": "losses", "task.metrics": "metrics", "task.prepare": "preparing", "task.augment": "augmenting",
    "task.batchnorm": "batchnorm", "local.modifiers": "modifiers", "local.optimiser": "local_optimisers",
    "local.schedules": "schedules", "detectors.names": "detectors",
}  # fmt: skip


def answers(known: Catalogue, words: Sequence[str], incomplete: str) -> Found:
    """Say what may stand for the word that is not complete, behind these words."""
    commands, words = known["commands"], list(words)
    while words and words[0] in commands and "commands" in commands[words[0]]:
        commands = commands[words.pop(0)]["commands"]
    if not words or words[0] not in commands:
        return _starting({name: about["help"] for name, about in commands.items()}, incomplete) if not words else {}
    command = commands[words.pop(0)]
    if incomplete.startswith("-"):
        return _starting({word: line for word, (line, _) in command["options"].items()}, incomplete)
    if words and command["options"].get(words[-1], ["", False])[1]:
        return {}  # the value of an option: a file, a number
    positions = _positions(command["options"], words)
    wanted = command["arguments"][min(len(positions), len(command["arguments"]) - 1) :][:1]
    metavar = wanted[0] if wanted else ""
    if "=" in metavar:
        return _overrides(known, positions, incomplete)
    if len(positions) >= len(command["arguments"]) and "..." not in metavar:
        return {}
    return _argument(known, metavar, incomplete)


def _starting(found: Found, incomplete: str) -> Found:
    return {value: line for value, line in found.items() if value.startswith(incomplete)}


def _positions(options: dict[str, Any], words: Sequence[str]) -> list[str]:
    """The words that are neither options nor values of options."""
    found, skipped = [], False
    for word in words:
        if not skipped and not word.startswith("-"):
            found.append(word)
        skipped = options.get(word, ["", False])[1]
    return found


def _argument(known: Catalogue, metavar: str, incomplete: str) -> Found:
    names: dict[str, Found] = known["names"]
    if metavar == "CONFIG":
        return _starting(names["configs"] | dict.fromkeys(_paths(incomplete, ".toml"), "a file"), incomplete)
    if metavar.startswith("RUN"):
        return _starting(dict.fromkeys(_runs(incomplete), "a run"), incomplete)
    if metavar == "[KIND]":
        return _starting(dict.fromkeys(names, ""), incomplete)
    if metavar == "NAME":
        return _starting({name: line for things in names.values() for name, line in things.items()}, incomplete)
    return {}


def _paths(incomplete: str, ending: str) -> Iterable[str]:
    folder, _, _ = incomplete.rpartition("/")
    for path in sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).glob(f"*{ending}")):
        yield str(path)


def _runs(incomplete: str) -> Iterable[str]:
    """Folders of runs: those in `runs`, or where the word points to."""
    folder = Path(incomplete.rpartition("/")[0] or "runs")
    return (str(path.parent) for path in sorted(folder.glob("*/config.toml")))


# -- section.option=value ---------------------------------------------------------------------------------------


def _overrides(known: Catalogue, words: Sequence[str], incomplete: str) -> Found:
    """Complete `section.option=value`. Bash breaks words at the equals sign: there only the value is asked for."""
    before, key = _joined(words), ""
    if before and before[-1].endswith("="):
        key = before.pop()[:-1]
    elif before and "." in before[-1] and "=" not in before[-1] and _option(known, before, before[-1]) is not None:
        key = before.pop()
    if key:
        return _values(known, before, key, incomplete)
    key, equals, value = incomplete.partition("=")
    if equals:
        return {f"{key}={found}": line for found, line in _values(known, before, key, value).items()}
    found = _keys(known, before, incomplete)
    if len(found) == 1:  # a shell would close the word with a space
        only, line = next(iter(found.items()))
        if only.endswith("."):
            return _keys(known, before, only)
        inside = _values(known, before, only.removesuffix("="), "")
        return {only: line} | {f"{only}{value}": about for value, about in inside.items()}
    return found


def _joined(words: Sequence[str]) -> list[str]:
    """The words as they were typed: `run.rounds`, `=` and `5` are one."""
    found = list[str]()
    for place, word in enumerate(words):
        if found and place and (word == "=" or words[place - 1] == "="):
            found[-1] += word
        else:
            found.append(word)
    return found


def _keys(known: Catalogue, words: Sequence[str], incomplete: str) -> Found:
    sections: dict[str, Any] = known["sections"]
    section, dot, option = incomplete.partition(".")
    if not dot:
        return _starting({f"{name}.": about["about"] for name, about in sections.items()}, incomplete)
    if section not in sections:
        return {}
    found = {f"{section}.{name}=": about["help"] for name, about in _of_section(known, words, section).items()}
    if option:  # what stands under the name of a thing
        inner = {name: options for name, options in known["inner"].items() if name.startswith(f"{section}.")}
        found |= {
            f"{name}.{each}=": about["help"] for name, options in inner.items() for each, about in options.items()
        }
    return _starting(found, incomplete)


def _of_section(known: Catalogue, words: Sequence[str], section: str) -> dict[str, Any]:
    """The options of a section: those of the thing that it makes, as far as that is known, and its name."""
    about = known["sections"][section]
    if not about["things"]:
        return dict(about["options"])
    name = {"name": {"help": about["about"], "default": about["default"] or "none", "values": [*about["things"]]}}
    chosen = _settings(words).get(section, {}).get("name", about["default"])
    inside: dict[str, Any] = about["things"].get(chosen, {})
    return name | inside


def _option(known: Catalogue, words: Sequence[str], key: str) -> dict[str, Any] | None:
    section, _, option = key.partition(".")
    if section not in known["sections"]:
        return None
    thing, _, inner = option.partition(".")
    found = known["inner"].get(f"{section}.{thing}", {}).get(inner) if inner else None
    return found or _of_section(known, words, section).get(option)


def _values(known: Catalogue, words: Sequence[str], key: str, incomplete: str) -> Found:
    """What an option may be: names, the value that the configuration has, the default."""
    option = _option(known, words, key)
    if option is None:
        return {}
    section, _, name = key.partition(".")
    done, comma, rest = incomplete.rpartition(",")
    found = dict[str, str]()
    if key in _NAMES_OF:
        found = dict(known["names"][_NAMES_OF[key]])
    elif name == "name" and section in known["sections"]:
        lines: Found = next((things for things in known["names"].values() if things.keys() == {*option["values"]}), {})
        found = {value: lines.get(value, "") for value in option["values"]}
    else:
        found = dict.fromkeys(option["values"], "")
        has = _settings(words).get(section, {}).get(name)
        for value, line in ((has, "as it is"), (option["default"], "unless given")):
            if isinstance(value, str | int | float) and value not in ("none", "required", '""'):
                found.setdefault(_written(value), line)
    return _starting({f"{done}{comma}{value}": line for value, line in found.items()}, f"{done}{comma}{rest}")


def _written(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """What the configuration that is named says, with what stands behind it; nothing where it cannot be read."""
    settings: dict[str, Any] = {}
    if words:
        own, built_in = Path(words[0]), _PACKAGE / "config/builtin" / f"{words[0]}.toml"
        with suppress(OSError, ValueError):
            text = (own if own.suffix == ".toml" else built_in).read_text(encoding="utf-8")
            settings = {name: part for name, part in tomllib.loads(text).items() if isinstance(part, dict)}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        section, dot, option = key.partition(".")
        if equals and dot:
            settings.setdefault(section, {})[option] = value
    return settings
