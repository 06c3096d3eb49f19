"""Predictions and exports of a finished run: a small real one on disk, trained on digits upright and turned."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import shutil
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from fedgmi_fedml import onnx_export
from fedgmi_fedml.checkpoint import load_models, save_models
from fedgmi_fedml.config import load_config
from fedgmi_fedml.deliver import Delivery, export, load_run, predict
from fedgmi_fedml.errors import CheckpointError, DeliveryError, FedgmiError, RangeError
from fedgmi_fedml.local_training import TrainSettings, train_expert, train_vae
from fedgmi_fedml.models import build_expert, build_vae, export_state
from fedgmi_fedml.shapes import DataShape

SETTINGS = TrainSettings(epochs=12, batch_size=20, learning_rate=3e-3)
OVERRIDES = ("model_args.model_options={hidden: [32]}", "model_args.vae_options={hidden: [48], latent: 6}")


def digits(turned: bool, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 8, 8) uint8 of values 0 … 16, upright or turned by 90°, and their labels."""
    bunch = load_digits()
    images = bunch.images[start:stop].astype(np.uint8)
    return (np.rot90(images, axes=(1, 2)) if turned else images).copy(), bunch.target[start:stop]


def tensors(turned: bool, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = digits(turned, start, stop)
    return torch.from_numpy(images[:, None] / 16.0).float(), torch.from_numpy(labels).long()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: component 0 upright, component 1 turned; ``final`` is deliberately bad (untrained experts)."""
    folder = tmp_path_factory.mktemp("deliver") / "run"
    folder.mkdir()
    config = load_config("digits", OVERRIDES)
    (folder / "config.yaml").write_text(config.to_yaml())
    shape = DataShape((1, 8, 8), 10)
    best: dict[str, OrderedDict] = {}
    final: dict[str, OrderedDict] = {}
    for j in range(2):
        x, y = tensors(j == 1, 0, 600)
        vae, expert = build_vae(config, shape, 1), build_expert(config, shape, 1)
        start = export_state(expert)
        seed = torch.Generator().manual_seed(j)
        best[f"vae-{j}"] = final[f"vae-{j}"] = train_vae(vae, export_state(vae), x, SETTINGS, seed)[0]
        best[f"expert-{j}"] = train_expert(expert, start, x, y, SETTINGS, seed)[0]
        final[f"expert-{j}"] = start
    meta = {
        "input_shape": [1, 8, 8],
        "value_range": "unit",
        "class_names": [str(i) for i in range(10)],
        "components": 2,
    }
    save_models(folder / "models" / "best", best, meta)
    save_models(folder / "models" / "final", final, meta)
    (folder / "silos").mkdir()
    kept = {"best": {"alpha": [0.9, 0.1]}, "final": {"alpha": [0.2, 0.8]}}
    (folder / "silos" / "clinic-3.json").write_text(json.dumps(kept))
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An npz of new samples, three quarters upright, with labels."""
    (a, la), (b, lb) = digits(False, 700, 850), digits(True, 850, 900)
    path = tmp_path_factory.mktemp("input") / "new.npz"
    np.savez(path, x=np.concatenate([a, b]), y=np.concatenate([la, lb]))
    return path


def test_a_silo_that_never_trained_gets_its_proportions_from_unlabelled_samples(run: Path, mixed: Path) -> None:
    found = predict(run, mixed)
    assert found.alpha == pytest.approx([0.75, 0.25], abs=0.03)
    assert found.alpha_source == "estimated from 200 unlabelled samples"
    assert found.responsibilities.argmax(1)[:150].mean() < 0.05
    assert found.responsibilities.argmax(1)[150:].mean() > 0.9
    assert found.accuracy > 0.8
    assert found.probabilities.sum(1) == pytest.approx(np.ones(200))


def test_labels_change_nothing_but_the_accuracy(run: Path, mixed: Path, tmp_path: Path) -> None:
    with np.load(mixed) as arrays:
        np.savez(tmp_path / "bare.npz", x=arrays["x"])
    bare, labelled = predict(run, tmp_path / "bare.npz"), predict(run, mixed)
    assert bare.accuracy is None
    assert np.array_equal(bare.probabilities, labelled.probabilities)


def test_proportions_of_a_silo_or_of_another_file(run: Path, mixed: Path, tmp_path: Path) -> None:
    assert predict(run, mixed, silo="clinic-3").alpha == pytest.approx([0.9, 0.1])
    assert predict(run, mixed, silo="clinic-3", which="final").alpha == pytest.approx([0.2, 0.8])
    np.savez(tmp_path / "turned.npz", x=digits(True, 1000, 1200)[0])
    assert predict(run, mixed, proportions_from=tmp_path / "turned.npz").alpha[1] > 0.95
    with pytest.raises(DeliveryError, match="not from both"):
        predict(run, mixed, silo="clinic-3", proportions_from=mixed)


def test_best_and_final_are_both_there_and_differ(run: Path, mixed: Path) -> None:
    assert predict(run, mixed, which="best").accuracy > predict(run, mixed, which="final").accuracy + 0.4
    with pytest.raises(DeliveryError, match="best or final"):
        predict(run, mixed, which="last")


def test_the_mixture_is_the_weighted_sum_of_the_experts_and_map_the_likelier_one(run: Path, mixed: Path) -> None:
    delivery = load_run(run)
    x = torch.from_numpy(np.load(mixed)["x"][140:160, None] / 16.0).float()
    soft = predict(run, mixed, silo="clinic-3").probabilities[140:160]
    hard = predict(run, mixed, silo="clinic-3", gating="map").probabilities[140:160]
    for i in range(20):
        logs, classes = [], []
        for vae, expert, share in zip(delivery.vaes, delivery.experts, [0.9, 0.1], strict=True):
            with torch.no_grad():
                mean, logvar = vae.encode(x[i : i + 1])
                loss = vae.reconstruction_nll(x[i : i + 1], vae.decode(mean)) + vae.kl(mean, logvar)
                classes.append(torch.softmax(expert(x[i : i + 1]), 1)[0].double().numpy())
            logs.append(-float(loss) + math.log(share))
        odds = math.exp(logs[1] - logs[0])
        weights = [1 / (1 + odds), odds / (1 + odds)]
        assert soft[i] == pytest.approx(weights[0] * classes[0] + weights[1] * classes[1], abs=1e-5)
        assert hard[i] == pytest.approx(classes[int(odds > 1)], abs=1e-6)


class FixedVae(nn.Module):
    """Loses ``loss`` nats on everything."""

    def __init__(self, loss: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(loss))

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(len(x), 1), torch.zeros(len(x), 1)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return z

    def reconstruction_nll(self, x: torch.Tensor, decoded: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(len(x))

    def kl(self, mean: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(mean))

    def check_range(self, x: torch.Tensor) -> None:
        pass


class FixedExpert(nn.Module):
    """Says the same on everything."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.log(torch.tensor(probabilities)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(x), -1)


def test_a_mixture_computed_by_hand(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ℓ = 5 and 5 + 2 ln 3, T = 2, o = 0: r ∝ (α₀, α₁ / 3) = (½, ½ · ⅓) → (¾, ¼)."""
    delivery = load_run(run)
    fixed = Delivery(
        tmp_path, "best", delivery.config, DataShape((1, 2, 2), 2), ("no", "yes"),
        (FixedVae(5.0), FixedVae(5.0 + 2 * math.log(3))), (FixedExpert(0.9, 0.1), FixedExpert(0.2, 0.8)),
        2.0, None, None, {},
    )  # fmt: skip
    monkeypatch.setattr("fedgmi_fedml.deliver.load_run", lambda run_dir, which: fixed)
    (tmp_path / "silos").mkdir()
    (tmp_path / "silos" / "even.json").write_text('{"alpha": [0.5, 0.5]}')
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2, 2), np.uint8))
    found = predict(run, tmp_path / "x.npz", silo="even")
    assert found.responsibilities == pytest.approx(np.tile([0.75, 0.25], (3, 1)))
    assert found.probabilities == pytest.approx(np.tile([0.75 * 0.9 + 0.25 * 0.2, 0.75 * 0.1 + 0.25 * 0.8], (3, 1)))
    assert predict(run, tmp_path / "x.npz", silo="even", gating="map").probabilities[0] == pytest.approx([0.9, 0.1])


