"""Every sampler, and where it is."""

from turnout.sampling._sampler import Sampler, Selection
from turnout.sampling.adafed import AdaFed
from turnout.sampling.afl import AFL
from turnout.sampling.binomial import Binomial
from turnout.sampling.cafed import CAFed
from turnout.sampling.clustered_similarity import ClusteredSimilarity
from turnout.sampling.clustered_size import ClusteredSize
from turnout.sampling.cyclic import Cyclic
from turnout.sampling.f3ast import F3AST
from turnout.sampling.fill import Fill
from turnout.sampling.full import Full
from turnout.sampling.md import MD
from turnout.sampling.more_available import MoreAvailable
from turnout.sampling.oort import Oort
from turnout.sampling.optimal import Optimal
from turnout.sampling.poisson_binomial import PoissonBinomial
from turnout.sampling.power_of_choice import PowerOfChoice
from turnout.sampling.profiled import Profiled
from turnout.sampling.renormalised import Renormalised
from turnout.sampling.target import Target
from turnout.sampling.unbiased import Unbiased
from turnout.sampling.uniform import Uniform

__all__ = [
    "AFL",
    "F3AST",
    "MD",
    "AdaFed",
    "Binomial",
    "CAFed",
    "ClusteredSimilarity",
    "ClusteredSize",
    "Cyclic",
    "Fill",
    "Full",
    "MoreAvailable",
    "Oort",
    "Optimal",
    "PoissonBinomial",
    "PowerOfChoice",
    "Profiled",
    "Renormalised",
    "Sampler",
    "Selection",
    "Target",
    "Unbiased",
    "Uniform",
]  # fmt: skip
