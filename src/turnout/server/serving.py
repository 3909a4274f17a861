"""The models that clients serve when a run is over: what is kept of them for new samples."""

from __future__ import annotations

from torch import Tensor

from turnout.engine.evaluate import Evaluator
from turnout.local.job import one_model
from turnout.server.measurement import Measurement
from turnout.server.server import Server


def serves_own(server: Server) -> bool:
    """Say whether clients that took part serve models, or rules, of their own."""
    return Measurement.personal(server, unseen=False) is not None


def served_models(server: Server) -> Tensor | None:
    """Give `[N, P]` the model that each client serves; None where that is more than the outputs of one."""
    population, output = server.whole_population, server.output
    ids, found = population.ids, output.repeat(population.size, 1)
    unseen, adapts = ~population.joined(ids, server.now), population.has_samples(ids, server.now)
    with server.cohort.all_threads():
        for new in (False, True):
            for able in (False, True):
                rows, personal = (unseen == new) & (adapts == able), Measurement.personal(server, new, able)
                if personal is not None and not one_model(personal.work):
                    return None
                if personal is not None and rows.any():
                    each = Evaluator(server.cohort, ids[rows], population.train.rows(ids[rows]))
                    found[rows] = each.models(personal, output, server._store)
    return found
