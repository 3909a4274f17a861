"""What a task is made of, and where each is."""

from turnout.task.losses import Bce, CrossEntropy, Dice, Focal, NextToken, Nll
from turnout.task.metrics import TopK
from turnout.task.norms import Averaged, BatchNorm, Fixed, Frozen, Local, LocalStatistics, OfBatch
from turnout.task.samples import Crop, Cutout, Flip, Noise, Normalise, Pixels
from turnout.task.set_metrics import Auc, AveragePrecision, CalibrationError

__all__ = [
    "Auc", "AveragePrecision", "Averaged", "BatchNorm", "Bce", "CalibrationError", "Crop", "CrossEntropy", "Cutout",
    "Dice", "Fixed", "Flip", "Focal", "Frozen", "Local", "LocalStatistics", "NextToken", "Nll", "Noise", "Normalise",
    "OfBatch", "Pixels", "TopK",
]  # fmt: skip
