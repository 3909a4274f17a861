"""Who holds which sample: functions `(data, clients, seed, options) -> Ragged` of sample indices, one row a client.

`data` is a `Dataset` or its bare column (labels; groups for `natural`; anything with a length where neither is used).
Functions with a `part` also deal a dataset's central test set by the same rule and the same draws.

    >>> train = dirichlet_equal(dataset, 100, seed=0, alpha=0.1)
    >>> test = dirichlet_equal(dataset, 100, seed=0, alpha=0.1, part="test")    # the same class mixture a client
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.core import random, trees
from turnout.core.allowed import Count, Finite, Positive, Range, WholeNumber
from turnout.core.errors import UserError, check_room
from turnout.core.ragged import Ragged
from turnout.core.random import IntArray
from turnout.core.spelling import spelt
from turnout.data._dealing import apportion, by_class, deal, even, filtered, shuffle, times_before
from turnout.data.dataset import Dataset
from turnout.data.prepare import Held

Data = Dataset | Sequence[int] | NDArray[np.integer]
Part = Literal["train", "test"]


@spelt
def iid(data: Data, clients: int, seed: int) -> Ragged:
    """Shuffle and cut into `clients` rows whose sizes differ by at most one; every sample is used exactly once."""
    _enough(len(data), clients)
    return deal(even(len(data), clients), seed)


@spelt
def gaussian_sizes(
    data: Data,
    clients: int,
    seed: int,
    *,
    relative_sd: Finite = 0.3,  # standard deviation of the sizes, relative to the mean
    in_order: bool = False,  # whether slices of the data as it stands are dealt
) -> Ragged:
    """Quantity skew: n_i ~ N(n/N, (relative_sd n/N)^2), at least 1, rescaled to sum exactly to n; then an iid deal, or
    with `in_order` slices of the data as it stands (as the SAFA experiments have it).

    Reference: Wu et al., SAFA, IEEE Transactions on Computers 2021 (relative_sd = 0.3).
    """
    _enough(len(data), clients)
    draws = random.normal(random.key(seed, "partition size", np.arange(clients)), 1)[:, 0]
    sizes = apportion(np.maximum(1 + relative_sd * draws, 1e-9), len(data))
    if in_order:
        return Ragged(np.concatenate([[0], np.cumsum(sizes)]), np.arange(len(data)))
    return deal(sizes, seed)


@spelt
def natural(data: Data, clients: int | None = None, seed: int = 0, *, part: Part = "train") -> Ragged:
    """The dataset's own groups (a writer, a role, a hospital), the first `clients` of them; `seed` changes nothing."""
    del seed  # the signature every partition shares
    if not isinstance(data, Dataset):
        known = groups = np.asarray(data, np.int64)
    elif data.groups is None or (part == "test" and data.test_groups is None):
        raise UserError(
            f"partition natural: the {part} set of dataset {data.name} has no groups; use another partition"
        )
    else:
        known, groups = data.groups, data.groups if part == "train" else np.asarray(data.test_groups)
    available = int(known.max(initial=-1)) + 1
    clients = available if clients is None else clients
    if not 1 <= clients <= available:
        raise UserError(f"partition natural: {clients} clients asked, the data has {available} groups; ask for fewer")
    rows = Ragged.from_owner(np.where(groups < clients, groups, -1), clients)
    if part == "train":
        _refuse(rows.counts < 1, "natural", "have no sample; number the groups 0, 1, 2, ... without gaps")
    return rows


