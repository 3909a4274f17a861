"""FEM-OMD: the clients learn a few models together, and each foretells how it should weigh them.

Marfoq's thesis (2023), section 4.4, algorithm 17 (classifiers), with one round of a server for a step. For densities of
any kind, several rounds of EM a step and the regret, see `turnout_studies.online`.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.algorithms.fedem import FedEM
from turnout.core.allowed import Count, Positive
from turnout.local.mixture import Least, MixtureSGD, OnlineMixtureSGD


@dataclass
class FEMOMD(FedEM):
    """As FedEM, for samples that change from round to round (a stream with the memory `latest`): an invited client
    explains what it has from equal weights, in `em_steps` updates, trains every component on its share, and goes from
    the weights pi it has played to the next ones by a step of online mirror descent,

        pi[m] <- pi[m] exp(-eta g[m]) / sum of the same,    g[m] = -mean over its samples of p_m / sum_l pi[l] p_l,

    eta = `scale` sqrt(log M / t) at its t-th time; none falls below `min_weight`. What it serves after a round is what
    it plays in the next; one never seen has no past to foretell from, and finds its weights as in FedEM. Components are
    not averaged over time, which would stifle steps of SGD.
    """

    reads_updates = False

    min_weight: Least = 0.01  # least weight that a client gives a component
    em_steps: Count = 1  # updates in which a client explains its samples
    scale: Positive = 0.1  # of the steps of mirror descent

    def own_work(self) -> MixtureSGD:
        options = {"min_weight": self.min_weight, "weight_steps": self.em_steps, "scale": self.scale}
        return OnlineMixtureSGD.extend(self.local, components=self.components, **options)
