"""A first configuration for somebody's data: what was answered and guessed, in TOML with comments that say which."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnout import data as datasets
from turnout.config.look import MOST_CLASSES, Column, Look
from turnout.config.options import Section, options_of
from turnout.config.settings import SECTIONS, Settings
from turnout.config.written import as_toml
from turnout.core.errors import UserError, unknown
from turnout.task.metrics import METRICS

WIDE = 100  # characters of a line with its remark
FEW_CLIENTS = 20  # so many are all asked in every round
DEALT = 10  # clients, where the data do not say whose they are
BETTER = "auc", "balanced_accuracy", "f1_macro", "accuracy"  # measures of classes, the more telling first
OF_NUMBERS = "mae", "rmse", "r2"


@dataclass(frozen=True)
class Answers:
    """What is asked; None is guessed."""

    target: str | None = None  # column, or the function that gives the data
    clients: str | None = None  # column, or how many the rows are dealt to
    measure: str | None = None


@dataclass(frozen=True)
class Draft:
    """Settings, and what is said of them: by section, and by `section.option`."""

    settings: Settings
    remarks: Mapping[str, str]

    def text(self) -> str:
        """Write it as a file, remarks behind the options and above the sections."""
        blocks = [f"# {_one_line(self.remarks[''])}\n"]
        for section, options in self.settings.items():
            heading, *lines = as_toml({section: options}).strip().split("\n")
            said = [_one_line(self.remarks.get(f"{section}.{name}", "")) for name in options]
            above = [f"# {_one_line(self.remarks[section])}"] if section in self.remarks else []
            blocks.append("\n".join([*above, heading, *_beside(lines, said)]) + "\n")
        text = "\n".join(blocks)
        assert tomllib.loads(text) == self.settings  # no remark can spoil it
        return text


def _beside(lines: list[str], said: list[str]) -> Iterator[str]:
    """Put each remark behind its line, or above it where both are long."""
    behind = [bool(remark) and len(line) + len(remark) < WIDE for line, remark in zip(lines, said, strict=True)]
    width = max((len(line) for line, fits in zip(lines, behind, strict=True) if fits), default=0)
    for line, remark, fits in zip(lines, said, behind, strict=True):
        if fits:
            yield f"{line.ljust(width)}  # {remark}"
            continue
        if remark:
            yield f"# {remark}"
        yield line


def _one_line(text: str) -> str:
    """A remark as a comment can hold it, whatever names of columns are in it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def draft(found: Look, answers: Answers) -> Draft:
    """Make a configuration for what was found, with these answers."""
    remarks: dict[str, str] = {
        "": f"{found.path}: {_what(found)}. Written by `turnout init`; try: turnout run THIS FILE"
    }
    settings: Settings = {"run": {"name": _run_name(found.path), "rounds": 50, "seed": 0}}
    remarks["run"] = "How long, how often, where. `turnout show run` lists every option of a section."
    settings["data"] = _data(found, answers, remarks)
    settings["partition"], clients = _dealt(found, answers, settings["data"], remarks)
    settings["clients"] = {"count": clients, "test_fraction": 0.2}
    remarks["clients.test_fraction"] = "of each client's samples, to measure how well it is served"
    settings["model"] = _model(found, remarks)
    settings["local"] = {"lr": 0.05 if found.dataset == "images" else 0.1, "epochs": 1, "batch_size": 16}
    remarks["local.lr"] = "turnout tune finds a better one"
    settings["algorithm"] = {"name": "fedavg"}
    remarks["algorithm.name"] = "turnout list algorithms; which one? docs/which-algorithm.md"
    settings["sampler"] = {"name": "full"} if clients <= FEW_CLIENTS else {"name": "uniform", "clients_per_round": 10}
    remarks["sampler.name"] = "all are asked in every round" if clients <= FEW_CLIENTS else "who is asked is drawn"
    _measure(found, answers, settings, remarks)
    return Draft({section: settings[section] for section in SECTIONS if section in settings}, remarks)


def measures(target: Column | None) -> list[str]:
    """The measures that fit, the one that is taken unless another is asked for first; nothing: the loss alone."""
    fitting = BETTER if target is None or target.is_class else OF_NUMBERS
    return [name for name in fitting if name in METRICS]


