"""Small runs of the whole system on scikit-learn's digits: seconds each, the same drivers and bytes as a deployment."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from fedgmi_fedml.config import load_config
from fedgmi_fedml.simulate import run_simulation

sys.path.insert(0, str(Path(__file__).parent))  # the folder's helpers: tests are no package
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

SMALL = (
    "train_args.client_num_in_total=6",
    "train_args.client_num_per_round=6",
    "train_args.comm_round=2",
    "train_args.epochs=1",
    "data_args.silo_mixture.samples_per_silo=60",
    "fedgmi_args.initialisation.candidate_rounds=2",
    "fedgmi_args.initialisation.candidate_epochs=1",
    "fedgmi_args.initialisation.candidates=2",
    "fedgmi_args.initialisation.warmup_rounds=1",
    "fedgmi_args.initialisation.kl_samples=32",
    "validation_args.evaluate_baselines=[]",
    "validation_args.frequency_of_the_test=1",
    "model_args.vae_options={hidden: [32], latent: 4, likelihood: bernoulli}",
    "model_args.model_options={hidden: [16]}",
)


class SmallRun:
    """Runs a small simulation and reads what it left."""

    def __init__(self, root):
        self.root, self.count = root, 0

    def __call__(self, *changes, out=None, config="digits", **how):
        self.count += 1
        folder = out or self.root / f"run-{self.count}"
        report = run_simulation(load_config(config, [*SMALL, *changes]), folder, **how)
        assert report == folder / "report.html"
        assert report.stat().st_size > 5000
        return json.loads((folder / "summary.json").read_text())

    def rounds(self, out):
        return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture
def small(tmp_path):
    return SmallRun(tmp_path)


@pytest.fixture(scope="module")
def small_shared(tmp_path_factory):
    """The same, for runs that several tests of a module look at."""
    return SmallRun(tmp_path_factory.mktemp("shared"))