def test_output_as_csv_and_npz(run: Path, mixed: Path, tmp_path: Path) -> None:
    found = predict(run, mixed, silo="clinic-3", output=tmp_path / "deep" / "out.csv")
    with open(tmp_path / "deep" / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200
    assert list(rows[0]) == ["sample", "class", "probability", "component_0", "component_1", "label"]
    assert rows[7]["sample"] == "row 7"
    assert rows[7]["class"] == str(found.predicted[7])
    assert float(rows[7]["component_0"]) == pytest.approx(found.responsibilities[7, 0], abs=1e-6)
    predict(run, mixed, silo="clinic-3", output=tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["probabilities"], found.probabilities)
        assert np.array_equal(arrays["predicted"], found.predicted)
        assert arrays["alpha"].tolist() == [0.9, 0.1]
    with pytest.raises(DeliveryError, match=r"\.csv or \.npz"):
        predict(run, mixed, output=tmp_path / "out.xlsx")


def test_a_folder_of_images_with_one_unreadable(run: Path, tmp_path: Path) -> None:
    images, _ = digits(False, 700, 720)
    for i, image in enumerate(images):
        Image.fromarray((image * 15).astype(np.uint8)).save(tmp_path / f"{i:02d}.png")
    (tmp_path / "99.png").write_bytes(b"not a picture")
    found = predict(run, tmp_path)
    assert found.names[:2] == ("00.png", "01.png")
    assert len(found.names) == 20
    assert len(found.skipped) == 1


def copied(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def test_what_cannot_be_predicted_is_one_clear_error(run: Path, mixed: Path, tmp_path: Path) -> None:
    cases: list[tuple[type[FedgmiError], str, dict]] = [
        (DeliveryError, "did you mean clinic-3", {"silo": "clinic-4"}),
        (DeliveryError, "gating", {"gating": "soft"}),
    ]
    for kind, match, options in cases:
        with pytest.raises(kind, match=match) as caught:
            predict(run, mixed, output=tmp_path / "out.csv", **options)
        assert caught.value.exit_code == 2
    with pytest.raises(FedgmiError, match="no such file"):
        predict(run, tmp_path / "none.npz", output=tmp_path / "out.csv")
    with pytest.raises(CheckpointError, match=r"no run's folder"):
        predict(tmp_path, mixed)
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 9, 9), np.uint8))
    with pytest.raises(FedgmiError, match=r"\(1, 9, 9\)"):
        predict(run, tmp_path / "wide.npz")
    np.savez(tmp_path / "range.npz", x=np.full((3, 8, 8), 200, np.uint8))
    with pytest.raises(FedgmiError, match=r"200|12\.5") as caught:
        predict(run, tmp_path / "range.npz", output=tmp_path / "out.csv")
    assert isinstance(caught.value, FedgmiError)
    assert not (tmp_path / "out.csv").exists()


