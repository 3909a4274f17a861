"""`turnout plan`: what waiting policies would do, before anything is trained."""

from __future__ import annotations

from turnout.cli._command import Json, Overrides, Source, print_json, sentences
from turnout.cli._display import show_outlook
from turnout.config import config
from turnout.core.errors import UserError
from turnout.local.sgd import LocalSGD
from turnout.plan import advice


def plan(source: Source, overrides: Overrides = None, as_json: Json = False) -> None:
    """Compare waiting policies over a configuration's clients, before anything is trained.

    Example: turnout plan digits devices.sigma=1.2
    """
    with sentences():
        experiment, _, _ = config.build(config.read(source, overrides or []))
        local = getattr(experiment.algorithm, "local", None)
        if not isinstance(local, LocalSGD):
            raise UserError(f"algorithm.name: {type(experiment.algorithm).__name__} has no local work to plan for")
        size = experiment.task.size * experiment.plan.dtype.itemsize
        found = advice.outlook(experiment.population, local, size, experiment.seed)
        if as_json:
            print_json(found.as_dict())
        else:
            show_outlook(found)
