"""Mutated replies against the boundary of a deployment's server: each must be rejected unless it is still right.

    python tests/deploy/mutated_replies.py --count 1000000 --seed 0        (make test-replies)

What is right is decided here by other means than Turnout's: Flower opens a reply, NumPy reads its arrays.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from multiprocessing import get_context
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from mutations import COUNTS, Parts, honest, mutated

from turnout.deploy.screen import Evaluation, Failed, RejectedError, Reply, Training, Update, read

# -- what is right ------------------------------------------------------------------------------------------------


def rightly(asked: Training | Evaluation, root: str, parts: Parts) -> Any:
    """What an answer says: arrays, a need, measures, or "error"; None if it must be rejected."""
    try:
        message = inflate_object_from_contents(root, dict(parts))
        if not isinstance(message, Message):
            return None
        if message.has_error():
            return "error"
        said, others = dict(message.content["answer"]), set(message.content) - {"answer"}
        if type(message.content["answer"]) is not ConfigRecord:
            return None
        if isinstance(asked, Evaluation):
            record = message.content.get("measures", ArrayRecord())
            return _measures(said) if others <= {"measures"} and record == {} and type(record) is ArrayRecord else None
        record = message.content["payload"] if others else ArrayRecord(_small(said))
        if others - {"payload"} or type(record) is not ArrayRecord:
            return None
        names = {"client": 1, "job": 3}
        if "needs" in said:
            right = _same(said, {**names, "needs": asked.needs[0]}) and not len(record)
            return asked.needs[0] if right else None
        seconds = said.pop("seconds")
        if type(seconds) is not float or not math.isfinite(seconds) or not _same(said, COUNTS):
            return None
        arrays = {name: _numbers(array) for name, array in record.items()}
        dtype = np.dtype(str(asked.dtype).removeprefix("torch."))
        right = {name: values.shape for name, values in arrays.items()} == asked.shapes
        finite = all(values.dtype == dtype and np.isfinite(values).all() for values in arrays.values())
        return arrays if right and finite else None
    except Exception:
        return None


def _small(said: dict[str, Any]) -> dict[str, Array]:
    """Arrays that travel among the facts, taken out of them."""
    names = [name for name in said if name.startswith("payload/")]
    return {name.removeprefix("payload/"): Array("", (), "numpy.ndarray", said.pop(name)) for name in names}


def _same(said: dict[str, Any], expected: dict[str, Any]) -> bool:
    return said == expected and all(type(said[name]) is type(value) for name, value in expected.items())


def _numbers(array: Array) -> np.ndarray[Any, Any]:
    buffer = BytesIO(array.data)
    assert np.lib.format.read_magic(buffer) == (1, 0)
    shape, _, dtype = np.lib.format.read_array_header_1_0(buffer)
    assert math.prod(shape) * dtype.itemsize == len(array.data) - buffer.tell()
    values: np.ndarray[Any, Any] = np.load(BytesIO(array.data), allow_pickle=False)
    return values


def _measures(said: dict[str, Any]) -> Any:
    found = {}
    for split in ("train", "validation", "test"):
        if f"{split}_samples" not in said:
            continue
        number = said.pop(f"{split}_samples")
        loss, accuracy = said.pop(f"{split}_loss"), said.pop(f"{split}_accuracy")
        most = {"train": 9, "test": 4, "validation": 2**53}[split]
        if type(number) is not int or number not in range(most + 1) or type(loss) is not float:
            return None
        if type(accuracy) is not float:
            return None
        if number and not (math.isfinite(loss) and -1e-6 <= accuracy <= 1 + 1e-6):
            return None
        found[split] = number
    return None if said else found


# -- carried out --------------------------------------------------------------------------------------------------


def verdict(asked: Training | Evaluation, root: str, parts: Parts) -> str:
    """Whether Turnout takes a reply, and whether it should have."""
    reply = Reply("asked", 1001, root, [], most=asked.most)
    try:
        for name, part in parts.items():
            reply.add(name, part)
        answer = read(reply, asked)
    except RejectedError:
        return "rejected"
    except Exception as error:
        return f"exception {type(error).__name__}"
    right = rightly(asked, root, parts)
    return "accepted rightly" if right is not None and _agrees(answer, right) else "accepted wrongly"


def _agrees(answer: Any, right: Any) -> bool:
    if isinstance(answer, Failed):
        return isinstance(right, str) and right == "error" and answer.why.isprintable() and 0 < len(answer.why) <= 200
    if isinstance(answer, Update):
        return isinstance(right, dict) and all(
            np.array_equal(values[0].numpy(), right[name]) for name, values in answer.arrays.items()
        )
    if isinstance(answer, str):
        return answer == right
    if not isinstance(right, dict) or {split: number for split, (_, number) in answer.items()} != right:
        return False
    sound = (
        math.isfinite(values["loss"]) and 0 <= values["accuracy"] <= 1 for values, number in answer.values() if number
    )
    return all(sound)


def verdicts(count: int, seed: int, first: int = 0) -> Counter[str]:
    """How often each came out, of so many mutations."""
    kinds, found = honest(), Counter[str]()
    for number in range(first, first + count):
        base, root, parts = mutated(seed, number, kinds)
        how = verdict(base.asked, root, parts)
        found[how] += 1
        if how.startswith(("exception", "accepted wrongly")):
            found[f"  {base.kind}, number {number}: {how}"] += 1
    return found


def wrong(found: Counter[str]) -> list[str]:
    return [how for how in found if how.startswith(("exception", "accepted wrongly", "  "))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutated replies against the boundary of a deployment's server.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    found, end = Counter[str](), options.first + options.count
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        starts = range(options.first, end, 10_000)
        blocks = [pool.submit(verdicts, min(10_000, end - start), options.seed, start) for start in starts]
        for done, block in enumerate(blocks, 1):
            found += block.result()
            print(f"\r{min(done * 10_000, options.count)} of {options.count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for name in ("accepted rightly", "rejected", "accepted wrongly"):
        print(f"{name}: {found[name]}")
    print(f"exceptions: {sum(number for how, number in found.items() if how.startswith('exception'))}")
    print("\n".join(wrong(found)[:50]))
    return bool(wrong(found))


if __name__ == "__main__":
    sys.exit(main())
