"""Studies: one paper's experiment a file, at a size that runs here, with its published conclusions as claims.

A distribution registers its studies in the group `turnout.studies`: a name, and the `Study` it stands for.
"""

from __future__ import annotations

from turnout.core.errors import UserError, unknown
from turnout.core.imports import registered
from turnout_studies.study import Study

__all__ = ["Study", "find", "names"]


def names() -> list[str]:
    """Every study that is installed."""
    return sorted(registered("turnout.studies"))


def find(name: str) -> Study:
    """The study that is registered under this name."""
    known = registered("turnout.studies")
    if name not in known:
        raise unknown("study", name, sorted(known))
    study = known[name].load()
    if not isinstance(study, Study):
        raise UserError(f"study: {name} is registered as {known[name].value}, which is not a turnout_studies.Study")
    return study
