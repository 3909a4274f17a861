"""Federated EM on one step's samples: golden values, the same as pooled EM, monotone, and its corner cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from online.small_worlds import GAUSSIANS, classifiers, drawn, labelled, numbers, ragged, task, weights
from turnout import UserError
from turnout.core.random import key
from turnout.local.mixture import MixtureTask
from turnout_studies.online.components import Classifiers, Components, Gaussians, aligned
from turnout_studies.online.em import em_step, federated_em, mixture_log_prob, synchronise, weights_step
from turnout_studies.online.samples import Samples

COUNTS = [7, 1, 4, 0]


def test_golden_values() -> None:
    """online-mixtures.md 6."""
    samples, means, pi = Samples.full(numbers([[0], [1], [2]])), numbers([0], [2]), numbers([0.5, 0.5])
    shares, _ = weights_step(GAUSSIANS.log_prob(means, samples), pi, samples.counted)
    assert shares[0, :, 0].tolist() == pytest.approx([0.880797, 0.5, 0.119203], abs=1e-6)
    after, new_pi = em_step(GAUSSIANS, means, pi, samples)
    assert new_pi.tolist() == [pytest.approx([0.5, 0.5])]
    assert after.flatten().tolist() == pytest.approx([0.492271, 1.507729], abs=1e-6)


def test_the_density_is_that_of_a_gaussian() -> None:
    points, means = drawn("points", 2, 6, 3), drawn("means", 4, 3)
    found = GAUSSIANS.log_prob(means, Samples.full(points))
    law = torch.distributions.MultivariateNormal
    expected = torch.stack([law(mean, torch.eye(3, dtype=torch.float64)).log_prob(points) for mean in means], -1)
    torch.testing.assert_close(found, expected)
    own = torch.stack([means, means + 1])  # each client's own
    torch.testing.assert_close(GAUSSIANS.log_prob(own, Samples.full(points))[0], expected[0])


def own_estimates(family: Components, components: Tensor, shares: Tensor, samples: Samples) -> list[Tensor]:
    """Each client's M-step by itself, by the formulas."""
    found = []
    for client, w in enumerate(shares):
        x, y, n = samples.inputs[client], samples.targets[client], float(samples.counts[client])
        if isinstance(family, Gaussians):
            found.append((w[..., None] * x[:, None]).sum(0) / w.sum(0)[:, None])
            continue
        assert isinstance(family, Classifiers)
        rows = []
        for j, row in enumerate(components):
            leaf = row.clone().requires_grad_()
            (family.task.losses(leaf, x, y) * w[:, j]).sum().backward()
            assert leaf.grad is not None
            rows.append(row - family.lr / n * leaf.grad)
        found.append(torch.stack(rows))
    return found


@pytest.mark.parametrize("family", [Gaussians(), classifiers()], ids=["gaussians", "classifiers"])
def test_synchronising_own_estimates(family: Components) -> None:
    """online-mixtures.md 3.2 and 7: the sum of a omega over the sum of a, a = n_c pi, for clients of unequal sizes."""
    samples = Samples.of(ragged(labelled(3, 7), COUNTS[:3]), 3)
    components = drawn("means", 2, 5) if isinstance(family, Gaussians) else task().initials(2)
    pi = weights("pi", 3, 2)
    shares, new_pi = weights_step(family.log_prob(components, samples), pi, samples.counted)
    masses = samples.counts[:, None] * new_pi
    own = torch.stack(own_estimates(family, components, shares, samples))  # [C, m, P]
    expected = (masses[..., None] * own).sum(0) / masses.sum(0)[:, None]
    found, found_pi = em_step(family, components, pi, samples)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found_pi, new_pi)
    plain = (new_pi[..., None] * own).sum(0) / new_pi.sum(0)[:, None]  # as printed, without n_c
    assert float((found - plain).abs().max()) > 1e-3


def test_one_synchronised_step_is_the_pooled_one() -> None:
    """online-mixtures.md 7."""
    samples, means, pi = Samples.of(ragged(labelled(4, 7), COUNTS), 4), drawn("means", 3, 5), weights("pi", 4, 3)
    shares, _ = weights_step(GAUSSIANS.log_prob(means, samples), pi, samples.counted)
    real = samples.counted.bool()
    w, x = shares[real], samples.inputs[real]
    found, _ = em_step(GAUSSIANS, means, pi, samples)
    torch.testing.assert_close(found, w.T @ x / w.sum(0)[:, None], rtol=1e-12, atol=1e-12)


