"""Show that no bit of any result changes: run the configurations of `same_bits_list.txt` before and after a change.

    git worktree add /tmp/before v0.1
    PYTHONPATH=/tmp/before/src python benchmarks/same_bits.py record BEFORE
    PYTHONPATH=src python benchmarks/same_bits.py record AFTER --like BEFORE
    python benchmarks/same_bits.py compare BEFORE AFTER
    PYTHONPATH=src python benchmarks/same_bits.py resume BEFORE

`record` runs every configuration with the Turnout that Python imports. It keeps digests of all that a run leaves behind
(`digests.json`), the configurations (`configurations.json`, which `--like` takes from another recording, with its
threads, precision and device) and every run's folder as it was half way, as a killed process would have left it.
`resume` goes on with copies of these folders and compares the end with that of the run that was never stopped.
Digests know nothing of places and wall-clock times. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import same_bits_list

Settings = dict[str, dict[str, Any]]
Digests = dict[str, str]  # of each part of what a run leaves, such as `jobs.weight`; or one `refused`, a sentence
CONFIGURATIONS, DIGESTS, HALF = "configurations.json", "digests.json", "half"
_ENGINE = {"threads": 1, "precision": "float32", "device": "cpu"}
_UNCOUNTED = ("resumed", "restarted", "path")  # what a log says of a run that was stopped, and of how it is computed


# -- what is used of Turnout: here, and nowhere else ---------------------------------------------------------------


def _part(name: str, *modules: str) -> Any:
    """Import a name from the first module that has it."""
    for module in modules:
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            if not module.startswith(error.name or "?"):  # it is there, and something it needs is not
                raise
            continue
        if callable(found):
            return found
    raise ImportError(f"no {name} in {', '.join(modules)}")


def _configuration(name: str) -> Callable[..., Any]:
    """Import a function of configurations: `read`, `build`, `as_toml`."""
    found: Callable[..., Any] = _part(name, "turnout.config", f"turnout.config.{name}", "turnout.config.config")
    return found


def _modern(settings: Settings) -> Settings:
    """Settings as the Turnout imported wants them: version 0.1 wrote some in another way."""
    try:
        found: Settings = _configuration("modernise")(settings)
    except ImportError:
        return settings
    return found


def _recorded(folder: Path) -> Settings:
    """The settings that a run has left in its folder."""
    try:
        found: Settings = _configuration("read_run")(folder)
    except ImportError:
        found = _configuration("read")(str(folder / "config.toml"))
    return found


def names(kind: str) -> list[str]:
    """Return all names of a kind, `algorithm` or `sampler`."""
    found: list[str] = _part("names", "turnout.registry", "turnout.config.registry", "turnout.config")(kind)
    return found


def run(settings: Settings, folder: Path, *, resume: bool = False, half: Path | None = None) -> Any:
    """Carry out a configuration in a folder; keep a copy of the folder half way."""
    experiment, _, complete = _configuration("build")(_modern(settings))
    middle, observer = (settings["run"]["rounds"] + 1) // 2, _part("Observer", "turnout")

    class Copy(observer):  # type: ignore[misc, valid-type]
        """Copies the run while it is under way: what was done since the last checkpoint is there without one."""

        def on_round(self, server: Any, record: Any) -> None:
            if half is not None and record.number == middle:
                shutil.copytree(folder, half)

    toml = _configuration("as_toml")(complete)
    options = {"checkpoint_every": 1, "configuration": toml, "resume": resume, "observers": [Copy()]}
    return _part("execute", "turnout", "turnout.run")(experiment, folder, **options)


# -- digests ---------------------------------------------------------------------------------------------------------


def digests(result: Any, folder: Path) -> Digests:
    """Return the digest of every part of what a run has left."""
    from safetensors.numpy import load_file

    tables: dict[str, Mapping[str, Any]] = {
        "model": load_file(folder / "model.safetensors"),
        "rounds": result.rounds(),
        "jobs": result.jobs(),
        "clients": result.clients(),
        "result": json.loads((folder / "result.json").read_text()),
    }
    if getattr(result, "watch", None) is not None:
        tables["detectors"] = result.watch.records.read()
    if (folder / "sensitivity" / "table.jsonl").exists():
        tables["unlearning"] = {"table": (folder / "sensitivity" / "table.jsonl").read_text()}
    tables["log"] = {"events": _events((folder / "log.txt").read_text().splitlines())}
    return {f"{table}.{name}": _digest(value) for table, parts in tables.items() for name, value in parts.items()}


def _digest(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype != object:
        content = f"{value.dtype.str} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
    else:
        content = json.dumps(value.tolist() if isinstance(value, np.ndarray) else value, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def _events(lines: Iterable[str]) -> list[str]:
    """The lines of a log, once each: a run that was stopped says some of them again."""
    return [line for line in dict.fromkeys(lines) if line.partition("s: ")[2].partition(" ")[0] not in _UNCOUNTED]


# -- one configuration, in a process that does many ---------------------------------------------------------------


def _begin(folder: str) -> None:
    """Prepare a process: configurations read files of the folder, and nobody waits for the disk."""
    os.chdir(folder)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.fsync = lambda fd: None  # noqa: ARG005
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _end_with_parent() -> None:
    """End this process when the one that began it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _attempt(work: Callable[[Path], Digests]) -> Digests:
    """Do some work in a new folder; whatever is raised is a sentence."""
    with tempfile.TemporaryDirectory(prefix="same_bits_") as place:
        try:
            return work(Path(place) / "run")
        except Exception as error:
            sentence = f"{type(error).__name__}: {error}"
            return {"refused": sentence.replace(place, "").partition("\n")[0]}


