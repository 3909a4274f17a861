"""Transfer times: the SAFA constants, per-client and drawn rates, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from turnout.clients.devices import AtLeast, Exponential, Gaussian
from turnout.clients.links import Links
from turnout.core.errors import UserError

IDS = np.arange(4)
MODEL = 10e6  # bytes, decimal


def test_the_safa_constants() -> None:
    links = Links(down=1.4e6, up=1.4e6, server=10e9)
    trip = links.download_seconds(0, IDS, MODEL) + links.upload_seconds(0, IDS, MODEL)
    np.testing.assert_allclose(trip, 114.2857, atol=1e-4)
    assert links.push_seconds(1, MODEL) == pytest.approx(0.008)
    assert links.push_seconds(500, MODEL) == pytest.approx(4.0)


def test_the_default_link_takes_no_time() -> None:
    links = Links()
    assert links.download_seconds(0, IDS, MODEL).tolist() == links.upload_seconds(0, IDS, MODEL).tolist() == [0.0] * 4
    assert links.push_seconds(1000, MODEL) == 0


def test_rates_latency_and_sizes_for_each_client() -> None:
    links = Links(down=np.array([8e6, 4e6, 2e6]), up=1e6, latency=np.array([0.0, 0.1, 0.2]))
    ids = np.array([2, 0])
    np.testing.assert_allclose(links.download_seconds(0, ids, 1e6), [4.2, 1.0])
    np.testing.assert_allclose(links.upload_seconds(0, ids, np.array([1e6, 2e6])), [8.2, 16.0])


def test_drawn_rates_belong_to_the_client() -> None:
    links = Links(down=Exponential(8e6), up=AtLeast(Gaussian(1e6, 0.3e6), 0.1e6))
    many = np.arange(5000)
    down, up = links.download_seconds(3, many, 1e6), links.upload_seconds(3, many, 1e6)
    assert stats.kstest(1 / down, "expon").pvalue > 1e-3  # 1 / seconds = rate / 8 Mbit
    assert stats.kstest(8e6 / up[8 / up > 0.2], stats.norm(1e6, 0.3e6).cdf).pvalue > 1e-3
    assert up.max() <= 80 + 1e-9
    some = np.array([41, 7])
    np.testing.assert_array_equal(links.download_seconds(3, some, 1e6), down[some])
    assert abs(stats.spearmanr(down, up).statistic) < 5 / np.sqrt(len(many))  # two draws, not one


@pytest.mark.parametrize(
    ("links", "complaint"),
    [
        (lambda: Links(down=0.0), "links.down: 0.0 must be above 0"),
        (lambda: Links(down=np.array([1.0, np.nan, 1, 1])), r"links.down\[1\]: nan"),
        (lambda: Links(latency=np.array([0.0, 0, -1, 0])), r"links.latency\[2\]: -1.0 must be at least 0"),
        (lambda: Links(down=np.ones(3)), "given for 3 clients; client 3 has none"),
        (lambda: Links(server=0.0), "links.server: 0.0 must be above 0"),
    ],
)
def test_impossible_links_are_refused(links: Callable[[], Links], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        links().download_seconds(0, IDS, 1.0)
