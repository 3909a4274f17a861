"""A run's model as files for other programs, and its card."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cli.terminal import Terminal
from turnout.use import Served, card, export

pytestmark = pytest.mark.usefixtures("at")


@pytest.fixture
def expected(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of the new patients, and what the model of all says of them."""
    served = Served.open(run("fedper"))
    inputs = torch.from_numpy(served.table_fitted.inputs(served.table("new.csv")))
    return inputs, served.task.outputs(served.model(), inputs).detach()


def test_safetensors(at: Terminal, run: Any, tmp_path: Path) -> None:
    folder = run("fedper")
    told = at.done("export", str(folder), "--to", "safetensors").out
    out = folder / "export/safetensors"
    assert "model.json, model.safetensors, model_card.md, preprocess.json" in told.replace("\n", " ")
    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(load_file(out / "model.safetensors")[name], value)
    about = json.loads((out / "model.json").read_text())
    assert (about["client"], about["model"]["name"], about["model"]["hidden"]) == ("shared", "mlp", [8])
    assert (out / "preprocess.json").read_bytes() == (folder / "preprocess.json").read_bytes()
    at.done("export", str(folder), "--to", "safetensors", "--client", "Oslo", "--out", str(tmp_path / "oslo"))
    oslo = load_file(tmp_path / "oslo/model.safetensors")
    kept = load_file(folder / "personal.safetensors")
    assert all(torch.equal(oslo[name], values[2]) for name, values in kept.items())
    assert json.loads((tmp_path / "oslo/model.json").read_text())["client"] == "Oslo"
    assert json.loads((folder / "manifest.json").read_text())["files"]["personal.safetensors"]


def test_torch_export_takes_any_number_of_rows(at: Terminal, run: Any, expected: Any, tmp_path: Path) -> None:
    at.done("export", str(run("fedper")), "--to", "torch-export", "--out", str(tmp_path / "o"))
    program = torch.export.load(tmp_path / "o/model.pt2").module()
    torch.testing.assert_close(program(expected[0]), expected[1])
    torch.testing.assert_close(program(expected[0][:3]), expected[1][:3])


@pytest.mark.skipif(find_spec("onnxscript") is None, reason="onnx and onnxscript are not installed")
def test_onnx_computes_the_same(at: Terminal, run: Any, expected: Any, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    at.done("export", str(run("fedper")), "--to", "onnx", "--out", str(tmp_path / "o"))
    session = onnxruntime.InferenceSession(tmp_path / "o/model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"inputs": expected[0].numpy()})
    np.testing.assert_allclose(found, expected[1].numpy(), atol=1e-5)


def test_huggingface_has_a_readme_with_tags(at: Terminal, run: Any, tmp_path: Path) -> None:
    at.done("export", str(run("fedper")), "--to", "huggingface", "--out", str(tmp_path / "o"))
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        "README.md", "config.json", "model.safetensors", "preprocess.json"
    ]  # fmt: skip
    readme = (tmp_path / "o/README.md").read_text(encoding="utf-8")
    assert readme.startswith("---\nlibrary_name: pytorch\ntags:\n- federated-learning\n")
    assert "# Model card: fedper" in readme


def test_what_cannot_be_exported_is_one_sentence(
    at: Terminal, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = str(run("fedper")), str(tmp_path / "o")
    assert "did you mean onnx?" in at.refused("export", folder, "--to", "onx", "--out", out)
    assert "no client Paris" in at.refused("export", folder, "--to", "onnx", "--client", "Paris", "--out", out)
    assert "served the same model" in (
        at.refused("export", str(run("fedavg")), "--to", "onnx", "--client", "Oslo", "--out", out)
    )
    monkeypatch.setattr(export, "find_spec", lambda _: None)
    sentence = at.refused("export", folder, "--to", "onnx", "--out", out)
    assert "--to: onnx: onnx is not installed" in sentence
    assert "[export]" in sentence
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: 1 / 0)
    assert "cannot be traced (division by zero)" in at.refused("export", folder, "--to", "torch-export", "--out", out)
    assert not Path(out).exists()  # nothing half-written


def test_a_run_leaves_a_card_that_its_report_links(run: Any) -> None:
    folder = run("fedper")
    text = (folder / "model_card.md").read_text(encoding="utf-8")
    for part in ("Data", "Clients", "Audit", "Measures", "Privacy", "Limits"):
        assert f"\n## {part}\n" in text
    assert "Target: died, one of no, yes" in text
    assert "| patient\\_id | id |  |" in text
    assert "| creatinine | number | flag |" in text
    assert "| Zürich |" in text
    assert "Each client is served a model of its own." in text
    assert "No noise was added" in text
    assert "One run of one seed" in text
    assert '<a href="model_card.md">Model card</a>' in (folder / "report.html").read_text(encoding="utf-8")
    assert "model_card.md" in json.loads((folder / "manifest.json").read_text())["files"]
    (folder / "model_card.md").unlink()
    card.write(folder)
    assert (folder / "model_card.md").read_text(encoding="utf-8") == text


def test_a_card_names_who_was_never_heard_and_what_noise_hides(at: Terminal) -> None:
    given = ("run.name=silent", "crashes.probability=[0, 0, 1.0, 0, 0, 0]", "privacy.noise=1.0", "privacy.clip=1.0")
    at.done("run", "wards.toml", *given)
    text = Path("runs/silent/model_card.md").read_text(encoding="utf-8")
    assert "- Never heard, though they were meant to count: Oslo." in text
    assert "- Oslo never counted: it may serve them badly." in text
    assert "- central noise: epsilon " in text
