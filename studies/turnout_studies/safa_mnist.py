"""How accurate is SAFA when clients crash? MNIST with a convolutional network; meant for a CUDA device.

Wu et al., "SAFA: a semi-asynchronous protocol for fast federated learning with low overhead", IEEE Transactions on
Computers 2021; Wu's thesis (Warwick), tables A.3 and A.4.
"""

from __future__ import annotations

import numpy as np

from turnout.core.random import FloatArray
from turnout_studies.safa_accuracy import THESIS, SafaTraining, Size, all_clients, best_accuracy, between, whole_mean
from turnout_studies.safa_time import cells
from turnout_studies.study import Claim, Results


def _drop(results: Results, scheme: str) -> FloatArray:
    """Best accuracy at the lowest crash rate minus that at the highest, with the smallest fraction."""
    grid = cells(results, best_accuracy, "mnist", scheme)
    return np.asarray(grid[:, 0, 0] - grid[:, -1, 0])


def _highest_crash_rate(grid: FloatArray) -> FloatArray:
    return np.asarray(grid[:, -1, 0])


CLAIMS = (
    Claim(
        "SAFA is flat",
        "SAFA's accuracy hardly falls with the crash rate (C = 0.1: 0.9748 at 0.1, 0.9604 at 0.7).",
        THESIS,
        "best accuracy of SAFA at crash rate 0.1 minus that at 0.7 (published: 0.0144)",
        lambda results: _drop(results, "safa"),
        below=0.03,
    ),
    Claim(
        "FedAvg is not",
        "FedAvg's accuracy falls by more (C = 0.1: 0.9407 at 0.1, 0.8818 at 0.7).",
        THESIS,
        "the same drop of FedAvg minus that of SAFA (published: 0.0445)",
        lambda results: _drop(results, "fedavg") - _drop(results, "safa"),
        above=0,
    ),
    *(
        Claim(
            f"SAFA over {scheme} when most crash",
            f"At crash rate 0.7 and C = 0.1 SAFA is more accurate than {scheme}.",
            THESIS,
            f"best accuracy, SAFA minus {scheme}",
            between("safa", scheme, "mnist", _highest_crash_rate),
            above=0,
        )
        for scheme in ("fedavg", "fedcs", "local")
    ),
    *(
        Claim(
            f"SAFA over {scheme} on the whole grid",
            f"SAFA reaches a higher accuracy than {scheme}.",
            THESIS,
            f"best accuracy, SAFA minus {scheme}, mean over the grid",
            between("safa", scheme, "mnist", whole_mean),
            above=0,
        )
        for scheme in ("fedavg", "local")
    ),
    Claim(
        "all clients",
        "With C = 1 FedAvg may win slightly.",
        THESIS,
        "best accuracy, SAFA minus FedAvg, at C = 1, mean over crash rates",
        between("safa", "fedavg", "mnist", all_clients),
        above=-0.01,
        below=0.01,
    ),
)


class SafaMnist(SafaTraining):
    name = "safa_mnist"
    title = "Accuracy of SAFA, FedAvg, FedCS and local training on MNIST when clients crash"
    source = "Wu et al., SAFA, IEEE Transactions on Computers 2021; thesis tables A.3 and A.4"
    setting = """\
Task 2: MNIST, raw pixels, two convolutional layers (5x5x20, 5x5x50), 500 hidden units; 100 clients, 50 rounds of 5
epochs, batch 40, lr 1e-3; slices of the file with Gaussian sizes, 6/7 of each for training; crash rates 0.1, 0.3, 0.5,
0.7 and fractions 0.1, 0.3, 0.5, 0.7, 1; best accuracy over the rounds on the clients' own test samples. SAFA with the
conventions of the published tables (`safa_thesis`); local training is averaged once, as if the run ended there.
Other than in the source: every tenth image only (about 60 for training a client instead of 600), several seeds; the
best model is not carried over between rounds; no training before round 1."""
    small_data = "black squares in the place of MNIST"
    sizes = {
        "small": Size(tasks=("mnist",), rounds=1, fractions=(0.1,), crash_rates=(0.1, 0.7), stand_in=True),
        "default": Size(tasks=("mnist",), share=0.1),
    }
    claims = CLAIMS


STUDY = SafaMnist()
