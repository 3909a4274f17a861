"""Local work that is not torch: a Python function of the arrays received and a client's own samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turnout.core.allowed import Range
from turnout.core.errors import UserError
from turnout.core.imports import name_of
from turnout.local.modifiers import Modifier
from turnout.local.sgd import LocalSGD
from turnout.task.arrays import Arrays, EnsembleTask
from turnout.task.task import Task

Function = Callable[[Arrays, Any, Any, np.random.Generator], tuple[Any, int]]


@dataclass(frozen=True, init=False)
class PythonWork(LocalSGD):
    """Let a Python function train: scikit-learn, NumPy, boosted trees, or a loop of one's own.

    >>> def fit(arrays, inputs, targets, key):
    ...     model = SGDClassifier(random_state=int(key.integers(2**31)))
    ...     model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
    ...     model.partial_fit(inputs, targets, classes=range(10))
    ...     return {"coef": model.coef_, "intercept": model.intercept_}, len(inputs)
    >>> turnout.FedAvg(turnout.PythonWork(fit))

    `function(arrays, inputs [n, ...], targets [n, ...], key) -> (arrays, samples)` is given its own copies of the
    arrays received (of a torch model its parameters by name) and of the client's samples, and a NumPy generator that
    the job alone decides: nothing else may be random. It returns arrays of the same names and shapes, and how many of
    the samples it has used: an update counts by that share of them. Of an `EnsembleTask` it returns the new members.

    It is called once a job. In time that is `epochs` passes over the samples, each one step. Modifiers can act on what
    is sent; there are no gradients to change.
    """

    section: ClassVar[str] = "PythonWork"

    called: str = ""  # the name of the function: by it a resumed run finds it again
    place: int | NDArray[np.int64] = 0  # of an ensemble: where this job's members go
    sent: int | None = None  # of an ensemble: the members that go out; None: not known, as many as there is room for
    function: Function | None = field(default=None, metadata={"saved": False})

    def __init__(
        self,
        function: Function,
        *,
        epochs: Annotated[int, Range(0, 10**9)] = 1,  # passes over the samples that a call takes, in time
        modifiers: Sequence[Modifier] = (),  # of what is sent: see `turnout.local.transforms`
    ) -> None:
        if not callable(function):
            raise UserError(f"PythonWork.function: {function!r} is not a function")
        given = {"lr": 0.0, "batching": "full", "epochs": epochs, "modifiers": modifiers}
        given |= {"function": function, "called": name_of(function)}
        for part in fields(self):
            made = part.default if part.default_factory is MISSING else part.default_factory()
            object.__setattr__(self, part.name, given.get(part.name, made))
        self.__post_init__()
        self._check_modifiers()

    def modified(self, *more: Modifier) -> Self:
        work = super().modified(*more)
        work._check_modifiers()
        return work

    def _check_modifiers(self) -> None:
        for modifier in self.active:
            raise UserError(
                f"local.modifiers: {type(modifier).__name__} acts on the steps of a training by gradients, and "
                f"{self.called} is a Python function; leave it out, or take a method without it"
            )

    def effective_steps(self, steps: ArrayLike) -> NDArray[np.float64]:
        raise UserError(f"fednova: it counts steps of SGD, and {self.called} is a Python function")

    def download_numbers(self, task: Task) -> int:
        if not isinstance(task, EnsembleTask):
            return super().download_numbers(task)
        return task.member_numbers * (task.capacity if self.sent is None else self.sent)

    def upload_numbers(self, task: Task) -> int:
        return task.member_numbers * task.a_job if isinstance(task, EnsembleTask) else super().upload_numbers(task)

    def found_among(self, works: Iterable[object]) -> None:
        """Take the function of this name from works that have it: after a checkpoint or a message, which hold none."""
        known = (work.function for work in works if isinstance(work, PythonWork) and work.called == self.called)
        if (function := next(known, None)) is None:
            raise UserError(
                f"local: a job trains by the Python function {self.called}, which the algorithm given does not have; "
                "give a PythonWork of it"
            )
        object.__setattr__(self, "function", function)


def find_functions(jobs_work: Iterable[LocalSGD], holder: object) -> None:
    """Give works that were saved or sent their functions again, from an algorithm's."""
    for work in jobs_work:
        if isinstance(work, PythonWork) and work.function is None:
            work.found_among(vars(holder).values())
