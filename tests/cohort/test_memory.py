"""Memory that is let go is used again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support import conv, images, local
from turnout import AsyncFedAvg, Plan, Simulation, Stopping, Task, devices
from turnout.core import memory
from turnout.core.memory import keep_freed_memory, room_like


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (600_001,), (7, 90_011)])
def test_room_is_like_the_vector_and_nobody_elses(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    vector = torch.ones(shape, dtype=dtype)
    one, two = room_like(vector), room_like(vector)
    assert one.shape == vector.shape
    assert one.dtype == dtype
    assert one.is_contiguous()
    assert one.data_ptr() % 64 == 0  # results of products may depend on it
    torch.mul(vector, 2, out=one)
    torch.mul(vector, 3, out=two)
    assert [float(room.double().sum()) / vector.numel() for room in (vector, one, two)] == [1, 2, 3]


@pytest.mark.skipif(not keep_freed_memory(), reason="another allocator than glibc's")
def test_a_run_that_replaces_one_model_after_another_does_not_grow() -> None:
    """Of torch's own memory it would need several times as many places."""
    model, rng = torch.zeros(300_007), np.random.default_rng(0)
    held = [room_like(model) for _ in range(30)]
    between = [torch.empty(1) for _ in range(500)]
    places = {vector.data_ptr() for vector in held}
    for old, small, size in zip(*(rng.integers(1, most, 2000) for most in (30, 500, 20)), strict=True):
        del held[old]
        between[small] = torch.empty(int(size))
        held.append(room_like(model))
        places.add(held[-1].data_ptr())
    assert len(places) < 60


def test_models_and_updates_have_such_room(monkeypatch: pytest.MonkeyPatch) -> None:
    people, models = images((9,) * 10, devices=devices.fx(80, 10)), []
    for large in (memory._LARGE, 0):
        monkeypatch.setattr(memory, "_LARGE", large)
        server = Simulation(
            Task(conv, seed=3), people, AsyncFedAvg(local()), stopping=Stopping(25), plan=Plan(threads=2)
        )
        models.append(server.run().model)
    spare = models[1].untyped_storage().nbytes() - models[0].untyped_storage().nbytes()
    assert spare == 64
    rows = [job.result[0]["delta"] for job in server._in_flight.values() if job.result is not None]
    assert rows
    assert all(row.untyped_storage().nbytes() - row.nbytes == 64 for row in rows)
    assert torch.equal(*models)
