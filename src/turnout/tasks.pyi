"""What a task is made of, and where each is."""

from turnout.task.losses import Bce, CrossEntropy, Dice, Focal, NextToken, Nll
from turnout.task.metrics import TopK
from turnout.task.samples import Crop, Cutout, Flip, Noise, Normalise, Pixels

__all__ = [
    "Bce", "Crop", "CrossEntropy", "Cutout", "Dice", "Flip", "Focal", "NextToken", "Nll", "Noise", "Normalise",
    "Pixels", "TopK",
]  # fmt: skip