def test_sums_of_clients_add_up() -> None:
    """What a server adds needs no other client: padding and company change nothing."""
    samples = Samples.of(ragged(labelled(4, 7), COUNTS), 4)
    for family, components in ((GAUSSIANS, drawn("means", 3, 5)), (classifiers(), task().initials(3))):
        shares, _ = weights_step(family.log_prob(components, samples), weights("pi", 4, 3), samples.counted)
        alone = []
        for client, count in enumerate(COUNTS):
            own = Samples(*(column[client : client + 1, :count] for column in samples))
            alone.append(family.totals(components, own, shares[client : client + 1, :count]))
        together = family.totals(components, samples, shares)
        torch.testing.assert_close(torch.stack(alone).sum(0), together, rtol=1e-10, atol=1e-12)


def test_the_likelihood_never_falls() -> None:
    """online-mixtures.md 8: twenty steps, shared means and private weights."""
    centres = 2 * drawn("centres", 3, 2)
    samples = GAUSSIANS.sample(centres, weights("pi", 6, 3, 0.3), key(1, "samples", np.arange(6)), 25)
    means, pi = centres + drawn("means", 3, 2), torch.full((6, 3), 1 / 3, dtype=torch.float64)
    likelihoods = []
    for _ in range(20):
        likelihoods.append(float(mixture_log_prob(GAUSSIANS.log_prob(means, samples), pi).mean()))
        means, pi = em_step(GAUSSIANS, means, pi, samples)
    assert min(np.diff(likelihoods)) >= -1e-12
    assert likelihoods[-1] > likelihoods[0] + 0.1


def test_one_source_is_the_mean() -> None:
    """online-mixtures.md 16."""
    samples = Samples.of(ragged(labelled(4, 7), COUNTS), 4)
    means, pi = federated_em(GAUSSIANS, drawn("means", 1, 5), samples, 3)
    torch.testing.assert_close(means[0], samples.inputs[samples.counted.bool()].mean(0))
    assert pi.tolist() == [[1.0]] * 4


def test_weights_begin_equal_at_every_step() -> None:
    """online-mixtures.md 3.2: they may have jumped since the last one."""
    samples, means = Samples.full(drawn("x", 3, 6, 2)), drawn("means", 2, 2)
    expected = em_step(GAUSSIANS, means, torch.full((3, 2), 0.5, dtype=torch.float64), samples)
    torch.testing.assert_close(federated_em(GAUSSIANS, means, samples, 1), expected)


def test_parts_of_its_own_for_each_step() -> None:
    """online-mixtures.md 3.5: batch k in inner step k, weights divided by the batch's size."""
    samples, start = Samples.full(drawn("x", 2, 6, 3)), drawn("means", 2, 3)
    means, pi = start, torch.full((2, 2), 0.5, dtype=torch.float64)
    for number in range(3):
        means, pi = em_step(GAUSSIANS, means, pi, Samples.full(samples.inputs[:, number::3]))
    found = federated_em(GAUSSIANS, start, samples, 3, splitting=True)
    torch.testing.assert_close(found, (means, pi))
    assert not torch.allclose(found[0], federated_em(GAUSSIANS, start, samples, 3)[0])


def test_a_source_without_samples_stays() -> None:
    """online-mixtures.md 3.8."""
    previous, totals = numbers([1, 2], [3, 4]), numbers([10, 20], [1e-9, 5])
    assert synchronise(totals, numbers(5, 1e-9), previous).tolist() == [[2, 4], [3, 4]]
    means = numbers([0, 0], [1e3, 1e3])
    found, pi = em_step(GAUSSIANS, means, numbers([0.5, 0.5]), Samples.full(drawn("x", 1, 9, 2)))
    assert found[1].tolist() == [1e3, 1e3]
    assert pi.tolist() == [[1.0, 0.0]]


def test_far_points_have_finite_responsibilities() -> None:
    """online-mixtures.md 3.8: all densities underflow."""
    samples = Samples.full(numbers([[1e4], [-1e4]]))
    log_prob = GAUSSIANS.log_prob(numbers([0], [2]), samples)
    assert bool((log_prob.exp() == 0).all())
    shares, _ = weights_step(log_prob, numbers([0.5, 0.5]), samples.counted)
    assert shares[0].tolist() == [[0, 1], [1, 0]]


