"""How a run's local work is computed: decided once, from what was configured, and written into the run."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from turnout.core.errors import UserError
from turnout.core.spelling import Spelt
from turnout.engine.convolutions import FORMS
from turnout.local.sgd import LocalSGD
from turnout.task.task import Task

MIB = 1 << 20
ENGINES = ("auto", "vectorised", "sequential", "ray")
PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "tf32": torch.float32, "bf16": torch.float32}
KERNELS = ("auto", "general")
_RANGES = (("memory_mib", 1, 2**40), ("threads", 0, 1024), ("blocks", 1, 2**20), ("workers", 0, 2**20))


@dataclass(frozen=True)
class Plan(Spelt):
    """Every choice that can change a bit of the result. The same plan on the same machine gives the same bits."""

    device: str = "cpu"  # cpu, cuda or cuda:1
    engine: str = "auto"  # auto, vectorised, sequential or ray
    precision: str = "float32"  # float32, float64, tf32 or bf16
    threads: int = 0  # 0: all cores, counted once and written into the run; with ray, one for each worker
    memory_mib: int = 2048  # for what a training call holds at once
    kernels: str = "auto"  # for plain SGD: written out where the model is a chain of common layers, or the general form
    convolution: str = "auto"  # which form of it, of those in `convolutions.FORMS`
    graphs: bool = True  # on CUDA: replay captured graphs
    blocks: int = 16  # ray: how many parts a training call is cut into; no fewer than workers
    address: str = ""  # ray: of a cluster, `auto` or host:port; "": started on this machine. It changes no bit
    workers: int = 0  # ray: 0: as many as there are cores for. It changes no bit

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"engine.engine: {self.engine!r} is not one of {', '.join(ENGINES)}")
        if self.precision not in PRECISIONS:
            raise UserError(f"engine.precision: {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.kernels not in KERNELS:
            raise UserError(f"engine.kernels: {self.kernels!r} is not one of {', '.join(KERNELS)}")
        if self.convolution not in ("auto", *FORMS):
            raise UserError(f"engine.convolution: {self.convolution!r} is not one of auto, {', '.join(FORMS)}")
        for name, least, most in _RANGES:
            if not least <= getattr(self, name) <= most:
                raise UserError(f"engine.{name}: {getattr(self, name)} must be at least {least} and at most {most}")

    @property
    def dtype(self) -> torch.dtype:
        return PRECISIONS[self.precision]

    def with_threads(self) -> Plan:
        """Fill in the number of threads: all cores of this machine, unless one was given."""
        return replace(self, threads=self.threads or (1 if self.engine == "ray" else os.cpu_count() or 1))

    def resolve(self) -> Plan:
        """Check that this machine has the device, and count its threads; `paths` decides the rest for a model."""
        if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", self.device):
            raise UserError(f"engine.device: {self.device!r} is not a device; write cpu, cuda or cuda:1")
        device = torch.device(self.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"engine.device: {self.device!r} was asked for but this machine has no usable CUDA device")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise UserError(f"engine.device: {self.device!r} is beyond the {torch.cuda.device_count()} of this machine")
        return self.with_threads()

    def clients_a_call(self, task: Task, work: LocalSGD, batch_bytes: int) -> int:
        """How many clients one vectorised call may train within the memory budget: parameter-sized vectors, and a
        batch's inputs and activations with their gradients."""
        vectors = 5 + sum(len(shapes) for shapes in (work.sends(task), work.trained_shapes(task)))
        return max(1, self.memory_mib * MIB // (vectors * task.initial.nbytes + 3 * batch_bytes))

    def results_kept(self, task: Task, work: LocalSGD) -> int:
        """Count the trained results that may wait for the clock to reach them."""
        numbers = sum(torch.Size(shape).numel() for shape in work.sends(task).values())
        return max(1, self.memory_mib * MIB // (task.initial.element_size() * max(1, numbers)))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "torch": torch.__version__}