def _classes(found: Look, answers: Answers) -> int:
    target = target_of(found, answers)
    return len(found.classes) if target is None else target.distinct


def target_of(found: Look, answers: Answers) -> Column | None:
    """The column that is predicted, where there are columns."""
    if not found.columns:
        return None
    target = found.target(answers.clients) if answers.target is None else found.column("--target", answers.target)
    if not target.numeric and target.distinct > MOST_CLASSES:
        raise UserError(
            f"--target: {target.name} has {target.distinct} different words in {target.rows} rows; classes are at most "
            f"{MOST_CLASSES}, so choose another column"
        )
    if target.missing == target.rows or target.distinct < 2:
        raise UserError(f"--target: {target.name} has {target.distinct} different values; there is nothing to learn")
    return target


def _what(found: Look) -> str:
    if found.columns:
        rows = f"{found.columns[0].rows} rows, {len(found.columns)} columns"
        return f"{found.files} tables, the first of {rows}" if found.files > 1 else rows
    if found.dataset == "images":
        return f"{found.files} images of {len(found.classes)} classes"
    return "Python code"


def _run_name(path: str) -> str:
    """The name of the file or folder, as a run can be called."""
    stem = Path(path).name.split(".")[0] or Path(path).resolve().name
    return re.sub(r"[^\w-]+", "-", stem).strip("-")[:50] or "run"


# -- the data ---------------------------------------------------------------------------------------------------


def _data(found: Look, answers: Answers, remarks: dict[str, str]) -> Section:
    if found.dataset == "function":
        return _function(found, answers, remarks)
    options: Section = {"name": found.dataset, "path": found.path}
    if found.dataset == "images":
        if answers.target is not None:
            raise UserError(
                f"--target: {answers.target}, but the folders of {found.path} say the classes; leave it out"
            )
        options |= {"layout": found.layout, "size": 28 if found.grey else 32}
        options |= {"colour": "grey"} if found.grey else {}
        remarks["data.layout"] = "what the folders stand for"
        remarks["data.size"] = "height and width that all are resized to"
        return options
    for option, usual, what in (("separator", ",", "stands between cells"), ("decimal", ".", "before the decimals")):
        if getattr(found, option) != usual:
            options[option] = getattr(found, option)
            remarks[f"data.{option}"] = f"seen: what {what}" if option == "separator" else f"seen: what stands {what}"
    target, client = target_of(found, answers), _client(found, answers)
    assert target is not None
    options["target"] = target.name
    remarks["data.target"] = "as you said" if answers.target is not None else "a guess: what is predicted"
    if client is not None:
        options["client"] = client.name
        remarks["data.client"] = "as you said" if answers.clients is not None else "a guess: whose row it is"
    options["task"] = "classification" if target.is_class else "regression"
    values = "numbers" if target.numeric else "words"
    remarks["data.task"] = f"{target.name} has {target.distinct} different {values}"
    left = [column for column in found.columns if column not in (target, client)]
    return options | _left_out(found, left, target, remarks)


def _left_out(found: Look, columns: list[Column], target: Column, remarks: dict[str, str]) -> Section:
    """Say what becomes of columns that are no features, and of missing values."""
    takes = options_of(datasets.loader(found.dataset))
    whys = {column.name: "names the rows" for column in columns if column.is_id}
    chosen: Section = {}
    if "missing" in takes:
        whys |= {column.name: "lacks most values" for column in columns if column.missing > column.rows / 2}
    else:
        whys |= {column.name: "lacks values" for column in columns if column.missing and column.name not in whys}
    holes = [column for column in columns if column.missing and column.name not in whys]
    if holes or (target.missing and "missing" in takes):
        chosen["missing"] = "median"
        remarks["data.missing"] = (
            f"{sum(column.missing for column in holes)} values in {len(holes)} columns are missing"
        )
    if "drop" not in takes:  # which are features is said instead
        whys |= {column.name: "holds words" for column in columns if not column.numeric and column.name not in whys}
    if not whys:
        return chosen
    kept = [column.name for column in columns if column.name not in whys]
    if not kept:
        raise UserError(f"init: no column of {found.path} is left to learn from: {_because(whys)}")
    option = "drop" if "drop" in takes else "inputs"
    remarks[f"data.{option}"] = f"left out: {_because(whys)}"
    return chosen | {option: [*whys] if option == "drop" else kept}