def test_a_client_without_samples_keeps_its_weights() -> None:
    samples, pi = Samples.of(ragged(labelled(4, 7), COUNTS), 4), weights("pi", 4, 3)
    _, after = em_step(GAUSSIANS, drawn("means", 3, 5), pi, samples)
    assert torch.equal(after[3], pi[3])
    assert not torch.allclose(after[:3], pi[:3])


def test_draws_follow_the_mixture() -> None:
    """In the first client's company or alone, the same."""
    means, pi, keys = numbers([-50], [0], [50]), numbers([0.2, 0.5, 0.3], [0, 0, 1]), key(2, "draws", np.arange(2))
    found = GAUSSIANS.sample(means, pi, keys, 20_000).inputs[..., 0]
    shares = [float(((found[0] - mean).abs() < 10).double().mean()) for mean in (-50, 0, 50)]
    assert shares == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
    noise = found[0] - numbers(-50, 0, 50)[torch.searchsorted(numbers(-25, 25), found[0])]
    assert abs(float(noise[found[0] > 25].mean())) < 0.05  # which source it is says nothing of the noise
    assert float(found[1].mean()) == pytest.approx(50, abs=0.03)
    assert float(found[1].std()) == pytest.approx(1, abs=0.03)
    assert torch.equal(GAUSSIANS.sample(means, pi[1:], keys[1:], 20_000).inputs[0, :, 0], found[1])


def test_labels_of_classifiers_mix_as_a_mixture_does() -> None:
    """online-mixtures.md 3.6: h = sum_j pi[j] h_j of probabilities; `MixtureTask` is the reference."""
    samples, pi, mixture = labelled(3, 4), weights("pi", 3, 2), MixtureTask(task(), 2)
    components = task().initials(2)
    family = classifiers()
    mixed = mixture_log_prob(family.label_log_prob(components, samples), pi)  # [C, n, Y]
    for client in range(3):
        expected = mixture.mixed(components.flatten(), pi[client], samples.inputs[client])
        torch.testing.assert_close(mixed[client], expected)
    losses = mixture.component_losses(components.flatten(), samples.inputs.flatten(0, 1), samples.targets.flatten())
    torch.testing.assert_close(family.log_prob(components, samples).flatten(0, 1), -losses)


def test_labels_may_switch() -> None:
    """online-mixtures.md 3.8."""
    truth = 3 * drawn("means", 4, 2)
    assert torch.equal(aligned(truth[[2, 0, 3, 1]], truth), truth)


def test_ragged_samples() -> None:
    samples = Samples.of({2: torch.ones(3, 5), 0: torch.zeros(1, 5).numpy()}, 4)  # type: ignore[dict-item]
    assert samples.counts.tolist() == [1, 0, 3, 0]
    assert samples.inputs.shape == (4, 3, 5)
    assert float(samples.inputs[2].sum()) == 15
    later = samples.then(Samples.full(torch.ones(6, 2, 5)))
    assert later.counts.tolist() == [3, 2, 5, 2, 2, 2]


@pytest.mark.parametrize(
    ("received", "message"),
    [
        ({4: torch.zeros(2, 3)}, "client 4 has never played; there are 4"),
        ({}, "nobody received a sample"),
        ({0: torch.zeros(0, 3)}, "nobody received a sample"),
        ({0: torch.zeros(2, 3), 1: torch.zeros(2, 2)}, "differ in shape"),
        ({0: torch.zeros(2, 3), 1: (torch.zeros(2, 3), torch.zeros(2))}, "differ in shape, or some have labels"),
        ({0: (torch.zeros(2, 3), torch.zeros(3))}, "2 inputs but 3 labels"),
    ],
)
def test_bad_samples_are_refused(received: object, message: str) -> None:
    with pytest.raises(UserError, match=f"online.observe: .*{message}"):
        Samples.of(received, 4)  # type: ignore[arg-type]


def test_families_say_what_they_cannot_do() -> None:
    samples = labelled(2, 3)
    with pytest.raises(UserError, match="Classifiers cannot be sampled; use labels"):
        classifiers().sample(task().initials(2), weights("pi", 2, 2), key(0, "x", np.arange(2)), 3)
    with pytest.raises(UserError, match="Gaussians has no labels; use model"):
        GAUSSIANS.label_log_prob(drawn("means", 2, 5), samples)
    with pytest.raises(UserError, match=r"online.samples: 5 dimensions; the means have 3"):
        GAUSSIANS.log_prob(drawn("means", 2, 3), samples)
    with pytest.raises(UserError, match=r"online.lr: 0 must be above 0"):
        classifiers(0)
