"""A run's model as files for other programs: each folder has the model, its preprocessing, and its card."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from turnout.config import config
from turnout.core.errors import FailedError, UserError, reason, unknown
from turnout.core.files import as_json_text, write_tensors, write_text
from turnout.core.imports import extra, missing
from turnout.core.names import called
from turnout.core.version import VERSION
from turnout.record.run_folder import CARD
from turnout.report.read import recorded
from turnout.task import samples
from turnout.use import card
from turnout.use.served import SHARED, Served

_TRACED = 2  # samples that a model is traced with; it must then take any number
_ROWS = ({0: torch.export.Dim.DYNAMIC},)
_CLOSE = 1e-4  # how far outputs of an exported model may be from those of the run's, relative to the largest


class Alone(nn.Module):
    """A model with what is done to stored samples before it."""

    def __init__(self, module: nn.Module, preparing: samples.Parts, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.preparing, self.dtype = module, preparing, dtype

    def forward(self, inputs: Tensor) -> Any:
        return self.module(samples.prepared(self.preparing, inputs, self.dtype))


def export(served: Served, to: str, out: Path, client: int = SHARED) -> list[str]:
    """Write the model of a client, or of all, in a format; the names of the files."""
    if to not in FORMATS:
        raise unknown("--to", to, FORMATS)
    model = served.model(client)
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        FORMATS[to](served, model, out)
    except BaseException:
        if made:  # nothing half-written
            shutil.rmtree(out, ignore_errors=True)
        raise
    whose = "shared" if client == SHARED else called(served.names, client)
    about: dict[str, Any] = {"turnout": VERSION, "run": served.folder.resolve().name, "client": whose}
    about |= {name: served.settings[name] for name in ("model", "task") if name in served.settings}
    write_text(out / ("config.json" if to == "huggingface" else "model.json"), as_json_text(about))
    if served.fitted is not None:
        shutil.copyfile(served.folder / "preprocess.json", out / "preprocess.json")
    _write_card(served, out / ("README.md" if to == "huggingface" else CARD), to == "huggingface")
    return sorted(path.name for path in out.iterdir())


def _write_card(served: Served, path: Path, tagged: bool) -> None:
    name = json.dumps(served.folder.resolve().name)
    head = f"---\nlibrary_name: pytorch\ntags:\n- federated-learning\n- turnout\nmodel_name: {name}\n---\n\n"
    write_text(path, (head if tagged else "") + card.text(recorded(served.folder, "export")))


def plain_module(served: Served, model: Tensor) -> nn.Module:
    """Make the user's own module with these parameters, in evaluation mode."""
    own = dict(served.settings["model"])
    module = config.module(own.pop("name"), own)
    module.load_state_dict(served.task.state_dict(model))
    return module.eval()


def _safetensors(served: Served, model: Tensor, out: Path) -> None:
    write_tensors(out / "model.safetensors", _apart(served.task.state_dict(model)))


def _apart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share nothing, as the format wants them."""
    return {name: value.detach().clone().contiguous() for name, value in state.items()}


def _huggingface(served: Served, model: Tensor, out: Path) -> None:
    module = plain_module(served, model)
    if hasattr(module, "save_pretrained"):
        module.save_pretrained(out)  # type: ignore[operator]
        return
    write_tensors(out / "model.safetensors", _apart(served.task.state_dict(model)), {"format": "pt"})


def _torch_export(served: Served, model: Tensor, out: Path) -> None:
    module, example = _traceable(served, model)
    with _quiet():
        program = torch.export.export(module, (example[:_TRACED],), dynamic_shapes=_ROWS)
        torch.export.save(program, out / "model.pt2")
        again = torch.export.load(out / "model.pt2").module()(example)
    _check(served, model, example, again)


def _onnx(served: Served, model: Tensor, out: Path) -> None:
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise missing("--to: onnx", package, extra("export"))
    module, example = _traceable(served, model)
    with _quiet():
        torch.onnx.export(
            module,
            (example[:_TRACED],),
            out / "model.onnx",
            dynamo=True,
            external_data=False,
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_shapes=_ROWS,
        )
        if find_spec("onnxruntime") is None:
            return
        import onnxruntime

        session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
        (again,) = session.run(None, {"inputs": example.numpy()})
    _check(served, model, example, torch.from_numpy(again))


def _traceable(served: Served, model: Tensor) -> tuple[nn.Module, Tensor]:
    """The module, with what prepares its samples, and a few samples: more than it is traced with."""
    module, task = plain_module(served, model), served.task
    example = _example(served)
    return (Alone(module, task.preparing, task.initial.dtype) if task.preparing else module), example


def _example(served: Served) -> Tensor:
    """Samples as the run stored them: of a table they are known, else its data are read again."""
    if served.fitted is not None:
        return torch.linspace(-1, 1, 5 * len(served.fitted.features)).view(5, -1)
    inputs = config.build(config.read_run(served.folder))[0].population.inputs
    if not isinstance(inputs, Tensor):
        raise UserError("--to: samples of this run are several tensors each; export it to safetensors or huggingface")
    return inputs[:5].clone()


def _check(served: Served, model: Tensor, example: Tensor, again: Any) -> None:
    """Raise unless what was written computes what the run's model does."""
    with torch.no_grad():
        outputs = served.task.outputs(model, example)
    if not isinstance(again, Tensor) or not isinstance(outputs, Tensor):
        return
    if not torch.allclose(again, outputs, rtol=0, atol=_CLOSE * max(1.0, float(outputs.abs().max()))):
        worst = float((again - outputs).abs().max())
        raise FailedError(
            f"export: the model that was written computes other values, up to {worst:.3g} away; use safetensors"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence exporters, whose failures become one sentence."""
    level = logging.root.manager.disable
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            yield
    except UserError:
        raise
    except Exception as error:  # whichever a model that cannot be traced ends in
        raise UserError(f"--to: this model cannot be traced ({reason(error)}); use safetensors") from error
    finally:
        logging.disable(level)


FORMATS: dict[str, Callable[[Served, Tensor, Path], None]] = {
    "safetensors": _safetensors,
    "torch-export": _torch_export,
    "onnx": _onnx,
    "huggingface": _huggingface,
}
