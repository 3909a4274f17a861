"""What one client computes, and where each name is."""

from turnout.local.modifiers import ControlVariates, Modifier, Proximal, SharpnessAware
from turnout.local.personaliser import KNNPersonaliser
from turnout.local.serving import FineTuned, GlobalModel, Neighbours, Serve
from turnout.local.sgd import Batch, ClientData, LocalSGD
from turnout.local.transforms import MODIFIERS, Clip, Noise, Quantise, TopK, Transform

__all__ = [
    "MODIFIERS", "Batch", "ClientData", "Clip", "ControlVariates", "FineTuned", "GlobalModel", "KNNPersonaliser",
    "LocalSGD", "Modifier", "Neighbours", "Noise", "Proximal", "Quantise", "Serve", "SharpnessAware", "TopK",
    "Transform",
]  # fmt: skip