def test_values_outside_the_likelihood_name_the_range(run: Path) -> None:
    with pytest.raises(RangeError, match="0 to 2"):
        load_run(run).scores(torch.linspace(0, 2, 64).reshape(1, 1, 8, 8))


def test_damaged_runs_name_the_file(run: Path, mixed: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    (copy / "silos" / "clinic-3.json").write_text('{"best": {"alpha": [0.5, -0.5]}}')
    with pytest.raises(DeliveryError, match=r"clinic-3\.json"):
        predict(copy, mixed, silo="clinic-3")
    (copy / "silos" / "clinic-3.json").write_text("{")
    with pytest.raises(DeliveryError, match=r"clinic-3\.json"):
        predict(copy, mixed, silo="clinic-3")
    model = copy / "models" / "best" / "expert-1.safetensors"
    model.write_bytes(model.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"expert-1\.safetensors"):
        predict(copy, mixed)
    states, meta = load_models(run / "models" / "best")
    del states["vae-1"]
    save_models(copy / "models" / "best", states, meta)
    with pytest.raises(CheckpointError, match="no model vae-1"):
        predict(copy, mixed)


def test_fitted_calibration_is_used_and_required(run: Path, mixed: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    config = load_config(
        "digits", (*OVERRIDES, "fedgmi_args.affinity.temperature=auto", "fedgmi_args.affinity.offset=true")
    )
    (copy / "config.yaml").write_text(config.to_yaml())
    with pytest.raises(DeliveryError, match="temperature"):
        predict(copy, mixed)
    states, meta = load_models(run / "models" / "best")
    save_models(copy / "models" / "best", states, {**meta, "temperature": 4.0})
    with pytest.raises(DeliveryError, match="offset"):
        predict(copy, mixed)
    save_models(copy / "models" / "best", states, {**meta, "temperature": 4.0, "offset": [1000.0, 0.0]})
    delivery = load_run(copy)
    assert delivery.temperature == 4.0
    assert predict(copy, mixed).responsibilities[:, 0].min() > 0.99  # a loss that is excused by 1000 nats always wins


@pytest.mark.parametrize("silo", [None, "clinic-3"])
def test_safetensors_export_is_a_whole_copy(run: Path, tmp_path: Path, silo: str | None) -> None:
    files = export(run, tmp_path / "out", silo=silo)
    assert sorted(path.name for path in files) == sorted(path.name for path in (tmp_path / "out").iterdir())
    states, _ = load_models(tmp_path / "out")
    original, _ = load_models(run / "models" / "best")
    assert all(torch.equal(states[m][k], original[m][k]) for m in original for k in original[m])
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert about["alpha"] == (None if silo is None else [0.9, 0.1])
    assert load_config(tmp_path / "out" / "config.yaml").fedgmi_args.components == 2
    with pytest.raises(DeliveryError, match="there already"):
        export(run, tmp_path / "out")


ort = pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")


@ort
@pytest.mark.slow
@pytest.mark.parametrize("gating", ["mixture", "map"])
def test_onnx_computes_what_torch_computes_on_real_samples(run: Path, mixed: Path, tmp_path: Path, gating: str) -> None:
    import onnxruntime

    export(run, tmp_path / "own", format="onnx", silo="clinic-3", gating=gating)
    export(run, tmp_path / "any", format="onnx", gating=gating)
    names = ["expert-0.onnx", "expert-1.onnx", "export.json", "predictor.onnx", "vae-0.onnx", "vae-1.onnx"]
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == names
    x = (np.load(mixed)["x"][:, None] / 16.0).astype(np.float32)
    expected = predict(run, mixed, silo="clinic-3", gating=gating)
    own = onnxruntime.InferenceSession(str(tmp_path / "own" / "predictor.onnx"))
    probabilities, shares = own.run(None, {"x": x})
    assert np.abs(probabilities - expected.probabilities).max() <= 1e-4
    assert np.abs(shares - expected.responsibilities).max() <= 1e-4
    shared = onnxruntime.InferenceSession(str(tmp_path / "any" / "predictor.onnx"))
    other = shared.run(None, {"x": x, "alpha": np.array([0.9, 0.1], np.float32)})[0]
    assert np.abs(other - expected.probabilities).max() <= 1e-4
    loss = onnxruntime.InferenceSession(str(tmp_path / "own" / "vae-1.onnx")).run(["loss"], {"x": x})[0]
    assert np.abs(loss - load_run(run).scores(torch.from_numpy(x))[:, 1].numpy()).max() <= 1e-3
    about = json.loads((tmp_path / "own" / "export.json").read_text())
    assert about["silo"] == "clinic-3"
    assert about["input"]["shape"] == ["batch", 1, 8, 8]
    assert max(max(outputs.values()) for outputs in about["largest_difference_from_torch"].values()) <= 1e-4


@ort
def test_a_file_that_computes_something_else_is_not_handed_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = onnx_export._to_bytes

    def wrong(module: nn.Module, *rest: object) -> bytes:
        if isinstance(module, onnx_export._Expert):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(1e-3)
            data = real(module, *rest)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(1e-3)
            return data
        return real(module, *rest)

    monkeypatch.setattr(onnx_export, "_to_bytes", wrong)
    with pytest.raises(DeliveryError, match="differ in logits"):
        export(run, tmp_path / "out", format="onnx")
    assert not (tmp_path / "out").exists()


def test_without_onnx_the_error_says_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeliveryError, match=r"onnx and onnxruntime: install fedgmi-fedml\[onnx\]"):
        export(run, tmp_path / "out", format="onnx")
    with pytest.raises(DeliveryError, match="safetensors, onnx"):
        export(run, tmp_path / "out", format="pickle")
    assert not (tmp_path / "out").exists()


@ort
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "vae", "expert", "components"),
    [
        ((3, 32, 32), "conv", "cnn", 2),
        ((3, 32, 32), "conv", "resnet18_bn", 1),
        ((1, 28, 28), "mlp", "cnn", 3),
        ((30,), "tabular", "mlp", 2),
    ],
)
def test_every_shipped_kind_of_model_can_be_exported(
    tmp_path: Path, shape: tuple[int, ...], vae: str, expert: str, components: int
) -> None:
    overrides = (f"model_args.vae={vae}", f"model_args.model={expert}", f"fedgmi_args.components={components}")
    plain = ("model_args.vae_options={}", "model_args.model_options={}")
    config = load_config("digits", (*overrides, *plain))
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    kind = DataShape(shape, 4, "real" if len(shape) == 1 else "unit")
    states = {}
    for j in range(components):
        states[f"vae-{j}"] = export_state(build_vae(config, kind, j))
        states[f"expert-{j}"] = export_state(build_expert(config, kind, j))
    meta = {
        "input_shape": list(shape),
        "value_range": kind.value_range,
        "class_names": list("abcd"),
        "components": components,
    }
    save_models(tmp_path / "models" / "best", states, meta)
    files = export(tmp_path, tmp_path / "out", format="onnx")
    assert len(files) == 2 * components + 2