@spelt
def one_class(
    data: Data,
    clients: int,
    seed: int,
    *,
    clients_per_class: Count | None = None,  # clients are listed class by class; none: client i has class i mod C
    samples: Count | None = None,  # of each client; none: an even share of all
    test_samples: Count | None = None,  # of each client's test set; none: an even share of all
    part: Part = "train",
) -> Ragged:
    """Client i holds only class i mod C, no sample twice: `samples` (`test_samples`) of them, or an even share of all.

    With `clients_per_class` the clients are listed class by class instead: client i holds class i // clients_per_class.
    Reference: Fraboni et al., Clustered Sampling, ICML 2021 (MNIST, 100 clients, 500 training samples each).
    """
    labels, classes = _labels(data, "one_class", part)
    _enough(len(labels), clients)
    if clients_per_class is not None and clients_per_class * classes != clients:
        raise UserError(
            f"partition one_class: {classes} classes of {clients_per_class} clients_per_class are not {clients} clients"
        )
    holders = np.bincount(np.arange(clients) % classes, minlength=classes)  # clients of every class
    order, rank = by_class(labels, classes, shuffle(len(labels), seed))
    label, supply = labels[order], np.bincount(labels, minlength=classes)
    each = samples if part == "train" else test_samples
    if each is None:
        place = rank * holders[label] // supply[label]
    elif (supply < each * holders).any():
        c = int(np.argmin(np.where(holders > 0, supply / np.maximum(holders, 1), np.inf)))
        raise UserError(
            f"partition one_class ({part}): {each} samples a client asked; class {c} has {supply[c]} for {holders[c]} "
            f"clients, so the allowed range is 1 to {supply[c] // holders[c]}"
        )
    else:
        place = rank // each
    owner = np.empty(len(labels), np.int64)
    owner[order] = label + place * classes if clients_per_class is None else label * clients_per_class + place
    owner[order[place >= holders[label]]] = -1  # what nobody asked for
    rows = Ragged.from_owner(owner, clients)
    _refuse(rows.counts < 1, f"one_class ({part})", "have no sample of their class; use fewer clients")
    return rows


@spelt
def shards(
    data: Data,
    clients: int,
    seed: int,
    *,
    classes_per_client: Count = 2,  # shards of a client, of one class each
) -> Ragged:
    """Cut every class into shards, `clients * classes_per_client` in all, and deal each client `classes_per_client`.

    The number of shards of a class is proportional to its size and no shard mixes two classes, so a client sees at
    most `classes_per_client` classes; every sample is used exactly once.
    Reference: McMahan et al., Communication-Efficient Learning, AISTATS 2017 (whose shards may straddle two classes).
    """
    labels, classes = _labels(data, "shards")
    total, present = clients * classes_per_client, np.unique(labels)
    if not len(present) <= total <= len(labels):
        raise UserError(
            f"partition shards: {clients} clients times classes_per_client {classes_per_client} is {total} shards; "
            f"allowed: from {len(present)} (one a class) to {len(labels)} (one a sample)"
        )
    supply = np.bincount(labels, minlength=classes)
    pieces = np.zeros(classes, np.int64)
    pieces[present] = apportion(supply[present], total)
    order, rank = by_class(labels, classes, shuffle(len(labels), seed))
    label = labels[order]
    shard = np.cumsum(pieces)[label] - pieces[label] + rank * pieces[label] // supply[label]
    owner = np.empty(len(labels), np.int64)
    owner[order] = random.permutation(random.key(seed, "partition shard"), total)[shard] % clients
    return Ragged.from_owner(owner, clients)


