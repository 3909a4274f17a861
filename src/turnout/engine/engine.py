"""Where local work is carried out: on this machine, or shared by many; from models received to what is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from turnout.core.errors import UserError
from turnout.engine.batches import Jobs, Trained
from turnout.engine.blocks import NOTHING, Block
from turnout.engine.plan import Plan
from turnout.engine.train import Cohort
from turnout.local import transforms


def train_jobs(
    cohort: Cohort, jobs: Jobs, versions: Sequence[int], keep_params: bool = False, may_be_late: bool = False
) -> Trained:
    """Train jobs, in a simulation as at a real client: at the learning rate of the versions received, then with
    transformed updates. The jobs' state is all that their clients keep, transforms' too."""
    work, options, task = jobs.work, jobs.options, cohort.task
    if work.scheduled:
        options = options | {"lr": options.get("lr", work.lr) * work.lr_factor(versions)}
    if task.tail is not None:
        options = options | {"version": np.asarray(versions, np.float64)}
    own = {name: jobs.state[name] for name in work.trained_shapes(task)} if jobs.state else {}
    alike = options is jobs.options and len(own) == len(jobs.state)
    chain = work.transforms
    may_be_late &= not chain
    trained = cohort.train(jobs if alike else replace(jobs, options=options, state=own), keep_params, may_be_late)
    if not chain or "delta" not in trained.payload:
        return trained
    if unnamed := sorted(trained.payload.keys() - work.sends(task).keys()):
        name = type(work).__name__
        raise UserError(f"local.modifiers: {name} sends {', '.join(unnamed)}, which its payload_shapes do not name")
    coins = torch.as_tensor(jobs.keys, device=cohort.plan.device)
    numbers, residual = work.update_numbers(task), jobs.state.get("residual")
    delta, after = trained.payload["delta"], []
    if task.tail is not None:  # statistics are sent as they are
        delta, *after = torch.tensor_split(delta, [task.learnt], dim=1)
        numbers -= task.size - task.learnt
    delta, residual = transforms.apply(chain, delta, coins, residual, numbers)
    state = trained.state if residual is None else trained.state | {"residual": residual}
    return Trained(trained.payload | {"delta": torch.cat([delta, *after], 1) if after else delta}, state, trained.local)


class Results(NamedTuple):
    """What some of the jobs have brought, row by row."""

    rows: Sequence[int]  # which of the jobs
    payload: Block
    state: Block
    local: Block


class Engine:
    """Carry out jobs on this machine. All jobs of a call are one block, or each its own, where threads train some
    ahead."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort = cohort

    def train(self, jobs: Jobs, versions: Sequence[int], keep_params: bool) -> list[Results]:
        """Train these jobs, which received models of these versions, and transform their updates. This is where a
        simulation trains: its server calls it when an update is first looked at."""
        everybody, results = range(len(jobs.keys)), []
        step = self.cohort.block(jobs) if jobs.ahead else len(everybody)
        for start in range(0, len(everybody), step):
            rows: Sequence[int] = everybody[start : start + step]
            some = jobs if len(rows) == len(everybody) else jobs.take(np.array(rows))
            received = [versions[row] for row in rows]
            trained = train_jobs(self.cohort, some, received, keep_params, may_be_late=True)
            rows = rows if trained.order is None else [rows[row] for row in trained.order]
            if trained.apart:
                own = (Block({"delta": update[None]}, trained.late) for update in trained.apart)
                results += [Results([row], block, NOTHING, NOTHING) for row, block in zip(rows, own, strict=True)]
                continue
            payload = Block(trained.payload, trained.late)
            results.append(Results(rows, payload, Block(trained.state), Block(trained.local)))
        return results

    @property
    def server_threads(self) -> int:
        """Count the threads of the server's own kernels: one, where all others are busy with clients and would only
        wait for each other."""
        return 1 if self.cohort.works_ahead else self.cohort.plan.threads

    def close(self) -> None:
        """Let go of what was started for it."""
        self.cohort.close()


def engine_for(cohort: Cohort, plan: Plan) -> Engine:
    if plan.engine != "ray":
        return Engine(cohort)
    from turnout.engine.ray_pool import RayPool, load
    from turnout.engine.remote import RemoteEngine

    load("engine.engine", plan.address)  # it is missed now rather than later
    return RemoteEngine(cohort, plan.blocks, lambda: RayPool(cohort, plan))
