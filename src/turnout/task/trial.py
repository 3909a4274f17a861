"""One gradient that is tried before training: what a model does only then."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.module import register_module_forward_pre_hook

from turnout.core import trees
from turnout.core.errors import UserError, reason
from turnout.core.trees import Tree
from turnout.task.calls import in_backward

if TYPE_CHECKING:
    from turnout.task.task import Task


@dataclass(frozen=True)
class Trial:
    """A gradient of four samples, or of two for each of two clients."""

    task: Task
    loss: Callable[[Any, Tree], Tensor]
    params: Tensor  # [P]
    inputs: Tree  # [4, ...]
    targets: Tree
    close: tuple[float, float]  # shares of a number, and of the largest, by which gradients may differ

    def objective(self, params: Tensor, inputs: Tree, targets: Tree, key: Tensor) -> Tensor:
        """Sum the losses of some samples."""
        return self.loss(self.task.outputs(params, inputs, key), targets).sum()

    def gradient(self, inputs: Tree, targets: Tree, key: Tensor) -> Tensor:
        """Compute a gradient `[P]` by ordinary means."""
        with torch.enable_grad(), self.task.held():
            leaf = self.params.detach().requires_grad_()
            return torch.autograd.grad(self.objective(leaf, inputs, targets, key), leaf)[0]

    def tried(self) -> tuple[bool, frozenset[str]]:
        """Say whether parts of the model are called again while its gradient is computed, and name the parameters that
        get none: `grad is None` in torch."""
        again = False

        def called(_layer: nn.Module, _inputs: object) -> None:
            nonlocal again
            again = again or in_backward()

        hook = register_module_forward_pre_hook(called)
        try:
            idle = self._idle()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"model: its gradient cannot be computed: {reason(error)}") from error
        finally:
            hook.remove()
        return again, idle

    def _idle(self) -> frozenset[str]:
        """Differentiate by each parameter, and name those on which the loss does not depend."""
        with torch.enable_grad(), self.task.held():
            leaves = {name: own.detach().requires_grad_() for name, own in self.task.layers(self.params).items()}
            outputs = self.task.call(leaves, self.inputs, self._keys[0])
            total = self.loss(outputs, self.targets).sum()
            found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        unasked = {name for name, own in zip(leaves, found, strict=True) if own is None}
        return frozenset(unasked.difference(self.task.layout.buffers))

    def draws(self) -> bool:
        """Say whether the model's functions draw in training."""
        return self.task.drawn(self.params, self.inputs, self._keys[0])

    def cannot_map(self) -> str:
        """Say why two clients cannot be computed together; "": they can."""
        try:
            together = self._mapped()
        except Exception as error:
            return f"the model or the loss cannot be mapped over clients ({reason(error)})"
        x, y = self._halves
        for client, key in enumerate(self._keys):
            alone = self.gradient(trees.at(x, client), trees.at(y, client), key)
            within = self.close[1] * float(alone.nan_to_num(0, 0, 0).abs().max())
            if not torch.allclose(together[client], alone, rtol=self.close[0], atol=within, equal_nan=True):
                return "the model's gradients are others when they are mapped over clients"
        return ""

    def cannot_map_halved(self) -> str:
        """Say the same of a task that computes in bfloat16, whose roundings would look like differences."""
        self.task.bfloat16 = True
        try:
            self._mapped()
        except Exception as error:
            return f"the model or the loss cannot be mapped over clients in bfloat16 ({reason(error)})"
        finally:
            self.task.bfloat16 = False
        return ""

    def _mapped(self) -> Tensor:
        """Pass two clients together, and compute their gradients `[2, P]`."""
        both = self.params.expand(2, -1).contiguous()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it takes a slower way
            vmap(self.objective)(both, *self._halves, self._keys)
            found: Tensor = vmap(grad(self.objective))(both, *self._halves, self._keys)
            return found

    @property
    def _halves(self) -> tuple[Tree, Tree]:
        """Give two clients the samples."""
        samples = (self.inputs, self.targets)
        x, y = (trees.map_leaves(lambda leaf: leaf.view(2, -1, *leaf.shape[1:]), part) for part in samples)
        return x, y

    @property
    def _keys(self) -> Tensor:
        return torch.arange(2, device=self.params.device)
