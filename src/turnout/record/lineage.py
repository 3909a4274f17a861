"""Where to roll back to: SIFU's choice of a branch and a round, and what is then left of the training history.

Fraboni, Van Waerebeke, Scaman, Vidal, Kameni, Lorenzi, "SIFU: sequential informed federated unlearning", AISTATS 2024;
Fraboni's thesis (2023), algorithm 7. Branch 0 is the original training, branch r the retraining after request r. The
*lineage* O(r) is the list of cuts (branch, round) through which the model of branch r came to be. Request r looks for
the first cut at which the bound psi of its clients exceeds the threshold psi*, and cuts that branch earlier:

    T_r = max { n : psi(n) <= psi* },      O(r) = the cuts before, and (branch, T_r)

If none exceeds it, the branch now alive is cut. IFU is the first request. The cuts of a branch never move up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Budget = Literal["per_branch", "per_client_total"]
Bound = Callable[[int, int], float]  # psi of some clients, by branch and round


class Cut(NamedTuple):
    branch: int
    round: int


def roll_back(
    lineage: Sequence[Cut],
    stored: Sequence[Sequence[int]],
    bound: Bound,
    threshold: float,
    *,
    budget: Budget = "per_branch",
    earlier: Sequence[Bound] = (),
) -> list[Cut]:
    """The new lineage; its last cut is where to roll back to.

    `stored[s]` are the rounds of branch s whose models are kept, 0 always among them; the last branch is the one alive.
    A bound may fall again (the contracted one does), so the rounds chosen are also checked for the requests `earlier`.
    With the budget `per_client_total` the cuts of a client share one threshold: sqrt(sum psi^2) <= psi*.
    """
    current = Cut(len(stored) - 1, max(stored[-1]))
    kept: list[Cut] = []

    def fits(each: Bound, cut: Cut) -> bool:
        spent = kept if budget == "per_client_total" else []
        return math.hypot(*(each(*one) for one in (*spent, cut))) <= threshold

    for cut in (*lineage, current):
        if cut.branch < current.branch and fits(bound, cut):
            kept.append(cut)
            continue
        earlier_cuts = (Cut(cut.branch, number) for number in sorted(stored[cut.branch], reverse=True))
        candidates = (one for one in earlier_cuts if one.round <= cut.round)
        chosen = next(one for one in candidates if one.round == 0 or all(fits(each, one) for each in (bound, *earlier)))
        return [*kept, chosen]
    raise AssertionError("the branch alive is always cut")


def alive(lineage: Sequence[Cut], branch: int, number: int) -> bool:
    """Whether a model is part of the history that is left: a later request may roll back to it."""
    return any(cut.branch == branch and number <= cut.round for cut in lineage)
