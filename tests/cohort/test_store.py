"""Rows of client state: created on first use, kept, spilled to disk when large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from turnout.engine.store import ClientStore

SHAPES: dict[str, tuple[int, ...]] = {"control": (3,), "count": ()}


def store(clients: int = 100, memory_mib: int = 64) -> ClientStore:
    return ClientStore(clients, "cpu", torch.float32, memory_mib)


def test_a_client_never_stored_reads_zeros() -> None:
    state = store().get(SHAPES, np.array([4, 7]))
    assert state["control"].tolist() == [[0, 0, 0]] * 2
    assert state["count"].tolist() == [0, 0]


def test_rows_are_kept_and_replaced() -> None:
    s = store()
    s.put(np.array([9, 2]), {"control": torch.tensor([[1.0, 1, 1], [2, 2, 2]]), "count": torch.tensor([1.0, 2])})
    s.put(np.array([2, 50]), {"control": torch.tensor([[3.0, 3, 3], [4, 4, 4]])})
    state = s.get(SHAPES, np.array([2, 9, 50, 0]))
    assert state["control"][:, 0].tolist() == [3, 1, 4, 0]
    assert state["count"].tolist() == [2, 1, 0, 0]


def test_it_grows_one_row_at_a_time() -> None:
    s = store(clients=1000)
    for client in range(999, -1, -1):
        s.put(np.array([client]), {"count": torch.tensor([float(client)])})
    assert s.get({"count": ()}, np.arange(1000))["count"].tolist() == list(range(1000))


def test_a_hundred_thousand_clients_within_a_small_budget() -> None:
    """200 MB of state with 8 MiB of memory for it: the small columns stay, the large one is in a file, and everything
    reads back as it was written, by itself and from a checkpoint."""
    clients, size, budget = 100_000, 500, 8
    s = store(clients, memory_mib=budget)
    column = torch.arange(size, dtype=torch.float32)
    order = np.random.default_rng(0).permutation(clients)
    for some in np.array_split(order, 40):
        ids = torch.as_tensor(some, dtype=torch.float32)
        s.put(some, {"count": ids, "model": ids[:, None] + column})
        assert s.resident <= budget << 20
    assert list(s._files) == ["model"]
    (file,) = Path(s._folder.name).iterdir()  # type: ignore[union-attr]  # those it has outgrown are gone
    assert file.stat().st_size >= clients * size * 4
    shapes: dict[str, tuple[int, ...]] = {"model": (size,), "count": ()}
    again = store(clients, memory_mib=budget)
    again.load(s.save())
    assert again.resident <= budget << 20
    for kept in (s, again):
        for some in np.array_split(np.arange(clients), 20):
            state, ids = kept.get(shapes, some), torch.as_tensor(some, dtype=torch.float32)
            assert torch.equal(state["count"], ids)
            assert torch.equal(state["model"], ids[:, None] + column)


def test_the_budget_is_for_all_names_together() -> None:
    s = store(memory_mib=1)
    values = torch.ones(16, 10_000)  # 640 kB
    s.put(np.arange(16), {"one": values})
    s.put(np.arange(16), {"two": 2 * values})
    assert list(s._files) == ["two"]
    s.put(np.arange(16, 20), {"two": 3 * values[:4]})  # of whom nothing else is kept
    state = s.get({"one": (10_000,), "two": (10_000,)}, np.arange(20))
    assert state["one"][:, 0].tolist() == [1] * 16 + [0] * 4
    assert state["two"][:, 0].tolist() == [2] * 16 + [3] * 4
    s.load(s.save())
    assert torch.equal(s.get({"two": (10_000,)}, np.arange(20))["two"], state["two"])


def test_large_stores_live_in_a_file_and_behave_the_same() -> None:
    values = torch.arange(40 * 30_000, dtype=torch.float32).reshape(40, 30_000)
    small, large = store(memory_mib=64), store(memory_mib=1)
    for s in (small, large):
        for i in range(40):
            s.put(np.array([i]), {"x": values[i : i + 1]})
    assert small._folder is None
    assert large._folder is not None
    shapes: dict[str, tuple[int, ...]] = {"x": (30_000,)}
    assert torch.equal(large.get(shapes, np.arange(40))["x"], values)
    again = store(memory_mib=1)
    again.load(large.save())
    assert torch.equal(again.get(shapes, np.arange(40))["x"], values)
