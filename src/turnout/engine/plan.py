"""How a run's local work is computed: decided once, from what was configured, and written into the run."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from turnout.core import trees
from turnout.core.allowed import OneOf, Range
from turnout.core.errors import UserError
from turnout.core.spelling import Spelt
from turnout.core.trees import Tree
from turnout.engine.convolutions import FORMS, HAS_TRITON, OURS
from turnout.local.exchange import count_numbers
from turnout.local.sgd import LocalSGD
from turnout.task.task import Task

MIB = 1 << 20
ENGINES = ("auto", "vectorised", "sequential", "ray")
PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "tf32": torch.float32, "bf16": torch.float32}
KERNELS = ("auto", "general")


@dataclass(frozen=True)
class Plan(Spelt):
    """Every choice that can change a bit of the result. The same plan on the same machine gives the same bits."""

    section: ClassVar[str] = "engine"

    device: str = "cpu"  # cpu, cuda or cuda:1
    engine: Annotated[str, OneOf(ENGINES)] = "auto"  # whether clients are computed together, and where
    precision: Annotated[str, OneOf(tuple(PRECISIONS))] = "float32"  # of parameters, products and values between layers
    threads: Annotated[int, Range(0, 1024)] = 0  # 0: all cores, written into the run; with ray, one for each worker
    memory_mib: Annotated[int, Range(1, 2**40)] = 2048  # that a call holds at most, measured; one client at least
    kernels: Annotated[str, OneOf(KERNELS)] = "auto"  # of plain SGD: written out for common layers, or general
    convolution: Annotated[str, OneOf(("auto", *FORMS))] = "auto"  # which form of it
    graphs: bool = True  # on CUDA: replay captured graphs
    blocks: Annotated[int, Range(1, 2**20)] = 16  # ray: parts a training call is cut into, no fewer than workers
    address: str = ""  # ray: of a cluster, `auto` or host:port; "": started on this machine. It changes no bit
    workers: Annotated[int, Range(0, 2**20)] = 0  # ray: 0: as many as there are cores for. It changes no bit

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
        if self.convolution in OURS and (device.type == "cpu" or not HAS_TRITON):
            raise UserError(f"engine.convolution: {self.convolution} is for a CUDA device with Triton; take auto")
        if self.convolution == "implicit" and self.precision == "float64":
            raise UserError("engine.convolution: implicit does not compute in float64; take auto")
        return self.with_threads()

    def clients_a_call(self, task: Task, work: LocalSGD, batch_bytes: int, measured: int = 0) -> int:
        """Count the clients that one vectorised call may train within the memory budget, at least one: parameter-sized
        vectors, and a batch's inputs and activations with their gradients, or what was measured of one if that is
        more."""
        vectors = 5 + sum(len(shapes) for shapes in (work.sends(task), work.trained_shapes(task)))
        vectors += work.optimiser_vectors(task)
        return max(1, self.memory_mib * MIB // (vectors * task.initial.nbytes + max(3 * batch_bytes, measured)))

    def results_kept(self, task: Task, work: LocalSGD) -> int:
        """Count the trained results that may wait for the clock to reach them."""
        numbers = count_numbers(work.sends(task))
        return max(1, self.memory_mib * MIB // (task.initial.element_size() * max(1, numbers)))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "torch": torch.__version__}


def stays(plan: Plan, pool: Tree) -> bool:
    """Say whether samples stay where they are, in the numbers they have, and become the engine's a batch at a time:
    on a CPU, whose memory or files they are in, and where they would fill half of a CUDA device."""
    if plan.device == "cpu":
        return True
    return bool(trees.whole_bytes(pool) > torch.cuda.get_device_properties(plan.device).total_memory // 2)


def computing_on(plan: Plan, may_attend: bool) -> AbstractContextManager[Any]:
    """Compute on the plan's device; the current device and these settings are the process's. Where a model `may_attend`
    attention has the one form that CUDA can compute for many clients at once, and that gives the same bits twice."""
    if plan.device == "cpu":
        return nullcontext()
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32 = plan.precision == "tf32"
    now: Any = None
    with suppress(RuntimeError):  # set in a way that these cannot tell
        now = (products.allow_tf32, convolutions.allow_tf32, convolutions.deterministic, convolutions.benchmark)
    if now != (tf32, tf32, True, False):
        products.allow_tf32 = convolutions.allow_tf32 = tf32
        convolutions.deterministic, convolutions.benchmark = True, False
    with ExitStack() as stack:
        if plan.device != "cuda":
            stack.enter_context(torch.cuda.device(plan.device))
        if may_attend:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        return stack.pop_all()
