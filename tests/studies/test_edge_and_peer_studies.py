"""The studies of regions and topologies: their tables, their trials, and a run of each at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import turnout_studies as studies
from turnout import UserError
from turnout.data.dataset import Dataset
from turnout_studies import hybridfl_tables, topology_cycle_times
from turnout_studies.hybridfl_mnist import OWN, skewed
from turnout_studies.hybridfl_time import cells
from turnout_studies.study import Results
from turnout_studies.worlds.hybridfl import TASKS

NAMES = ("hybridfl_time", "hybridfl_aerofoil", "hybridfl_mnist", "topology_cycle_times", "topology_training")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    for name, folder in folders.items():
        studies.find(name).run("small", [0], folder)
    return folders


@pytest.mark.parametrize("name", NAMES)
def test_the_small_size_runs_and_is_read_back(name: str, ran: dict[str, Path]) -> None:
    study = studies.find(name)
    judged = study.judge(study.read(ran[name]))
    assert {one.verdict for one in judged} == {"not judged"}  # the small size decides nothing
    assert all(np.isfinite(one.values).all() for one in judged)


def test_tables_are_whole() -> None:
    for table in (hybridfl_tables.LENGTHS, hybridfl_tables.ACCURACIES, hybridfl_tables.ROUNDS):
        for task in TASKS:
            for scheme in ("fedavg", "hierfavg", "hybridfl"):
                assert {rate: len(row) for rate, row in table[task][scheme].items()} == {0.1: 3, 0.3: 3, 0.6: 3}
    for setting in topology_cycle_times.TABLES.values():
        assert tuple(setting.printed) == topology_cycle_times.NETWORKS
        assert {len(row) for row in setting.printed.values()} == {len(topology_cycle_times.OVERLAYS)}


def test_the_quota_closes_rounds_sooner_unless_it_cannot_be_met(ran: dict[str, Path]) -> None:
    """Cells are [seed, drop-out rate, fraction]; the deadline of task 2 with the way to the cloud is 380.42 s."""
    results = studies.find("hybridfl_time").read(ran["hybridfl_time"])
    lengths = {
        scheme: cells(results, lambda measures: float(measures["round_seconds"]), "mnist", scheme)
        for scheme in ("fedavg", "hybridfl")
    }
    assert (lengths["hybridfl"][:, :, 0] < lengths["fedavg"][:, :, 0]).all()
    np.testing.assert_allclose(lengths["hybridfl"][:, :, 1], 380.42, atol=0.01)
    np.testing.assert_allclose(lengths["fedavg"], 378.02, atol=0.01)


def test_cycle_times_of_a_bundled_network(ran: dict[str, Path]) -> None:
    """Table 2.5, first row."""
    results = studies.find("topology_cycle_times").read(ran["topology_cycle_times"])
    ring = results.each(lambda measures: float(measures["ring"]), network="gaia", table="2.5")
    np.testing.assert_allclose(ring, 118.1, atol=0.05)


def test_rounds_and_seconds_to_the_target(ran: dict[str, Path]) -> None:
    """All overlays evaluate at the same rounds; times grow with the rounds, and are longer where access is slow."""
    results: Results = studies.find("topology_training").read(ran["topology_training"])
    for _, measures in results.trials:
        assert measures["rounds"] == [0, 5, 10]
        fast, slow = (np.array(measures["times"][access]) for access in ("10 Gbit/s", "100 Mbit/s"))
        assert (np.diff(fast) > 0).all()
        assert (slow[1:] > fast[1:]).all()


def test_most_images_go_to_clients_of_their_class() -> None:
    labels = torch.arange(20_000) % 10
    rows = skewed(Dataset("digits", torch.zeros(20_000, 1), labels, 10), 50, seed=3)
    owner = np.repeat(np.arange(50), rows.counts)
    of_class = labels.numpy()[rows.values]
    assert sorted(rows.values.tolist()) == list(range(20_000))
    assert np.mean(of_class == owner % 10) == pytest.approx(OWN, abs=0.01)
    others = owner[of_class != owner % 10]
    assert np.bincount(others, minlength=50).min() > 0.7 * len(others) / 50
    few = skewed(Dataset("digits", torch.zeros(120, 1), labels[:120], 10), 50, seed=3)
    assert few.counts.min() >= 2
    assert few.counts.sum() == 120


def test_the_topologies_of_the_source_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"topologies/; give one with --data"):
        studies.find("topology_cycle_times").run("default", [0], tmp_path)
