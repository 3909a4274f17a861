"""Jobs from the model received to what is sent: the same in a simulation and at a real client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from turnout.core.errors import UserError
from turnout.engine.train import Cohort, Jobs, Trained
from turnout.local import transforms


def carry_out(
    cohort: Cohort, jobs: Jobs, versions: Sequence[int], keep_params: bool = False, may_be_late: bool = False
) -> Trained:
    """Train at the learning rate of the versions received, then transform the updates. The jobs' state is all that
    their clients keep, transforms' too."""
    work, options, task = jobs.work, jobs.options, cohort.task
    if work.scheduled:
        options = options | {"lr": options.get("lr", work.lr) * work.lr_factor(versions)}
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
    delta, residual = transforms.apply(chain, trained.payload["delta"], coins, residual, numbers)
    state = trained.state if residual is None else trained.state | {"residual": residual}
    return Trained(trained.payload | {"delta": delta}, state, trained.local)