def _record(name: str, settings: Settings) -> Digests:
    def work(folder: Path) -> Digests:
        return digests(run(settings, folder, half=_half(name)), folder)

    return _attempt(work)


def _resume(name: str) -> Digests:
    def work(folder: Path) -> Digests:
        shutil.copytree(_half(name), folder)
        return digests(run(_recorded(folder), folder, resume=True), folder)

    return _attempt(work)


def _half(name: str) -> Path:
    """Where the run lies half way, from the folder of the recording."""
    return Path(HALF) / hashlib.sha256(name.encode()).hexdigest()[:16]


# -- commands ----------------------------------------------------------------------------------------------------------


def record(arguments: argparse.Namespace) -> int:
    """Run every configuration and write its digests."""
    folder: Path = arguments.folder
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder}: it is not empty; choose another folder")
    engine = {"threads": arguments.threads, "precision": arguments.dtype, "device": arguments.device}
    if arguments.like is not None and engine != _ENGINE:
        sys.exit("--like: it has its own threads, dtype and device; leave them out")
    if arguments.like is None:
        listed = same_bits_list.configurations()
        chosen = {name: {**s, "engine": engine | s.get("engine", {})} for name, s in listed.items()}
        _say_missing(chosen)
    else:
        chosen = json.loads((arguments.like / CONFIGURATIONS).read_text())
    chosen = {name: settings for name, settings in chosen.items() if re.search(arguments.only, name)}
    (folder / HALF).mkdir(parents=True)
    same_bits_list.write_files(folder)
    (folder / CONFIGURATIONS).write_text(json.dumps(chosen, indent=1))
    began = time.perf_counter()
    found = dict(zip(chosen, _on_workers(arguments, folder, _record, chosen, chosen.values()), strict=True))
    (folder / DIGESTS).write_text(json.dumps(found, indent=1))
    refused = _refusals(found)
    whole = [name for name in found if name not in refused and not (folder / _half(name)).exists()]
    for name in whole:
        print(f"{name}\n    it ended before it was half way")
    seconds = time.perf_counter() - began
    print(f"{len(found)} configurations in {seconds:.0f} s: {len(refused)} refused, {len(whole)} without a half way")
    return 0


