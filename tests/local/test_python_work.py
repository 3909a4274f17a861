"""Python functions as local work: equal to plain loops, keyed, resumable, with every method that needs no gradients;
what is wrong is answered in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier

import turnout
from support import ALGORITHMS, WORLD, Windowed, algorithm, mlp, population
from turnout import ArrayTask, Plan, PythonWork, UserError
from turnout.aggregation.rules import CoordinateMedian
from turnout.core import random
from turnout.engine.paths import THREADS, select_path
from turnout.local.modifiers import Proximal
from turnout.local.transforms import Clip
from turnout.server.stopping import Stopping

Arrays = dict[str, NDArray[Any]]
Answer = tuple[Arrays, int]
DOUBLE = Plan(precision="float64", threads=1)
FULL = turnout.FedAvg(turnout.LocalSGD(0.1), turnout.Full())


def scores(arrays: Arrays, inputs: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = inputs @ arrays["coef"].T + arrays["intercept"]
    return found


def step(arrays: Arrays, inputs: NDArray[Any], targets: NDArray[Any], key: np.random.Generator) -> Answer:
    """A few steps of logistic regression by hand, on samples that the key draws."""
    for _ in range(3):
        rows = key.integers(len(inputs), size=4)
        shown = np.exp(scores(arrays, inputs[rows]))
        slope = shown / shown.sum(1, keepdims=True) - np.eye(3)[targets[rows]]
        arrays["coef"] -= 0.1 * slope.T @ inputs[rows] / 4
        arrays["intercept"] -= 0.1 * slope.mean(0)
    return arrays, len(inputs)


def task(features: int = 5, classes: int = 3) -> ArrayTask:
    return ArrayTask({"coef": np.zeros((classes, features)), "intercept": np.zeros(classes)}, scores)


def experiment(method: turnout.Algorithm, rounds: int = 6, **options: Any) -> turnout.Experiment:
    people = options.pop("people", None) or population(**WORLD)
    given: dict[str, Any] = {"seed": 5, "stopping": Stopping(rounds), "plan": Plan(threads=1)} | options
    return turnout.Experiment(given.pop("task", None) or task(), people, method, **given)


# -- equal to plain loops ---------------------------------------------------------------------------------------


def sgd(arrays: Arrays, inputs: NDArray[Any], targets: NDArray[Any], key: np.random.Generator) -> Answer:
    model = SGDClassifier(learning_rate="constant", eta0=0.05, random_state=int(key.integers(2**31)))
    model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
    model.partial_fit(inputs, targets, classes=np.arange(3))
    return {"coef": model.coef_, "intercept": model.intercept_}, len(inputs)


def test_scikit_learn_is_averaged_as_a_plain_loop_does() -> None:
    people, rounds = population(), 5
    result = turnout.simulate(task(), people, turnout.FedAvg(PythonWork(sgd), turnout.Full()), rounds, plan=DOUBLE)
    inputs, targets = people.inputs.double().numpy(), people.targets.numpy()
    model: Arrays = {"coef": np.zeros((3, 5)), "intercept": np.zeros(3)}
    keys = random.key(0, "local work", people.ids)
    for number in range(rounds):
        returned = []
        for client in people.ids:
            rows, own = people.train.row(client), {name: array.copy() for name, array in model.items()}
            key = random.generator(random.fold(keys, np.full(len(keys), number))[client])
            returned.append(sgd(own, inputs[rows], targets[rows], key)[0])
        model = {
            name: sum(p * arrays[name] for p, arrays in zip(people.base_importance, returned, strict=True))
            for name in model
        }
    found = result.state_dict()
    assert np.abs(model["coef"]).max() > 0.1
    for name, array in model.items():
        np.testing.assert_allclose(found[name].numpy(), array, rtol=0, atol=1e-9)


def test_a_function_may_train_a_torch_model() -> None:
    """Its parameters come by name; the path is that of a Python function."""

    def halve(arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Answer:
        return {name: array / 2 for name, array in arrays.items()}, len(inputs)

    result = turnout.simulate(
        turnout.Task(mlp, seed=3), population(), turnout.FedAvg(PythonWork(halve), turnout.Full()), 2, plan=DOUBLE
    )
    torch.testing.assert_close(result.model, turnout.Task(mlp, seed=3).initial.double() / 4, rtol=0, atol=1e-9)
    assert result.server.paths[0]["why"] == "the work is a Python function, halve"


def test_an_update_counts_by_the_samples_used() -> None:
    def shift(arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Answer:
        return {"coef": arrays["coef"] + 1, "intercept": arrays["intercept"]}, len(inputs) // 2

    people = population((4, 8))
    result = turnout.simulate(task(), people, turnout.FedAvg(PythonWork(shift), turnout.Full()), 1, plan=DOUBLE)
    np.testing.assert_allclose(result.state_dict()["coef"], 0.5)


def test_what_is_sent_can_be_clipped() -> None:
    method = turnout.FedAvg(PythonWork(step, modifiers=(Clip(0.01),)), turnout.Full())
    result = turnout.simulate(task(), population(), method, 1, plan=DOUBLE)
    assert 0 < float(result.model.norm()) <= 0.01 + 1e-12


def test_central_privacy_bounds_what_is_sent() -> None:
    private = turnout.Privacy(noise=1e-9, clip=0.01, noise_seed=1)
    result = turnout.simulate(
        task(), population(), turnout.FedAvg(PythonWork(step), turnout.Full()), 1, plan=DOUBLE, privacy=private
    )
    assert 0 < float(result.model.norm()) <= 0.011


# -- in time, with everything of the server ---------------------------------------------------------------------

METHODS: dict[str, turnout.Algorithm] = {
    "fedavg": turnout.FedAvg(PythonWork(step), turnout.MD(4)),
    "deadline": turnout.FedAvg(PythonWork(step, epochs=3), turnout.Uniform(5), deadline=1.0),
    "fedbuff": turnout.FedBuff(PythonWork(step), buffer_size=3),
    "async": turnout.AsyncFedAvg(PythonWork(step)),
    "adam": turnout.FedAdam(PythonWork(step)),
    "median": turnout.FedAvg(PythonWork(step), rule=CoordinateMedian()),
    "top_k": turnout.FedAvg(PythonWork(step, modifiers=(Clip(0.5),))),
    "windowed": Windowed(PythonWork(step)),
}


@pytest.mark.parametrize("name", METHODS)
def test_same_bits_twice_on_two_threads_and_after_a_resume(name: str, tmp_path: Path) -> None:
    """In a world of absences and crashes; jobs are in flight at the checkpoint."""
    method = METHODS[name]
    whole = turnout.execute(experiment(method))
    assert not torch.equal(whole.model, torch.zeros_like(whole.model))
    assert whole.audit.contributions.any()
    two = turnout.execute(experiment(method, plan=Plan(threads=2)))
    turnout.execute(experiment(method, 3), tmp_path, checkpoint_every=1)
    resumed = turnout.execute(experiment(method), tmp_path, checkpoint_every=1, resume=True)
    for other in (two, resumed):
        assert torch.equal(whole.model, other.model)
        assert whole.measures == other.measures


def test_a_resumed_run_needs_the_function(tmp_path: Path) -> None:
    def other(*given: Any) -> Answer:
        return step(*given)

    turnout.execute(experiment(Windowed(PythonWork(step)), 3), tmp_path, checkpoint_every=1)
    with pytest.raises(UserError, match="the Python function step, which the algorithm given does not have"):
        turnout.execute(experiment(Windowed(PythonWork(other))), tmp_path, resume=True)


def test_epochs_are_time() -> None:
    people = population(devices=turnout.devices.fixed(0.5, per="step"))
    took = [
        turnout.simulate(task(), people, turnout.FedAvg(PythonWork(step, epochs=epochs), turnout.Full()), 1).server.now
        for epochs in (1, 4)
    ]
    assert took == [0.5, 2.0]


def test_samplers_that_ask_for_losses() -> None:
    method = turnout.FedAvg(PythonWork(step), turnout.samplers.PowerOfChoice(3))
    assert turnout.execute(experiment(method)).audit.contributions.any()


def test_every_method_trains_or_says_why_not() -> None:
    trained, refused = set(), set()
    for name in [name for name in ALGORITHMS if name != "fetching"]:
        try:
            result = turnout.execute(experiment(algorithm(name, local=PythonWork(step)), 3))
        except UserError as error:
            assert len(str(error)) < 400 and "\n" not in str(error)
            refused.add(name)
        else:
            assert any(path["name"] == THREADS for path in result.server.paths)
            trained.add(name)
    assert {"fedavg", "fedbuff", "fedadam", "async_fedavg", "safa", "mifa", "hierfavg", "dpasgd", "fedcs"} <= trained
    assert {"scaffold", "fedprox", "fedem", "ditto", "fednova", "fedrep", "pfedme"} <= refused


def test_the_path_and_its_reason() -> None:
    cohort = turnout.Simulation(task(), population(), FULL, plan=Plan(threads=1)).cohort
    path = select_path(cohort.task, PythonWork(step), (), cohort.plan)
    assert str(path) == "threads: the work is a Python function, step"
    with pytest.raises(UserError, match="ray does not carry out a Python function"):
        select_path(cohort.task, PythonWork(step), (), replace(cohort.plan, engine="ray"))


# -- one sentence -----------------------------------------------------------------------------------------------


def run(function: Any, **options: Any) -> turnout.Result:
    return turnout.simulate(task(), population(), turnout.FedAvg(PythonWork(function), turnout.Full()), 1, **options)


def returning(coef: Any, used: Any = None) -> Any:
    def made(arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Any:
        return {"coef": coef, "intercept": arrays["intercept"]}, len(inputs) if used is None else used

    return made


MISTAKES: list[tuple[Any, str]] = [
    (returning(np.zeros((3, 4))), r"made at client 4 returned 'coef' of shape \(3, 4\); it must have shape \(3, 5\)"),
    (returning(np.full((3, 5), np.nan)), "made at client 4 returned 'coef' with NaN or infinity"),
    (returning(np.full((3, 5), "a")), "made at client 4 returned 'coef' of <U1; it must hold real numbers"),
    (returning(np.zeros((3, 5)), 99), "says that it used 99 samples; it was given 25"),
    (returning(np.zeros((3, 5)), 1.5), "says that it used 1.5 samples"),
    (returning(np.zeros((3, 5)), True), "says that it used True samples"),
    (returning(np.zeros((3, 5)), np.True_), r"says that it used (np\.)?True_? samples"),
    (returning([[1, 2], [3]]), "made at client 4 returned 'coef', which is no array: setting an array element"),
    (lambda arrays, *_: arrays, r"client 4 returned dict; it must return \(arrays, samples\)"),
    (lambda arrays, x, *_: ({"coef": arrays["coef"]}, len(x)), "returned coef in the place of a dict of the arrays"),
    (lambda *_: 1 / 0, "client 4 failed: ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("function", "sentence"), MISTAKES)
def test_what_a_function_returns_is_checked(function: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run(function)


def draws_globally(arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Answer:
    return arrays | {"intercept": np.random.normal(size=3)}, len(inputs)


def draws_anywhere(arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Answer:
    return arrays | {"intercept": np.random.default_rng().normal(size=3)}, len(inputs)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (draws_globally, "the function draws_globally draws from NumPy's generator"),
        (draws_anywhere, "draws_anywhere returned other arrays when it was called again with the same"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_chance_comes_from_the_key_alone(function: Any, sentence: str, count: int) -> None:
    with pytest.raises(UserError, match=sentence):
        run(function, plan=Plan(threads=count))


def test_what_needs_gradients_is_refused() -> None:
    with pytest.raises(UserError, match="Proximal acts on the steps of a training by gradients, and step is a Python"):
        PythonWork(step, modifiers=(Proximal(0.1),))
    with pytest.raises(UserError, match="scores is a Python function, of which nobody knows a gradient"):
        turnout.simulate(task(), population(), FULL, 1)
    with pytest.raises(UserError, match="unknown option 'momentum'"):
        PythonWork(step, momentum=0.9)  # type: ignore[call-arg]


def test_what_a_task_is_made_of_is_checked() -> None:
    mistakes: list[tuple[Any, str]] = [
        ({"coef": np.zeros(3, int)}, "'coef' is of int64; give floating-point numbers"),
        ({"coef": np.full(3, np.inf)}, "'coef' with NaN or infinity"),
        ({"forward": np.zeros(3)}, "cannot be called 'forward'"),
        ({"predict": np.zeros(3)}, "cannot be called 'predict'"),
        ({3: np.zeros(3)}, "cannot be called 3"),
        ({"coef": [[1.0, 2.0], [3.0]]}, "there is 'coef', which is no array"),
    ]
    for initial, sentence in mistakes:
        with pytest.raises(UserError, match=sentence):
            ArrayTask(initial, scores)

    def broken(_arrays: Arrays, _inputs: Any) -> Any:
        raise RuntimeError("no such thing")

    with pytest.raises(UserError, match=r"task\.predict: broken failed: RuntimeError: no such thing"):
        turnout.simulate(ArrayTask({"coef": np.zeros(3)}, broken), population(), FULL, 1)


def test_an_array_may_be_called_as_that_of_an_ensemble() -> None:
    """Whatever it holds, it is one array of several."""
    initial = {"there": np.zeros((3, 5)), "intercept": np.zeros(3)}
    task = ArrayTask(initial, lambda arrays, inputs: inputs @ arrays["there"].T + arrays["intercept"])

    def fit(arrays: Arrays, inputs: Any, _targets: Any, _key: Any) -> Answer:
        return {name: array + 1 for name, array in arrays.items()}, len(inputs)

    result = turnout.simulate(task, population(), turnout.FedAvg(PythonWork(fit), turnout.Full()), 2)
    for name, array in task.arrays(result.model).items():
        np.testing.assert_allclose(array, np.full(initial[name].shape, 2.0), rtol=1e-6)