@spelt
def dirichlet(
    data: Data,
    clients: int,
    seed: int,
    *,
    alpha: Positive,  # of the Dirichlet law: small ones give few classes to a client
    min_samples: WholeNumber = 1,  # that every client has; 0: none at all is allowed
    attempts: Count = 20,  # draws until everybody has them
    label_groups: Count | None = None,  # groups of classes that are dealt like one class; none: each by itself
) -> Ragged:
    """Label skew, every sample used exactly once: for each class y, p_y ~ Dir_N(alpha); client i gets a p_{y,i} share.

    With `label_groups` the classes are thrown together at random into so many groups of about as many classes, and each
    group is dealt like one class (CIFAR-10 in Marfoq et al., FedEM, NeurIPS 2021: three groups, alpha = 0.4).
    The shares are drawn anew, at most `attempts` times, until every client has `min_samples`; 0 allows empty clients.
    Reference: Yurochkin et al., Bayesian Nonparametric Federated Learning, ICML 2019.
    """
    labels, classes = _labels(data, "dirichlet")
    if label_groups is not None:
        if label_groups > classes:
            raise UserError(f"partition dirichlet: label_groups is {label_groups}; allowed: 1 to {classes} classes")
        place = random.permutation(random.key(seed, "partition label group"), classes)
        labels, classes = (place * label_groups // classes)[labels], label_groups
    _enough(len(labels), clients)
    order, _ = by_class(labels, classes, shuffle(len(labels), seed))
    supply = np.bincount(labels, minlength=classes)
    starts = np.cumsum(supply) - supply
    owner = np.empty(len(labels), np.int64)
    for attempt in range(attempts):
        keys = random.key(seed, "partition share", np.arange(classes), attempt)
        edges = np.floor(np.cumsum(random.dirichlet(keys, clients, alpha), axis=1) * supply[:, None]).astype(np.int64)
        edges[:, -1] = supply
        # the edges of a class, moved to where the class starts in `order`, form one ascending line over all classes
        owner[order] = np.searchsorted((edges + starts[:, None]).ravel(), np.arange(len(labels)), "right") % clients
        short = np.bincount(owner, minlength=clients) < min_samples
        if not short.any():
            break
    else:
        advice = "raise alpha, or lower clients or min_samples"
        _refuse(short, "dirichlet", f"have fewer than {min_samples} samples after {attempts} draws; {advice}")
    return Ragged.from_owner(owner, clients)


@spelt
def dirichlet_equal(
    data: Data,
    clients: Count,
    seed: int,
    *,
    alpha: Finite,  # of the Dirichlet law: small ones give few classes to a client
    sizes: Annotated[ArrayLike, Range(1, 2**53)] | None = None,  # samples: one, or one a client; none: n // N
    replace: bool = True,  # whether clients may share samples
    part: Part = "train",
) -> Ragged:
    """Label skew with chosen sizes: pi_i ~ Dir_C(alpha); client i holds floor(pi_{i,c} n_i) samples of class c.

    The remainder goes to the last class; alpha = 0 means one class a client, in turn. `sizes` (one, or one a client)
    defaults to n // N; the test part holds n_i // 5, at least 1, of the same pi_i (a function of seed, client and C).
    Samples are drawn with replacement inside their class, independently for each client. With `replace=False` no sample
    is used twice, and where a class runs out, its unlucky draws take samples left over by the other classes.
    Reference: Hsu et al., arXiv:1909.06335, as in Fraboni et al., Clustered Sampling, ICML 2021.
    """
    labels, classes = _labels(data, "dirichlet_equal", part)
    given = np.asarray(len(data) // clients if sizes is None else sizes, np.float64).astype(np.int64)
    if given.shape not in ((), (clients,)):
        raise UserError(
            f"partition dirichlet_equal: {given.size} sizes for {clients} clients; give one, or one a client"
        )
    _refuse(np.broadcast_to(given < 1, clients), "dirichlet_equal", "have no sample; use fewer clients or larger sizes")
    counts = np.broadcast_to(given if part == "train" else np.maximum(given // 5, 1), clients)
    check_room("partition dirichlet_equal: so many samples", 4 * float(counts.sum(dtype=float)))
    if not replace and counts.sum() > len(labels):
        raise UserError(
            f"partition dirichlet_equal ({part}): {counts.sum()} samples asked without replacement, {len(labels)} exist"
        )
    ids = np.arange(clients)
    mixture = np.eye(classes)[ids % classes]
    if alpha > 0:
        mixture = random.dirichlet(random.key(seed, "partition mixture", ids), classes, alpha)
    wanted = np.floor(mixture * counts[:, None]).astype(np.int64)
    wanted[:, -1] = counts - wanted[:, :-1].sum(axis=1)

    supply = np.bincount(labels, minlength=classes)
    if replace and (missing := np.flatnonzero((wanted.sum(axis=0) > 0) & (supply == 0))).size:
        raise UserError(f"partition dirichlet_equal ({part}): no sample of class {missing[0]} exists; drop the class")
    offsets = np.concatenate([[0], np.cumsum(counts)])
    label = np.repeat(np.tile(np.arange(classes), clients), wanted.ravel())  # [total] class of every slot
    slot = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    keys = random.key(seed, f"partition {part}", np.repeat(ids, counts), slot)
    order, _ = by_class(labels, classes, shuffle(len(labels), seed))
    start = np.cumsum(supply) - supply
    if replace:
        return Ragged(offsets, order[start[label] + random.integers(keys, 1, supply[label])[:, 0]])
    slots, rank = by_class(label, classes, keys)  # in every class chance decides who is served first
    served = rank < supply[label[slots]]
    values = np.full(len(label), -1)
    values[slots[served]] = order[(start[label[slots]] + rank)[served]]
    left = np.setdiff1d(order, values)
    spare = random.subset(random.key(seed, f"partition left {part}"), int((~served).sum()), len(left))
    values[slots[~served]] = left[spare]
    return Ragged(offsets, values)


@spelt
def pachinko(
    data: Data,
    clients: int,
    seed: int,
    *,
    alpha: Positive = 0.4,  # of the Dirichlet law over superclasses
    beta: Positive = 10.0,  # of that over the classes of one
    samples: Count | None = None,  # of each client; none: n // N
    superclasses: Annotated[ArrayLike, Range(least=0)] | None = None,  # that of every class; none: the dataset's own
) -> Ragged:
    """Label skew by superclass: client i draws a mixture Dir(alpha) of superclasses and in each a mixture Dir(beta) of
    its classes; each of its `samples` (default: n // N) is a superclass, then a class, then a sample nobody has yet.

    Clients are served in turn. A class that is used up, and a superclass all of whose classes are, is drawn no more.
    `superclasses` gives that of every class; without it the dataset must know (CIFAR-100 does).
    Reference: Li, McCallum, Pachinko Allocation, ICML 2006, as in Reddi et al., Adaptive Federated Optimization, ICLR
    2021, appendix F.
    """
    labels, classes = _labels(data, "pachinko")
    each = len(labels) // max(1, clients) if samples is None else samples
    if not (clients >= 1 and each >= 1 and clients * each <= len(labels)):
        raise UserError(f"partition pachinko: {each} samples for each of {clients} clients; {len(labels)} exist")
    parent = _superclasses(data, classes, superclasses)
    family = np.eye(parent.max() + 1)[parent]  # [C, S] 1 where a class is in a superclass
    ids = np.arange(clients)
    coarse = random.dirichlet(random.key(seed, "partition superclass", ids), family.shape[1], alpha)
    fine = np.maximum(random.dirichlet(random.key(seed, "partition class", ids), classes, beta), np.finfo(float).tiny)
    order, _ = by_class(labels, classes, shuffle(len(labels), seed))
    supply = np.bincount(labels, minlength=classes)
    start, used = np.cumsum(supply) - supply, np.zeros(classes, np.int64)
    rows = []
    for client in range(clients):
        row: list[IntArray] = []
        while (missing := each - sum(map(len, row))) > 0:
            left = fine[client] * (used < supply)
            among = left @ family  # [S]
            shares = np.maximum(coarse[client], np.finfo(float).tiny) * (among > 0)
            chance = np.cumsum(left / np.where(among > 0, among, 1)[parent] * shares[parent])
            luck = random.uniform(random.key(seed, "partition pachinko", client, len(row)), missing)
            drawn = np.minimum(np.searchsorted(chance, luck * chance[-1], "right"), np.flatnonzero(left)[-1])
            taken = used[drawn] + times_before(drawn, classes)
            short = np.flatnonzero(taken >= supply[drawn])  # from there on the mixture is another
            end = short[0] if len(short) else missing
            row.append(order[(start[drawn] + taken)[:end]])
            used += np.bincount(drawn[:end], minlength=classes)
        rows.append(np.concatenate(row))
    return Ragged.from_rows(rows)


@spelt
def split(rows: Ragged, test_fraction: Held, seed: int) -> tuple[Ragged, Ragged]:
    """(train, test) of every client: round(test_fraction * n_i) of its samples are for testing, at most n_i - 1.

    Which ones depends on the client and its own samples alone. A sample that a client holds several times is never on
    both sides, so its test row may be a little shorter.
    """
    counts = rows.counts
    owner = np.repeat(np.arange(len(rows)), counts)
    keys = random.key(seed, "split", owner, rows.values)
    order = np.lexsort((keys, owner))
    ends = np.append((np.diff(keys[order]) != 0) | (np.diff(owner) != 0), True)  # of a run of copies of one sample
    last = np.flatnonzero(ends)[np.cumsum(ends) - ends] - rows.offsets[owner]  # the rank where a sample's run ends
    tests = np.minimum(np.floor(test_fraction * counts + 0.5).astype(np.int64), np.maximum(counts - 1, 0))
    testing = np.empty(len(owner), bool)
    testing[order] = last < tests[owner]
    return filtered(rows, owner, ~testing), filtered(rows, owner, testing)


PARTITIONS: dict[str, Callable[..., Ragged]] = {
    function.__name__: function
    for function in (iid, gaussian_sizes, natural, one_class, shards, dirichlet, dirichlet_equal, pachinko)
}


def _labels(data: Data, partition: str, part: Part = "train") -> tuple[IntArray, int]:
    """Labels of the part as integers, and the number of classes."""
    if not isinstance(data, Dataset):
        if part == "test":
            raise UserError(f"partition {partition}: the test part needs a Dataset, not bare labels")
        labels = np.asarray(data, np.int64)
        classes = int(labels.max(initial=-1)) + 1
    elif data.num_classes is None:
        raise UserError(f"partition {partition}: dataset {data.name} has no class labels; use iid or gaussian_sizes")
    elif part == "test" and data.test_targets is None:
        raise UserError(f"partition {partition}: dataset {data.name} has no central test set; use split instead")
    else:
        targets = trees.one_tensor(f"partition {partition}:", data.targets if part == "train" else data.test_targets)
        labels = np.asarray(targets, np.int64)
        classes = data.num_classes
    if labels.ndim != 1 or labels.min(initial=0) < 0 or labels.max(initial=-1) >= classes:
        raise UserError(f"partition {partition}: labels must be one integer of 0 to {classes - 1} a sample")
    return labels, classes


def _superclasses(data: Data, classes: int, given: ArrayLike | None) -> IntArray:
    """`[C]` the superclass of every class."""
    known = data.facts.get("coarse_of_fine") if isinstance(data, Dataset) else None
    if given is None and known is None:
        raise UserError("partition pachinko: superclasses are not known; give that of every class, or use dirichlet")
    parent = np.asarray(known if given is None else given, np.float64)
    most = max(classes, 1000)
    if parent.shape != (classes,) or not ((parent >= 0) & (parent < most)).all():
        raise UserError(f"partition pachinko: superclasses must be {classes} numbers from 0 to {most - 1}, one a class")
    return parent.astype(np.int64)


def _enough(samples: int, clients: int) -> None:
    if not 1 <= clients <= samples:
        raise UserError(f"partition: {clients} clients for {samples} samples; allowed: 1 to {samples}")


def _refuse(bad: NDArray[np.bool_], partition: str, complaint: str) -> None:
    """Name the first offending clients."""
    if bad.any():
        names = ", ".join(map(str, np.flatnonzero(bad)[:5]))
        more = f" and {bad.sum() - 5} more" if bad.sum() > 5 else ""
        raise UserError(f"partition {partition}: clients {names}{more} {complaint}")
