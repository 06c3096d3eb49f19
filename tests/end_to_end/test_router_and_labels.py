"""The affinity's further terms through the drivers: a federated router, and labels in the training partition."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedgmi_fedml.config import load_config
from fedgmi_fedml.data import load_federation
from fedgmi_fedml.deliver import export, load_run, predict
from fedgmi_fedml.errors import CheckpointError, Interrupted

BOTH = (
    "fedgmi_args.affinity.router=true",
    "fedgmi_args.affinity.labels=true",
    "fedgmi_args.affinity.offset=true",
    "fedgmi_args.affinity.temperature=2.0",
    "train_args.comm_round=4",
)
NONE = "fedgmi_args.secure.backend=none"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def run(small_shared):
    """Folder and summary of a masked run with both terms."""
    folder = small_shared.root / "both"
    return folder, small_shared(*BOTH, out=folder)


@pytest.fixture
def new_samples(run, tmp_path):
    """Unlabelled and labelled files of one silo's test part."""
    folder, _ = run
    silo = load_federation(load_config(folder / "config.yaml")).silos[0]
    x = (silo.x_test[:, 0].numpy() * 16).round().astype(np.uint8)
    np.savez(tmp_path / "bare.npz", x=x)
    np.savez(tmp_path / "labelled.npz", x=x, y=silo.y_test.numpy())
    return silo, tmp_path


def models(folder, which="final"):
    return {path.stem: load_file(path) for path in sorted((folder / "models" / which).glob("*.safetensors"))}


def test_the_router_travels_and_is_saved(run):
    folder, summary = run
    saved = models(folder)
    assert sorted(saved) == ["expert-0", "expert-1", "router-0", "vae-0", "vae-1"]
    assert [t.shape[0] for name, t in saved["router-0"].items() if name.endswith("bias")][-1] == 2
    assert summary["secure"]["parameters"] == sum(t.numel() for m in saved.values() for t in m.values())
    meta = json.loads((folder / "models" / "final" / "manifest.json").read_text())["meta"]
    assert sum(meta["shares"]) == pytest.approx(1.0, abs=1e-6)
    assert summary["best_round"] >= 1, "models from before the router has a say are never the best"
    assert summary["secure"]["frozen_components"] == []


def test_masked_and_none_agree_to_the_quantiser(run, small_shared):
    """The router is one more component of the same sums: no masks, same models, to fixed-point rounding."""
    folder, _ = run
    plain = small_shared.root / "plain"
    small_shared(*BOTH, NONE, out=plain)
    ours, theirs = models(folder), models(plain)
    assert max(float((ours[m][k] - theirs[m][k]).abs().max()) for m in ours for k in ours[m]) < 2e-3


def test_terms_wait_for_the_third_round_and_change_the_run_then(small_shared):
    """Two rounds with labels on end in the bits of two rounds without; three do not."""
    args = ("fedgmi_args.affinity.labels=true", NONE)
    two = [small_shared(*more, NONE)["model_digests"]["final"] for more in ((), args)]
    assert two[0] == two[1]
    three = [small_shared("train_args.comm_round=4", *more, NONE)["model_digests"]["final"] for more in ((), args)]
    assert three[0] != three[1]


def test_a_router_that_is_off_leaves_no_trace(small_shared):
    """Its settings alone change nothing, nor is anything of it saved."""
    folder = small_shared.root / "off"
    off = small_shared("fedgmi_args.affinity.router_weight=3.0", NONE, out=folder)
    assert off["model_digests"] == small_shared(NONE)["model_digests"]
    assert not any("router" in name for name in models(folder))


