"""A task: a plain `torch.nn.Module`, a loss for each sample, and what to measure."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.modules.loss import _Loss

from turnout.core import random, trees
from turnout.core.errors import UserError, reason
from turnout.core.random import mix
from turnout.core.spelling import Spelt
from turnout.core.trees import Tree
from turnout.task import calls, losses, samples
from turnout.task import metrics as measuring
from turnout.task.calls import Passes, Places, answer, invoke
from turnout.task.draws import KeyedDraws
from turnout.task.dropout import KeyedDropout, key_dropout
from turnout.task.examine import draws_nothing, examine, largest
from turnout.task.inside import features_of, find_layer, look_inside
from turnout.task.losses import SampleFunction
from turnout.task.making import built, copied
from turnout.task.norms import BatchNorm, Buffers, Tail, chosen, laid_out, rest_on_one_value
from turnout.task.set_metrics import SetMetric
from turnout.task.sets import Sets


class Task(Spelt):
    """Model + per-sample loss + metrics.

    >>> task = Task(torch.nn.Linear(64, 10), loss="cross_entropy")
    >>> losses = task.losses(task.initial, inputs, targets)         # [B]

    `model` is a module, or a function without arguments that builds one (then its first weights are drawn by the seed
    of the run, unless `seed` is given). Samples may be trees of tensors: a dictionary is given to the model by names, a
    tuple in its order (`turnout.task.calls`). `loss` is a name in `LOSSES`, or such an object; `model`, where the model
    returns its own; or any function of (outputs, targets) that returns one value a sample, or one for the batch. It may
    look at all samples of the batch. Losses by name and those of `torch.nn` are given the one tensor of the outputs
    that counts (a Hugging Face model's logits), a function of one's own all that the model returns. Unless `metrics`
    are given, by name or as functions likewise, the accuracy is measured where targets are classes or labels. A
    function that returns a number and no tensor measures a whole set.

    `prepare(inputs)` makes what the model is given of stored samples, `augment(inputs, key)` changes them in training,
    batch by batch where the model is: names, functions, or several one after another (`turnout.task.samples`).

    Parameters that are not trained (`requires_grad` False) are the model's own tensors, in every copy: leave them as
    they are while a run goes on. Layers in evaluation mode inside a model in training mode stay so.
    """

    coupled: frozenset[str] = frozenset()  # measures of which a sample's value depends on its batch; see `examine`
    idle: frozenset[str] = frozenset()  # parameters that get no gradient; see `examine`
    steady: frozenset[str] = frozenset()  # buffers that no pass changes, the same tensors in copies; see `examine`
    alone: str = ""  # why clients cannot be computed together, if so; see `examine`
    unmapped = False  # whether that is only because they cannot be mapped; see `examine`
    between = 0  # numbers that all layers give for a sample, once one is known
    has_gradients = True  # whether there are any, to train by
    _build: Callable[[], nn.Module] | None = None
    _seed, _seed_given = 0, False
    preparing: samples.Parts = ()
    augmenting: samples.Parts = ()
    tail: Tail | None = None  # what changes in a pass beside the parameters; None: nothing
    fixed = False  # whether its statistics are held, for the job under way
    sets = Sets()  # measures of a whole set; none as a rule
    _named: tuple[str, ...] = ()  # metrics, in the order in which they were asked for

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: str | SampleFunction = "cross_entropy",
        metrics: measuring.Given = None,
        seed: int | None = None,
        prepare: samples.Given = None,
        augment: samples.Given = None,
        batchnorm: str | BatchNorm | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        self._seed, self._seed_given = seed or 0, seed is not None
        if not isinstance(model, nn.Module):
            self._build = model
            model = built(model, self._seed)
        self._resting = [name for name, layer in model.named_modules() if model.training and not layer.training]
        self.batchnorm, self.buffers = chosen(model, batchnorm, self._resting), buffers
        self.tail, self.layout = laid_out(model, self.batchnorm, buffers, self._resting)
        if self.layout.size == 0:
            raise UserError("model: it has no parameters to train")
        self.module = copied(model, self._trained, None, None)
        key_dropout(self.module.train())
        rest_on_one_value(self.module, () if self.tail is None else self.tail.norms)
        self._set_mode(True)
        self.loss = losses.chosen(loss)
        self._answers = isinstance(self.loss, (losses.Loss, _Loss))
        measures = measuring.chosen(metrics, self.loss)
        of_sets = {name: metric for name, metric in measures.items() if isinstance(metric, SetMetric)}
        self._named = tuple(measures)
        self.metrics = {name: metric for name, metric in measures.items() if not isinstance(metric, SetMetric)}
        self.sets = Sets(self.loss, of_sets)  # those of the user's own come with `examine`
        self.may_not_fit = metrics is None and not isinstance(self.loss, losses.Loss)  # until `examine` has looked
        self.preparing = samples.parts("prepare", prepare, samples.PREPARE)
        self.augmenting = samples.parts("augment", augment, samples.AUGMENT)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        first = {id(parameter): name for name, parameter in reversed(parameters.items())}
        self._tied = {name: first[id(parameter)] for name, parameter in parameters.items()}  # second names of a tensor
        self._kinds = sorted({str(parameters[name].dtype).removeprefix("torch.") for name in self._trained})
        self.initial = self.layout.flatten(parameters | self._buffers_of(model))
        self.module.requires_grad_(False)
        self.layer_shapes: dict[str, tuple[int, ...]] = {}  # of one sample's `features`; known with the first sample
        self.bfloat16 = False  # whether the model computes in bfloat16
        self.vectorised = True  # an engine that runs one client at a time takes a copy with False: autograd is faster
        layers = (name for name, layer in self.module.named_modules() if isinstance(layer, KeyedDropout))
        self._dropout = [f"{name}.key" if name else "key" for name in layers]
        self.draws = True  # whether the model's functions draw in training; until `examine` has looked, they may
        self._left: dict[str, Tensor] = {}  # what the last pass in training mode left in the places of buffers
        self.recomputes = False  # whether parts of it are called again while gradients are computed

    @property
    def _trained(self) -> list[str]:
        """Names of the parameters that are trained."""
        return [name for name in self.layout.names if name not in self.layout.buffers]

    def _buffers_of(self, model: nn.Module) -> dict[str, Tensor]:
        """Buffers of the layout by name, in numbers as parameters have them."""
        like = next(model.get_parameter(name) for name in self._trained)
        return {name: model.get_buffer(name).to(like) for name in self.layout.buffers}

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Task:
        """The same task on another device or in another precision."""
        moved = copy.copy(self)
        moved.module = copied(self.module, self._trained, device, dtype, self.steady)
        moved.initial = self.initial.to(device=device, dtype=dtype)
        moved.loss = losses.moved(self.loss, device, dtype)
        moved.metrics = {name: losses.moved(metric, device, dtype) for name, metric in self.metrics.items()}
        return moved

    def seeded(self, seed: int) -> Task:
        """The same task, whose first weights are drawn by the seed of a run, unless they or their seed were given."""
        build = self._build
        if build is None or self._seed_given or seed == self._seed:
            return self
        drawn = self._built(build, seed).to(self.initial.device, self.initial.dtype)
        task = copy.copy(self)
        task.module, task.initial, task._seed = drawn.module, drawn.initial, seed
        return task

    def _built(self, build: Callable[[], nn.Module], seed: int) -> Task:
        return Task(build, self.loss, {}, seed, batchnorm=self.batchnorm, buffers=self.buffers)

    def starting_from(self, model: Tensor) -> Task:
        """The same task, whose training begins with these parameters `[P]`."""
        if model.shape != self.initial.shape:
            raise UserError(f"task: {len(model)} parameters to start from, the model has {self.size}")
        started = copy.copy(self)
        started.initial, started._seed_given = model.clone().to(self.initial.device), True
        return started

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return self.layout.size

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the loss and of all metrics, those of whole sets among them."""
        return "loss", *(name for name in self._named if name in self.metrics or name in self.sets.names)

    @property
    def learnt(self) -> int:
        """The number of those that move by differences: all, but for statistics behind them."""
        return self.size if self.tail is None else self.tail.learnt

    def layers(self, params: Tensor) -> dict[str, Tensor]:
        """Views of `params` ([..., P]) by name."""
        return self.layout.unflatten(params)

    def vector(self, layers: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `layers` of `[C, P]`, as a copy."""
        return self.layout.flatten(layers, 1)

    def models(
        self, layers: dict[str, Tensor], weights: Tensor, key: Tensor
    ) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
        """Every model that is trained, as views of `layers`, with what the samples of a batch count for it and the
        randomness of its step: of one client, or with a leading dimension of a cohort."""
        yield layers, weights, key

    def initials(self, count: int) -> Tensor:
        """`[count, P]` where so many models of this task begin, no two alike; the first where one alone would."""
        return torch.stack([self.initial, *(self._another(number) for number in range(1, count))])

    def _another(self, number: int) -> Tensor:
        """Built anew with another seed; where that changes nothing, or a module was given, with a tenth of noise."""
        if self._build is not None:
            built = self._built(self._build, self._seed + number).initial.to(self.initial)
            if not torch.equal(built, self.initial):
                return built
        noise = torch.as_tensor(random.normal(random.key(self._seed, "another model", number), self.size))
        noise = noise.to(self.initial)
        named = self.layout.unflatten(noise)
        for name, value in self.layout.unflatten(self.initial).items():
            if name in self.layout.buffers:
                named[name].zero_()
                continue
            inputs = value.numel() // len(value) if value.ndim else 1
            named[name].mul_(0.1 * (float(value.square().mean().sqrt()) or inputs**-0.5))
        return self.initial + noise

    def outputs(self, params: Tensor, inputs: Tree, key: Tensor | None = None) -> Tensor:
        """Model outputs for flat parameters [P]; a tree, where the loss is a function that wants all. With a key (int64
        scalar) the model is in training mode."""
        return self.call(self.layers(params), inputs, key)

    def call(self, named: dict[str, Tensor], inputs: Tree, key: Tensor | None = None) -> Tensor:
        """The same for parameters by name."""
        self._set_mode(key is not None)
        inputs, drawn = self.shown(inputs, key), None
        if key is not None:
            named = named | {name: mix(key ^ number) for number, name in enumerate(self._dropout, 1)}
            drawn = KeyedDraws(key, len(self._dropout)) if self.draws else None
        if self.tail is not None:
            named = named | self.tail.given(self.module, named, key is not None)
        with self._passes.one(named, drawn):
            if self.bfloat16:
                with torch.autocast(self.initial.device.type, torch.bfloat16):
                    outputs = invoke(self.module, inputs)
            else:
                outputs = invoke(self.module, inputs)
            if self.tail is not None and key is not None:
                self._left = self.tail.found(self.module)
        outputs = answer(outputs) if self._answers else outputs
        return cast(Tensor, trees.map_leaves(Tensor.float, outputs) if self.bfloat16 else outputs)

    def drawn(self, params: Tensor, inputs: Tree, key: Tensor) -> bool:
        """Say whether functions draw when these samples are passed in training mode."""
        self._set_mode(True)
        draws, inputs, named = KeyedDraws(key), self.shown(inputs, key), self.layers(params)
        if self.tail is not None:
            named = named | self.tail.given(self.module, named, training=True)
        with self._passes.one(named, draws), torch.no_grad():
            invoke(self.module, inputs)
        return draws.count > 0

    def shown(self, inputs: Tree, key: Tensor | None) -> Tree:
        """Prepare samples, and augment them with a key: what the model is given."""
        inputs = samples.prepared(self.preparing, inputs, self.initial.dtype) if self.preparing else inputs
        return samples.augmented(self.augmenting, inputs, key) if self.augmenting and key is not None else inputs

    def _set_mode(self, training: bool) -> None:
        """Put the module in training or in evaluation mode, but for layers that were given in evaluation mode."""
        if self.module.training != training:
            self.module.train(training)
        for name in self._resting if training else ():
            self.module.get_submodule(name).training = False
        for name in () if self.tail is None or self.tail.choice.fixed_from == math.inf else self.tail.norms:
            self.module.get_submodule(name).training = training and not self.fixed

    def begin_job(self, version: float) -> None:
        """Note that a job begins from that version of the model."""
        assert self.tail is not None
        self.fixed, self._left = version >= self.tail.choice.fixed_from, {}

    def settled(self, params: Tensor) -> Tensor:
        """Put statistics and buffers, as the last pass in training mode has left them, behind the parameters `[P]`."""
        if self.tail is None or not self._left:
            return params
        left, self._left = self._left, {}
        return self.tail.settled(params, left)

    @property
    def _passes(self) -> Passes:
        """The passes of this task's own module; a copy of the task with another module has others."""
        known = self.__dict__.get("_known_passes")
        if known is None or known.module is not self.module:
            trained = self._trained
            places = Places(self.module, trained, self.given.difference(trained))
            known = self.__dict__["_known_passes"] = Passes(places)
        return known

    def held(self) -> AbstractContextManager[None]:
        """Hold what the next pass is given until its gradient is there: parts of the model may be called again."""
        return self._passes.held()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known_passes"}

    def features(self, params: Tensor, inputs: Tree, layer: str) -> Tensor:
        """`[B, ...]` what a layer gives (the last time it is asked) before what follows it, in evaluation mode; of a
        recurrent layer the final hidden state. Layers are called as in `module.named_modules()`."""
        return self.represented(params, inputs, layer)[1]

    def represented(self, params: Tensor, inputs: Tree, layer: str | None) -> tuple[Tensor, Tensor]:
        """Model outputs and the `features` they come from, in one pass; without a name those that the last fully
        connected layer is given."""
        return look_inside(self.module, layer, lambda: self.outputs(params, inputs))

    def layer(self, name: str) -> nn.Module:
        """The layer of that name; the empty name is the model itself."""
        return find_layer(self.module, name)

    @property
    def given(self) -> set[str]:
        """Names of the tensors that every pass is given; the module keeps the others."""
        return {*self.layout.names, *self._dropout, *(() if self.tail is None else self.tail.changing)}

    @property
    def first_linear(self) -> str:
        """Name of the first fully connected layer; the model itself where it has none."""
        linear = (name for name, layer in self.module.named_modules() if isinstance(layer, nn.Linear))
        return next(linear, "")

    def losses(self, params: Tensor, inputs: Tree, targets: Tree, key: Tensor | None = None) -> Tensor:
        """`[B]` loss of each sample."""
        values = self.loss(self.outputs(params, inputs, key), targets)
        if values.ndim != 1 or len(values) != trees.rows(inputs):
            raise UserError(f"task.loss: it must return one value a sample, not shape {tuple(values.shape)}")
        return values

    def gradient(self, objective: Callable[[Tensor], Tensor], params: Tensor) -> Tensor:
        """Gradient of a scalar function of flat parameters; under `vmap` it must be the functional one."""
        if self.vectorised:
            return cast(Tensor, grad(objective)(params))
        with torch.enable_grad(), self.held() if self.recomputes else nullcontext():
            leaf = params.detach().requires_grad_()
            return torch.autograd.grad(objective(leaf), leaf)[0]

    def measures(self, outputs: Any, targets: Tree, leave_out: Collection[str] = ()) -> dict[str, Tensor]:
        """`[B]` loss and metrics of each sample, by name."""
        functions = {"loss": self.loss, **self.metrics}
        return {name: function(outputs, targets) for name, function in functions.items() if name not in leave_out}

    def examine(self, inputs: Tree, targets: Tree) -> int:
        """Check that model and measures can be trained on these samples, and note how; returns `activations`."""
        with draws_nothing("model: its forward pass in evaluation mode", self.initial.device):
            sample = trees.batch(largest(inputs), (), slice(None), self.initial)[0]
            total = self.activations(sample)
        found = examine(self, inputs, targets)
        measures, self.sets, self.coupled, self.alone, self.draws, self.recomputes, self.idle, self.unmapped = found
        self.loss = measures.pop("loss")
        self.metrics = measures
        self.steady = frozenset(name for name, _ in self.module.named_buffers()) - self.given
        return total

    @torch.no_grad()
    def activations(self, sample: Tree) -> int:
        """Bytes of all layer outputs for one sample `[1, ...]`; also the check that the model accepts it."""
        total, shapes = 0, dict[str, tuple[int, ...]]()

        def count(name: str, layer: nn.Module, _inputs: object, output: object) -> None:
            nonlocal total
            total += output.numel() * output.element_size() if isinstance(output, Tensor) else 0
            features = features_of(layer, output)
            shapes.pop(name, None)  # in the order of the last calls
            if features is not None:
                shapes[name] = tuple(features.shape[1:])

        hooks = [layer.register_forward_hook(partial(count, name)) for name, layer in self.module.named_modules()]
        try:
            self.outputs(self.initial, sample)
        except UserError:
            raise
        except Exception as error:
            why = self.why_not(error, sample)
            raise UserError(f"model: it cannot process an input of shape {trees.shapes(sample)}: {why}") from error
        finally:
            for hook in hooks:
                hook.remove()
        self.layer_shapes, self.between = shapes, total // self.initial.element_size()
        return total

    def why_not(self, error: Exception, inputs: Tree) -> str:
        """Say why the model cannot process samples, and what may be the matter."""
        why = reason(error) + samples.hint(self.preparing, inputs) + calls.hint(self.module, inputs)
        kinds = " and ".join(self._kinds)
        mixed = f" (all trained parameters get engine.precision, and those given are {kinds})"
        return why + (mixed if len(self._kinds) > 1 else "")

    def state_dict(self, params: Tensor) -> dict[str, Tensor]:
        """A `state_dict` for the user's own module: the trained parameters and the module's constant buffers."""
        named = {name: value.detach().clone().contiguous() for name, value in self.layout.unflatten(params).items()}
        state: dict[str, Tensor] = self.module.state_dict()
        return {name: named.get(self._tied.get(name, name), value).to(value.dtype) for name, value in state.items()}

    @property
    def frozen(self) -> set[str]:
        """Names of parameters that are not trained, and second names of tensors: what a saved model does without."""
        names = {name for name, _ in self.module.named_parameters(remove_duplicate=False)}
        return names - set(self.layout.names)

    def from_state_dict(self, state: Mapping[str, Tensor]) -> Tensor:
        """`[P]` the parameters in a `state_dict`."""
        return self.layout.flatten({name: state[name].to(self.initial) for name in self.layout.names})
