"""What counted how much in a stream: oracles 8, 9 and 12 of data-streams.md."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.core.errors import UserError
from turnout.core.ragged import Ragged
from turnout.core.random import FloatArray, IntArray, generator, key
from turnout.theory.streams import effective_samples, historical
from turnout_studies.stream_weights import equal_groups
from turnout_studies.theory.stream_use import constant_weights, first_use_weights, stream_use


def fifo(batch: int, stay: int, rounds: int) -> Ragged:
    """One client: `batch` new samples a round, each stored for `stay` rounds."""
    return Ragged.from_rows([range(max(0, t - stay + 1) * batch, (t + 1) * batch) for t in range(rounds)])


def drawn(number: int) -> tuple[Ragged, FloatArray, IntArray, int]:
    """Three clients, forty samples; round 3 stores nothing, some weights are 0, and client 1 has none in round 5."""
    chance = generator(key(number, "use"))
    owner = chance.integers(0, 3, 40)
    rows = [np.flatnonzero(chance.uniform(size=40) < 0.4) for _ in range(8)]
    rows[3] = rows[3][:0]
    rows[5] = rows[5][owner[rows[5]] != 1]
    stored = Ragged.from_rows(rows)
    weights = chance.uniform(size=len(stored.values)) * (chance.uniform(size=len(stored.values)) < 0.8)
    return stored, weights, owner, 3


@pytest.mark.parametrize("number", range(5))
def test_o9_against_the_definitions(number: int) -> None:
    """Sample by sample and round by round."""
    stored, weights, owner, clients = drawn(number)
    use = stream_use(stored, weights, owner, clients)
    total = weights.sum()
    samples = np.zeros(40)
    for t in range(len(stored)):
        of_round = weights[stored.offsets[t] : stored.offsets[t + 1]]
        assert use.rounds[t] == pytest.approx(of_round.sum() / total)
        for m in range(clients):
            mass = sum(w for w, i in zip(of_round, stored.row(t), strict=True) if owner[i] == m)
            assert use.aggregation[t, m] == pytest.approx(mass / of_round.sum() if mass else 0)
        for w, i in zip(of_round, stored.row(t), strict=True):
            samples[i] += w / total
    np.testing.assert_allclose(use.samples, samples)


@pytest.mark.parametrize("number", range(5))
def test_o9_identities(number: int) -> None:
    stored, weights, owner, clients = drawn(number)
    use = stream_use(stored, weights, owner, clients)
    spent = use.rounds > 0
    assert use.aggregation.sum(1) == pytest.approx(spent.astype(float))
    assert not spent[3]
    assert use.aggregation[5, 1] == 0
    assert use.rounds.sum() == pytest.approx(1)
    assert use.samples.sum() == pytest.approx(1)
    np.testing.assert_allclose(use.clients, use.rounds @ use.aggregation)
    np.testing.assert_allclose(use.clients, np.bincount(owner, use.samples, clients))


@pytest.mark.parametrize("number", range(3))
def test_o9_the_loss_three_ways(number: int) -> None:
    """The weighted loss of all rounds; that of rounds and memories; that of samples."""
    stored, weights, owner, clients = drawn(number)
    use = stream_use(stored, weights, owner, clients)
    loss = generator(key(number, "losses")).uniform(size=40)
    by_rounds = 0.0
    for t in range(len(stored)):
        ids, of_round = stored.row(t), weights[stored.offsets[t] : stored.offsets[t + 1]]
        for m in np.flatnonzero(use.aggregation[t]):
            mine = owner[ids] == m
            memory = (of_round[mine] @ loss[ids[mine]]) / of_round[mine].sum()
            by_rounds += use.rounds[t] * use.aggregation[t, m] * memory
    assert by_rounds == pytest.approx(weights @ loss[stored.values] / weights.sum())
    assert by_rounds == pytest.approx(use.samples @ loss)


def test_o8_effective_samples() -> None:
    stored = fifo(2, 1, 10)
    owner = np.zeros(20, np.int64)
    assert stream_use(stored, np.ones(20), owner, 1).effective_samples == pytest.approx(20)
    one = np.zeros(20)
    one[7] = 3.0
    assert stream_use(stored, one, owner, 1).effective_samples == 1
    uneven = stream_use(stored, np.arange(20), owner, 1)
    assert 1 < uneven.effective_samples < 20
    assert uneven.effective_samples == pytest.approx(1 / np.square(uneven.samples).sum())


@pytest.mark.parametrize(("batch", "stay", "rounds"), [(3, 4, 12), (1, 5, 9), (2, 1, 6)])
def test_o12_uniform_is_uniform(batch: int, stay: int, rounds: int) -> None:
    """Weights 1 / stay: all samples that stay so long count alike. Weights on first use only: all samples do."""
    stored, samples = fifo(batch, stay, rounds), batch * rounds
    owner = np.zeros(samples, np.int64)
    use = stream_use(stored, np.full(len(stored.values), 1 / stay), owner, 1)
    whole = use.samples[: samples - batch * (stay - 1)]
    np.testing.assert_allclose(whole, whole[0])
    assert (use.samples[len(whole) :] < whole[0]).all()
    first = stream_use(stored, first_use_weights(stored), owner, 1)
    np.testing.assert_array_equal(first.samples, 1 / samples)
    assert first.effective_samples == pytest.approx(samples)


def test_constant_weights_of_old_and_new_data() -> None:
    """The scenario of the bound: p_m^t = p_m, q = 1 / T, p_i = p_m / N_m, N_eff in closed form."""
    rounds, counts = 6, np.array([8, 4, 12, 30])  # two historical clients, two fresh ones: 2 and 5 samples a round
    owner = np.repeat(np.arange(4), counts)
    stored = Ragged.from_rows(
        [[*range(12), *range(12 + 2 * t, 14 + 2 * t), *range(24 + 5 * t, 29 + 5 * t)] for t in range(rounds)]
    )
    p = np.array([0.3, 0.1, 0.4, 0.2])
    use = stream_use(stored, constant_weights(p, stored, owner), owner, 4)
    np.testing.assert_allclose(use.aggregation, np.tile(p, (rounds, 1)))
    np.testing.assert_allclose(use.rounds, 1 / rounds)
    np.testing.assert_allclose(use.samples, (p / counts)[owner])
    assert use.effective_samples == pytest.approx(effective_samples(p, counts))
    assert use.drift == pytest.approx(0, abs=1e-30)


def test_historical_has_the_effective_samples_of_the_historical_data() -> None:
    n, fresh = equal_groups(0.25, 2, 3)
    stored = Ragged.from_rows([[0, 1, 2, 3, 4 + 3 * t, 5 + 3 * t, 6 + 3 * t] for t in range(4)])
    owner = np.array([0, 0, 1, 1, *(4 * [2, 3, 4])])
    use = stream_use(stored, constant_weights(historical(n, fresh), stored, owner), owner, 5)
    assert use.effective_samples == pytest.approx(4)


def test_drift_by_hand() -> None:
    """Client 0 alone, then client 1 alone with three times the weight: p = (1/4, 3/4)."""
    use = stream_use(Ragged.from_rows([[0], [1]]), [1.0, 3.0], [0, 1], 2)
    assert use.clients.tolist() == [0.25, 0.75]
    assert use.drift == pytest.approx(0.25 * (0.75**2 + 0.75**2) + 0.75 * (0.25**2 + 0.25**2))


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, np.nan]])
def test_weights_that_cannot_be(weights: list[float]) -> None:
    with pytest.raises(UserError, match="each stored sample needs a weight of at least 0, one of them above"):
        stream_use(Ragged.from_rows([[0], [1]]), weights, [0, 1], 2)
