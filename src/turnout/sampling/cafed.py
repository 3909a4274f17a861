"""CA-Fed: leave out the clients that cost more convergence than they return in bias.

Rodio, Faticanti, Marfoq, Neglia, Leonardi, "Federated learning under heterogeneous and correlated client
availability", INFOCOM 2023; Marfoq's thesis, section 2.2.4 (algorithm 6, whose lines are named here).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from turnout.clients.columns import PerClient, column
from turnout.core.allowed import Count, Finite, Fraction, Share
from turnout.core.errors import UserError
from turnout.local.answers import BatchLossReport
from turnout.sampling._presence import Presence
from turnout.sampling._sampler import FloatArray, IntArray, Selection

if TYPE_CHECKING:
    from turnout.server.server import Server

_NOTHING = 1e-12  # a gain that is none


def _no_numbers() -> FloatArray:
    return np.zeros(0)


@dataclass
class CAFed(Presence):
    """Everybody online reports the loss of one batch under the current model. Then, with q_k = alpha_k / pi_k for the
    clients kept and p_k in proportion to pi_k q_k, clients are dropped one by one while that lessens

        sum_k p_k gap_k  +  4 bias_weight d_TV(alpha, p)^2 max_k gap_k        gap_k = loss_k - floor_k

    by more than `tolerance`: first in the order of |lambda|, largest first, then in the order of pi, smallest first;
    each decides ties of the other. Who is kept and online trains. All clients are judged in every round, by the last
    they said; one that has said nothing yet counts as the mean of the others.

    `bias_weight` is the paper's kappa^2: large ones make it `unbiased`, small ones drop many. `loss_smoothing` is the
    weight of the newest loss. `floor` of a loss: the lowest so far (`running_min`, which mostly measures forgetting), 0
    (`zero`), or the client's own optimum (`local_optimum`, given as `optima`). No more than `max_excluded_fraction` of
    the clients are dropped, and never all. `renormalise` divides by the importance that is kept, so that the weights
    still sum to 1 on average; False is the paper, whose steps are shorter the more clients are dropped. The server
    learns a loss of every client.
    """

    depends_on = "the losses"

    bias_weight: Finite = 1.0  # kappa^2: large ones drop nobody, small ones many
    batch_size: Count = 32  # samples of the batch whose loss is reported
    loss_smoothing: Fraction = 1.0  # weight of the newest loss
    tolerance: Finite = 0.0  # by which dropping a client must lessen the bound
    floor: Literal["running_min", "zero", "local_optimum"] = "running_min"  # of a loss
    optima: PerClient | None = None  # of local_optimum: one, or one a client
    max_excluded_fraction: Share = 1.0  # share of the clients that may be dropped
    renormalise: bool = True  # whether weights still sum to 1 on average
    losses: FloatArray = field(default_factory=_no_numbers, init=False)  # [N] smoothed; NaN: none yet
    lowest: FloatArray = field(default_factory=_no_numbers, init=False)  # [N] of these
    excluded: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), init=False)  # [N] in the last round

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.floor == "local_optimum") != (self.optima is not None):
            raise UserError(f"sampler.optima: floor {self.floor}; local_optimum needs them, the others do not")

    def begin(self, server: Server) -> None:
        super().begin(server)
        size = server.population.size
        self.losses, self.lowest, self.excluded = np.full(size, np.nan), np.full(size, np.inf), np.zeros(size, bool)

    def sample(self, server: Server) -> Selection:
        here, reported = self.ask(server, self.watch(server))  # line 3
        self.losses[server.importance == 0] = np.nan  # who has left has no say
        self.remember(here, reported)  # line 4
        importance, pi = server.importance, self.availability(server)
        kept = self.keep(server, pi)  # lines 6 and 7
        q = importance / pi  # line 5
        if self.renormalise:
            q /= 1 - importance[~kept].sum()
        here = here[kept[here]]
        return Selection(here, q[here], informed=True)

    def ask(self, server: Server, here: IntArray) -> tuple[IntArray, FloatArray]:
        """Who answered, with which loss. A client whose loss is no number does not train, but was online."""
        answers = self.answers_of(server, here, BatchLossReport(batch_size=self.batch_size))
        if not len(answers):
            return answers.clients, np.zeros(0)
        losses = answers["loss"].double().cpu().numpy()
        fine = np.isfinite(losses)
        for client in answers.clients[~fine].tolist():
            server.log("rejected_report", client=client, why="not finite")
        return answers.clients[fine], losses[fine]

    def remember(self, here: IntArray, reported: FloatArray) -> None:
        """loss <- (1 - beta) loss + beta reported; those not here keep theirs."""
        if not len(here):
            return
        known = np.isfinite(self.losses)
        last = np.where(known[here], self.losses[here], self.losses[known].mean() if known.any() else reported)
        self.losses[here] = (1 - self.loss_smoothing) * last + self.loss_smoothing * reported
        self.lowest[here] = np.minimum(self.lowest[here], self.losses[here])

    def gaps(self, ids: IntArray) -> FloatArray:
        """`[N]` how far each loss is above its floor."""
        known = np.isfinite(self.losses)
        if not known.any():
            return np.zeros(len(ids))
        losses = np.where(known, self.losses, self.losses[known].mean())
        if self.floor == "running_min":
            floors = np.where(known, self.lowest, losses)
        else:
            floors = column("sampler.optima", 0.0 if self.optima is None else self.optima, ids)
        gaps: FloatArray = np.maximum(losses - floors, 0)
        return gaps

    def keep(self, server: Server, pi: FloatArray) -> NDArray[np.bool_]:
        """`[N]` who is kept; says so where that has changed."""
        ids, importance = server.population.ids, server.importance
        matter = ids[importance > 0]
        most = min(int(round(self.max_excluded_fraction * len(matter), 9)), max(0, len(matter) - 1))
        gaps = np.where(importance > 0, self.gaps(ids), 0.0)
        pruning = Pruning(importance, gaps, self.bias_weight, self.tolerance, most)
        strength = np.abs(self.correlation(server))
        gains: dict[int, float] = {}
        for first, then in ((-strength, pi), (pi, -strength)):
            gains |= pruning.drop(matter[np.lexsort((then[matter], first[matter]))].tolist())
        excluded = np.isin(ids, list(gains))
        for client in ids[excluded & ~self.excluded].tolist():
            facts = f"correlation {strength[client]:.3g}, availability {pi[client]:.3g}, gain {gains[client]:.3g}"
            server.log("excluded", client=client, why=facts)
        for client in ids[self.excluded & ~excluded].tolist():
            server.log("readmitted", client=client)
        self.excluded = excluded
        return ~excluded


class Pruning:
    """The proxy error of the clients kept, and whom it is better off without (lines 16 to 26).

    Since pi_k q_k = alpha_k for everybody kept, p is alpha / (1 - dropped) on these, where `dropped` is the importance
    of the others; and d_TV(alpha, p) = dropped. So a candidate costs O(1).
    """

    def __init__(
        self, importance: FloatArray, gaps: FloatArray, bias_weight: float, tolerance: float, most: int
    ) -> None:
        self.importance, self.gaps = importance.tolist(), gaps.tolist()
        self.scale, self.least = 4 * bias_weight * float(gaps.max()), max(tolerance, _NOTHING)
        self.most = most  # how many may go
        self.gone: set[int] = set()
        self.dropped, self.gap = 0.0, float(importance @ gaps)
        self.error = self._error(self.dropped, self.gap)

    def _error(self, dropped: float, gap: float) -> float:
        """`gap` is the sum of alpha_k gap_k over those kept."""
        return gap / (1 - dropped) + self.scale * dropped**2

    def drop(self, order: Iterable[int]) -> dict[int, float]:
        """Drop, in that order, each client without whom the error is less: by how much it is."""
        gains: dict[int, float] = {}
        for client in order:
            dropped = self.dropped + self.importance[client]
            if client in self.gone or len(self.gone) >= self.most or dropped >= 1:
                continue
            gap = self.gap - self.importance[client] * self.gaps[client]
            error = self._error(dropped, gap)
            gain = self.error - error
            if gain > self.least:
                self.dropped, self.gap, self.error = dropped, gap, error
                self.gone.add(client)
                gains[client] = gain
        return gains
