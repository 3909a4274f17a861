"""Who listens to a run, and where each name is."""

from turnout.record.tracking import MLflow, TensorBoard
from turnout.record.unlearning import Unlearning
from turnout.record.watch import Screening, Watch

__all__ = [
    "MLflow", "Screening", "TensorBoard", "Unlearning", "Watch",
]  # fmt: skip
