"""Studies: one paper's experiment a file, at a size that runs here, with its published conclusions as claims."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from turnout.errors import unknown
from turnout.studies.study import Study

__all__ = ["Study", "find", "names"]

_HELPERS = {
    "adversarial_runs", "cafed_curves", "hybridfl_tables", "images", "losses", "personal_runs", "safa_tables",
    "sampling_curves", "stream_runs", "study",
}  # fmt: skip


def names() -> list[str]:
    """Every study: its name is its file here."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _HELPERS)


def find(name: str) -> Study:
    """The study that the file of this name holds."""
    if name not in names():
        raise unknown("study", name, names())
    study: Study = import_module(f"{__name__}.{name}").STUDY
    return study
