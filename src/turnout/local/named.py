"""Modifiers that a configuration can name."""

from __future__ import annotations

from turnout.local.modifiers import ControlVariates, Modifier, Proximal, SharpnessAware
from turnout.local.transforms import Clip, Noise, Quantise, TopK

MODIFIERS: dict[str, type[Modifier]] = {
    "proximal": Proximal,
    "control_variates": ControlVariates,
    "sharpness_aware": SharpnessAware,
    "clip": Clip,
    "noise": Noise,
    "top_k": TopK,
    "quantise": Quantise,
}
