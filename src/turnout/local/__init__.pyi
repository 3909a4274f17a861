"""What one client computes, and where each name is."""

from turnout.local.modifiers import ControlVariates, Modifier, Proximal, SharpnessAware
from turnout.local.optimisers import SGD, Adagrad, Adam, AdamW, Optimiser, RMSprop
from turnout.local.personaliser import KNNPersonaliser
from turnout.local.schedules import Cosine, RoundCosine, RoundExponential, RoundStep, RoundWarmup, Schedule, Warmup
from turnout.local.serving import FineTuned, GlobalModel, Neighbours, Serve
from turnout.local.sgd import Batch, ClientData, LocalSGD
from turnout.local.transforms import MODIFIERS, Clip, Noise, Quantise, TopK, Transform

__all__ = [
    "MODIFIERS", "SGD", "Adagrad", "Adam", "AdamW", "Batch", "ClientData", "Clip", "ControlVariates", "Cosine",
    "FineTuned", "GlobalModel", "KNNPersonaliser", "LocalSGD", "Modifier", "Neighbours", "Noise", "Optimiser",
    "Proximal", "Quantise", "RMSprop", "RoundCosine", "RoundExponential", "RoundStep", "RoundWarmup", "Schedule",
    "Serve", "SharpnessAware", "TopK", "Transform", "Warmup",
]  # fmt: skip
