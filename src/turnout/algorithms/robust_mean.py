"""FedAvg with a robust mean: some of the clients may send anything.

The rules and their papers are in `turnout.aggregation.rules`. With `buckets` the rule sees the means of random
buckets, whose rows differ less: Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via
bucketing", ICLR 2022.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields

from turnout.aggregation.rules import RULES, Rule, RuleName, Trim
from turnout.algorithms.fedavg import FedAvg
from turnout.core.allowed import Count, Positive, WholeNumber
from turnout.core.errors import UserError

OPTIONS = ("trim", "liars", "keep", "radius", "iterations")


@dataclass
class RobustMean(FedAvg):
    """`model <- model + server_lr * W * rule({omega_i / W, returned_i - model})`, W the sum of omega_i.

    `rule` is one of `turnout.aggregation.rules.RULES`; with `mean` this is FedAvg. What a rule is to know: `trim`,
    the share of values a trimmed_mean leaves out on either side; `liars`, how many krum and multi_krum expect, and
    `keep`, of how many rows multi_krum is the mean; `radius` of a clipping; `iterations` of centred_clipping, which
    begins at the last result, and of the geometric_median.
    """

    rule: RuleName = field(default="coordinate_median", kw_only=True)  # what combines the updates
    buckets: WholeNumber = 0  # random groups whose means the rule sees; 0: every update by itself
    trim: Trim | None = None  # trimmed_mean: share of the values left out on either side
    liars: WholeNumber | None = None  # krum, multi_krum: clients that may send anything
    keep: Count | None = None  # multi_krum: rows the mean is of; none: all but the liars
    radius: Positive | None = None  # of a clipping: the largest norm
    iterations: Count | None = None  # of centred_clipping, and of the geometric_median

    def own_rule(self) -> Rule:
        """The rule of that name with the options given."""
        kind = RULES[self.rule]
        given = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        known = {part.name: part.default for part in fields(kind)}
        for name in OPTIONS:
            if name in given and name not in known:
                raise UserError(f"algorithm.{name}: rule {self.rule} does not take it; leave it out")
            if name not in given and known.get(name) is MISSING:
                raise UserError(f"algorithm.{name}: missing; rule {self.rule} needs it")
        return kind(**given, buckets=self.buckets)
