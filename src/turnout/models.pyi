"""The models of the papers, and where each is."""

from turnout.task.models import (
    batchnorm_to_groupnorm,
    char_lstm,
    cnn_cifar,
    cnn_large,
    cnn_mnist,
    linear,
    mlp,
)

__all__ = [
    "batchnorm_to_groupnorm", "char_lstm", "cnn_cifar", "cnn_large", "cnn_mnist", "linear",
    "mlp",
]  # fmt: skip
