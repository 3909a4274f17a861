"""Workers as Ray actors, on this machine or on a cluster.

Ray moves Python objects by pickle: whoever it lets in can run code on its machines. A cluster is trusted.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from turnout.core import trees
from turnout.core.errors import UserError
from turnout.core.imports import extra, optional
from turnout.engine.plan import Plan
from turnout.engine.remote import LostError, Worker
from turnout.engine.train import Cohort

LOCAL = ("", "local")


def load(use: str, address: str) -> Any:
    """Import `ray`, which reads its environment once."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address in LOCAL:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on Linux too: it listens on loopback only
    return optional(use, "ray", extra("ray"))


def connect(use: str, address: str) -> Any:
    """Connect `ray` to the cluster at an address, or to one of this machine alone that ends with this process, unless
    it is connected."""
    ray = load(use, address)
    if ray.is_initialized():
        return ray
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address in LOCAL:
            with _modules_found_by_children():
                ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
            return ray
        host, _, port = address.rpartition(":")
        if port.isdecimal():  # Ray itself would go on trying for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{use}: no Ray cluster at {address!r} lets this process in; start one with: ray start --head, and give "
            "both the same RAY_AUTH_TOKEN"
        ) from error
    return ray


@contextmanager
def _modules_found_by_children() -> Iterator[None]:
    """Let processes started now find the modules that this one finds, and those of its working folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path), os.getcwd()])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class RayPool:
    """One actor a worker; each reads the samples where its machine has them."""

    def __init__(self, cohort: Cohort, plan: Plan) -> None:
        self._ray = ray = connect("engine.address", plan.address)
        device = torch.device(plan.device).type
        there = replace(cohort.plan, device=device)
        needs = {"num_cpus": 0 if plan.address in LOCAL else plan.threads, "num_gpus": int(device != "cpu")}
        actor = ray.remote(**needs, max_restarts=0)(Worker)
        samples = [ray.put(trees.map_leaves(_array, pool)) for pool in cohort.stored]
        task = ray.put(cohort.task.to("cpu"))
        self._actors = [actor.remote(task, *samples, there) for _ in range(self._count(plan, device))]
        self.workers = list(range(len(self._actors)))

    def _count(self, plan: Plan, device: str) -> int:
        resources = self._ray.cluster_resources()
        if device != "cpu":
            most = int(resources.get("GPU", 0))
        elif plan.address in LOCAL:
            return plan.workers or max(1, (os.cpu_count() or 1) // plan.threads)
        else:
            most = int(resources.get("CPU", 0)) // plan.threads
        if not 0 < (plan.workers or most) <= most:
            raise UserError(
                f"engine.workers: {plan.workers or 'any'} with {plan.threads} threads or a GPU each; "
                f"the cluster has room for {most}"
            )
        return plan.workers or most

    def put(self, array: NDArray[Any]) -> Any:
        return self._ray.put(array)

    def submit(self, worker: int, method: str, *arguments: Any) -> Any:
        return getattr(self._actors[worker], method).remote(*arguments)

    def first(self, asked: Iterable[Any]) -> Any:
        return self._ray.wait(list(asked), num_returns=1, fetch_local=False)[0][0]

    def answer(self, asked: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(asked)
        except errors.RayTaskError as error:  # of the work itself
            raise error.cause or error from None
        except errors.RayError as error:
            raise LostError(str(error).strip().splitlines()[-1].strip()) from error

    def end(self) -> None:
        if self._ray.is_initialized():  # it may have ended before
            for actor in self._actors:
                self._ray.kill(actor)


def _array(leaf: Tensor) -> NDArray[Any]:
    """Give numbers to NumPy, which knows no bfloat16."""
    array: NDArray[Any] = (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).cpu().numpy()
    return array