def resume(arguments: argparse.Namespace) -> int:
    """Go on with every run that was kept half way, and compare its end."""
    before = {name: parts for name, parts in _read(arguments.before).items() if re.search(arguments.only, name)}
    kept = [name for name in before if (arguments.before / _half(name)).exists()]
    found = dict(zip(kept, _on_workers(arguments, arguments.before, _resume, kept), strict=True))
    refused = _refusals({name: parts for name, parts in found.items() if "refused" not in before[name]})
    other = _differences({name: before[name] for name in kept if name not in refused}, found)
    print(
        f"{len(kept)} runs resumed: {len(kept) - len(refused) - other} the same, {other} differ, {len(refused)} refused"
    )
    return 1 if other or refused else 0


def compare(arguments: argparse.Namespace) -> int:
    """Print every difference between two recordings."""
    before, after = _read(arguments.before), _read(arguments.after)
    other, refused = _differences(before, after), sum("refused" in parts for parts in before.values())
    same = len(before) - other
    print(f"{len(before)} configurations: {same} the same, {other} differ; {refused} were refused before")
    return 1 if other else 0


def _on_workers(
    arguments: argparse.Namespace, folder: Path, work: Callable[..., Digests], *columns: Iterable[Any]
) -> Iterator[Digests]:
    """Do the work on every row, in processes that have one thread each beside those that a run asks for."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, processes, _begin, (str(folder.resolve()),)) as pool:
        yield from pool.map(work, *columns)


def _read(folder: Path) -> dict[str, Digests]:
    found: dict[str, Digests] = json.loads((folder / DIGESTS).read_text())
    return found


def _say_missing(chosen: dict[str, Settings]) -> None:
    """Print the algorithms and samplers that no configuration names."""
    for kind in ("algorithm", "sampler"):
        named = {settings.get(kind, {}).get("name") for settings in chosen.values()}
        for name in set(names(kind)) - named:
            print(f"{kind} {name}: no configuration names it")


def _refusals(found: dict[str, Digests]) -> set[str]:
    """Print what was refused, and why."""
    refused = {name: parts["refused"] for name, parts in found.items() if "refused" in parts}
    for name, sentence in refused.items():
        print(f"{name}\n    {sentence}")
    return set(refused)


def _differences(before: dict[str, Digests], after: dict[str, Digests]) -> int:
    """Print which parts of which configurations differ; return how many configurations do. A part that only the later
    one has is named, and is no difference."""
    differ, parts, new = 0, Counter[str](), Counter[str]()
    for name, old in before.items():
        now = after.get(name, {"refused": "it was not run"})
        new.update(now.keys() - old.keys() - {"refused"})
        other = sorted(part for part in old if now.get(part) != old[part])
        if other:
            differ += 1
            parts.update(other)
            print(f"{name}\n    {now.get('refused') or ', '.join(other)}")
    for title, counted in (("different", parts), ("only after", new)):
        if counted:
            print(f"{title}: {', '.join(f'{part} ({count})' for part, count in counted.most_common())}")
    return differ


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run every configuration and keep its digests")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--like", type=Path, help="the recording whose configurations to run")
    recording.add_argument(
        "--threads", type=int, default=_ENGINE["threads"], help="of a run; give --workers 1 beside 2 of them"
    )
    recording.add_argument("--dtype", default=_ENGINE["precision"], choices=["float32", "float64"])
    recording.add_argument("--device", default=_ENGINE["device"])
    comparing = commands.add_parser("compare", help="print every difference between two recordings")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    resuming = commands.add_parser("resume", help="go on with the runs that a recording kept half way")
    resuming.add_argument("before", type=Path)
    for command in (recording, resuming):
        command.add_argument("--only", default="", metavar="REGEX", help="of the names of configurations")
        command.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    return {"record": record, "compare": compare, "resume": resume}[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
