"""What one client computes, written for one client; the cohort engine vectorises it."""

from turnout.local.modifiers import ControlVariates, Modifier, Proximal, SharpnessAware
from turnout.local.sgd import Batch, ClientData, LocalSGD
from turnout.local.transforms import Clip, Noise, Quantise, TopK, Transform

MODIFIERS: dict[str, type[Modifier]] = {
    "proximal": Proximal,
    "sharpness_aware": SharpnessAware,
    "clip": Clip,
    "noise": Noise,
    "top_k": TopK,
    "quantise": Quantise,
}  # that a configuration can name

__all__ = [
    "MODIFIERS",
    "Batch",
    "ClientData",
    "Clip",
    "ControlVariates",
    "LocalSGD",
    "Modifier",
    "Noise",
    "Proximal",
    "Quantise",
    "SharpnessAware",
    "TopK",
    "Transform",
]
