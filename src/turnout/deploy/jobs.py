"""Jobs as they begin and are computed at real clients, and in a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from turnout.core.errors import UserError
from turnout.core.random import IntArray
from turnout.engine.batches import Jobs
from turnout.engine.engine import Engine, Results
from turnout.engine.plan import Plan
from turnout.server.dispatch import Invitation
from turnout.server.jobs import ARRIVED, NOT_KNOWN, Job


def new_jobs(invitation: Invitation, clock: int, declared: IntArray) -> list[Job]:
    """Jobs of which nothing is known but their beginning."""
    if invitation.among is not None:
        raise UserError("deploy: clients of this algorithm exchange models with each other; a deployment has a server")
    samples = declared[invitation.ids]
    steps = invitation.work.bind(invitation.options).num_steps(samples).tolist()
    return [
        Job(
            client=client,
            number=int(invitation.numbers[row]),
            version=invitation.versions[row],
            received=invitation.received[row],
            work=invitation.work,
            options={name: float(values[row]) for name, values in invitation.options.items()},
            batches=int(invitation.batches[row]),
            sent_at=clock,
            starts_at=clock,
            ends_at=NOT_KNOWN,
            outcome=ARRIVED,
            samples=int(samples[row]),
            steps=int(steps[row]),
            seconds=(0.0, 0.0, 0.0),
            bytes=(0, 0),
            done=float(invitation.done[row]),
            hold=invitation.hold,
            again=invitation.again,
            sent=invitation.keep is None,
        )
        for row, client in enumerate(invitation.ids.tolist())
    ]


def client_plan(plan: Plan) -> Plan:
    """How one client computes, with nobody to be vectorised with."""
    return replace(plan, engine="sequential")


class OneByOne(Engine):
    """Carries out every job by itself, as its client did: jobs that are computed together are rounded otherwise."""

    def carry_out(self, jobs: Jobs, versions: Sequence[int], keep_params: bool) -> list[Results]:
        results = []
        for row, version in enumerate(versions):
            alone = replace(jobs.take(np.array([row])), ahead=False)
            results += [each._replace(rows=[row]) for each in super().carry_out(alone, [version], keep_params)]
        return results

    @property
    def server_threads(self) -> int:
        return self.cohort.plan.threads