def _because(whys: Mapping[str, str]) -> str:
    """Columns and why, those with one reason together: `a, b (lacks values)`."""
    together: dict[str, list[str]] = {}
    for name, why in whys.items():
        together.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in together.items())


def _function(found: Look, answers: Answers, remarks: dict[str, str]) -> Section:
    chosen = found.functions[0]
    if answers.target is not None:
        names = {name.partition(":")[2]: name for name in found.functions}
        if answers.target not in names:
            raise unknown("--target: function that gives the data", answers.target, names)
        chosen = names[answers.target]
    others = ", ".join(name.partition(":")[2] for name in found.functions if name != chosen)
    said = "as you said" if answers.target is not None else "a guess: the function that gives the data"
    remarks["data.function"] = said + (f"; others: {others}" if others else "")
    return {"name": "function", "function": chosen}


# -- who has them -----------------------------------------------------------------------------------------------


def _number(answers: Answers) -> int | None:
    """How many clients were asked for, where the answer is a number."""
    return int(answers.clients) if answers.clients is not None and answers.clients.isdecimal() else None


def _client(found: Look, answers: Answers) -> Column | None:
    """The column that says whose a row is."""
    if found.per_file or _number(answers) is not None:
        if answers.clients is not None and found.per_file:
            raise UserError(f"--clients: {answers.clients}, but a file of {found.path} is a client; leave it out")
        return None
    if answers.clients is None:
        return found.client if found.client != target_of(found, answers) else None
    client = found.column("--clients", answers.clients)
    if client == target_of(found, answers):
        raise UserError(f"--clients: {client.name} is what is predicted; choose another column, or a number of clients")
    if client.missing:
        raise UserError(f"--clients: {client.name} is missing in {client.missing} rows; whose are they?")
    return client


def _dealt(found: Look, answers: Answers, data: Section, remarks: dict[str, str]) -> tuple[Section, int]:
    """Say who has which samples, and count the clients."""
    if answers.clients is not None and _number(answers) is None and not found.columns:
        raise UserError(
            f"--clients: {answers.clients} must be a number, to deal the samples of {found.path} to so many"
        )
    named = 0
    if "client" in data:
        named = found.column("--clients", data["client"]).distinct
    elif found.per_file:
        named = len(found.clients) or found.files
    elif found.clients and _number(answers) is None:
        named = len(found.clients)
    elif found.dataset == "function":
        groups = datasets.load("function", function=data["function"]).groups
        named = 0 if groups is None or _number(answers) is not None else int(groups.max()) + 1
    if named:
        remarks["partition.name"] = "each has its own samples"
        remarks["clients.count"] = "all that there are"
        return {"name": "natural"}, named
    remarks["partition.name"] = "nothing says whose samples they are: shuffled and dealt evenly"
    asked = _number(answers)
    remarks["clients.count"] = "a guess" if asked is None else "as you said"
    return {"name": "iid"}, DEALT if asked is None else asked


# -- the model --------------------------------------------------------------------------------------------------


def _model(found: Look, remarks: dict[str, str]) -> Section:
    remarks["model"] = "What is trained: turnout list models, or your own as module:name."
    if found.dataset == "images":
        return {"name": "cnn_mnist" if found.grey else "cnn_cifar"}
    if found.models:
        return {"name": found.models[0]}
    return {"name": "mlp", "hidden": [16]}


def _measure(found: Look, answers: Answers, settings: Settings, remarks: dict[str, str]) -> None:
    """Say what is measured beside the loss."""
    if found.dataset == "function" and answers.measure is None:
        return  # its targets were not looked at
    fitting = measures(target_of(found, answers))
    if answers.measure is not None and answers.measure not in METRICS:
        raise unknown("--measure", answers.measure, METRICS)
    chosen = answers.measure or (fitting[0] if fitting else None)
    if chosen is None:
        return
    settings["task"] = {"metrics": [chosen]}
    if chosen == "auc" and _classes(found, answers) > 2:
        settings["task"]["auc"] = {"lacking": "left_out"}
        remarks["task.auc"] = "a client that lacks a class has the mean over the others"
    remarks["task.metrics"] = "measured beside the loss; turnout list metrics"
    settings["run"]["measure"] = f"test_{chosen}"
    remarks["run.measure"] = "what run.target would be a value of, and what sweep and tune compare"