@pytest.mark.slow
def test_workers_change_nothing(run, small_shared):
    assert small_shared(*BOTH, workers=2)["model_digests"] == run[1]["model_digests"]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_resume_ends_in_the_same_bits(small_shared, share):
    counted = []
    whole = small_shared(*BOTH, NONE, fault=lambda *a: (counted.append(1), (a[2],))[1])
    stop, seen = int(len(counted) * share), []

    def pull_the_plug(direction, silo, payload):
        seen.append(1)
        if len(seen) == stop:
            raise KeyboardInterrupt
        return (payload,)

    folder = small_shared.root / f"cut-{share}"
    with pytest.raises(Interrupted):
        small_shared(*BOTH, NONE, out=folder, fault=pull_the_plug)
    assert small_shared(*BOTH, NONE, out=folder, resume=True)["model_digests"] == whole["model_digests"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        ("fedgmi_args.components=1",),
        (
            "fedgmi_args.components=3",
            "fedgmi_args.initialisation.candidates=null",
            "fedgmi_args.affinity.router_model=expert",
        ),
        ("fedgmi_args.affinity.temperature=auto", "train_args.partition_every=2"),
        ("train_args.client_num_per_round=5", "fedgmi_args.affinity.router_weight=2.0"),
        ("validation_args.evaluate_oracle=true", "validation_args.evaluate_baselines=[local, fedavg]"),
        ("train_args.client_optimizer=sgd", "fedgmi_args.affinity.score=iwae"),
    ],
)
def test_they_go_with_other_options(small_shared, changes):
    assert small_shared(*BOTH, *changes)["rounds"] == 4


def test_the_router_gates_predictions_as_the_silo_itself_does(run, new_samples):
    """``predict`` with a silo's proportions gives the figures of the silo's own report; labels change nothing."""
    folder, _ = run
    silo, place = new_samples
    bare = predict(folder, place / "bare.npz", silo=silo.name, which="final")
    labelled = predict(folder, place / "labelled.npz", silo=silo.name, which="final")
    assert np.array_equal(bare.probabilities, labelled.probabilities)
    kept = json.loads((folder / "silos" / f"{silo.name}.json").read_text())["final"]["test"]
    assert round(labelled.accuracy * kept["samples"]) == kept["correct"]


def test_a_late_joiner_asks_the_router(run, new_samples):
    """Its α comes from EM over affinities that include the router: flat losses leave the router's votes."""
    folder, _ = run
    _, place = new_samples
    delivery = load_run(folder)
    x = torch.from_numpy(np.load(place / "bare.npz")["x"][:, None] / 16.0).float()
    evidence = delivery.evidence(x)
    with torch.no_grad():
        voices = torch.softmax(delivery.router(x), 1).double()
    by_hand = (torch.log(voices) - torch.log(delivery.shares / delivery.shares.sum())).clamp_min(-10.0)
    assert torch.allclose(evidence.extra, by_hand, atol=1e-5)
    alpha = predict(folder, place / "bare.npz").alpha
    assert alpha == pytest.approx(delivery.proportions(evidence, 20).numpy())


def test_a_run_whose_router_is_lost_says_so(run, tmp_path):
    import shutil

    shutil.copytree(run[0], tmp_path / "copy")
    config = tmp_path / "copy" / "config.yaml"
    config.write_text(config.read_text().replace("router_model: mlp", "router_model: expert"))
    with pytest.raises(Exception, match="router|tensor"):
        load_run(tmp_path / "copy")
    for which in ("best", "final"):
        (tmp_path / "copy" / "models" / which / "router-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match="router-0"):
        load_run(tmp_path / "copy")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_onnx_has_the_router_in_it(run, new_samples):
    import onnxruntime

    folder, _ = run
    silo, place = new_samples
    files = export(folder, place / "onnx", format="onnx", silo=silo.name)
    assert "router.onnx" in {path.name for path in files}
    expected = predict(folder, place / "bare.npz", silo=silo.name)
    x = (np.load(place / "bare.npz")["x"][:, None] / 16.0).astype(np.float32)
    found, shares = onnxruntime.InferenceSession(str(place / "onnx" / "predictor.onnx")).run(None, {"x": x})
    assert np.abs(found - expected.probabilities).max() <= 1e-4
    assert np.abs(shares - expected.responsibilities).max() <= 1e-4
