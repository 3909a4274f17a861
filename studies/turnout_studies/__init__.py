"""Studies: one paper's experiment a file, at a size that runs here, with its published conclusions as claims.

A distribution registers its studies in the group `turnout.studies`: a name, and the `Study` it stands for.
"""

from __future__ import annotations

from turnout.core.errors import UserError, unknown
from turnout.core.imports import distributions, load_registered, registered
from turnout_studies.study import Study

__all__ = ["Study", "find", "names"]

_GROUP = "turnout.studies"


def names() -> list[str]:
    """Every study that is installed."""
    return sorted(registered(_GROUP))


def find(name: str) -> Study:
    """The study that is registered under this name."""
    if name not in names():
        raise unknown("study", name, names())
    study = load_registered("study", _GROUP, name)
    if not isinstance(study, Study):
        raise UserError(f"study: {name} of {distributions(_GROUP, name)} is not a turnout_studies.Study")
    return study
