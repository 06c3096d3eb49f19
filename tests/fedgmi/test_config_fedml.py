"""FedML's own loader reads the same files, and finds what it needs to start (slow: importing FedML takes seconds)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgmi_fedml.config import config_folder, config_names, load_config
from fedgmi_fedml.config.reader import parse_document

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("fedml") is None, reason="FedML is not installed (Python 3.12)"),
]

# A fresh interpreter with a private home: FedML keeps state in its environment and in the user's home.
PROBE = """
import json, sys
from fedml.arguments import load_arguments
found = {}
for path in sys.argv[1:]:
    sys.argv = ["run", "--cf", path, "--role", "server", "--rank", "0"]
    args = load_arguments("cross_silo")
    found[path] = {key: value for key, value in vars(args).items() if not key.startswith("_")}
print("FOUND " + json.dumps(found, default=str))
"""

NEEDED = (
    "training_type",
    "scenario",
    "random_seed",
    "dataset",
    "model",
    "federated_optimizer",
    "client_num_in_total",
    "client_num_per_round",
    "comm_round",
    "epochs",
    "batch_size",
    "learning_rate",
    "backend",
    "using_mlops",
    "frequency_of_the_test",
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Each shipped file, and the effective dump of each, as FedML's loader sees them."""
    home = tmp_path_factory.mktemp("home")
    paths = [str(config_folder() / f"{name}.yaml") for name in config_names()]
    for name in config_names():
        dump = home / f"{name}.yaml"
        dump.write_text(load_config(name, ["train_args.learning_rate=1e-5"]).to_yaml(), encoding="utf-8")
        paths.append(str(dump))
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *paths],
        env={**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, dict[str, object]] = json.loads(line[len("FOUND ") :])
    assert len(found) == 2 * len(config_names())
    return found


def test_what_fedml_needs_is_there(loaded: dict[str, dict[str, object]]) -> None:
    for path, args in loaded.items():
        missing = [name for name in NEEDED if name not in args]
        assert not missing, f"{path}: {missing}"
        assert args["federated_optimizer"] == "FedGMI"
        assert isinstance(args["learning_rate"], float), path


def test_fedml_reads_the_same_values_as_we_do(loaded: dict[str, dict[str, object]]) -> None:
    """Nothing is lost when the sections' names are dropped, and no number stays text."""
    for path, args in loaded.items():
        values = parse_document(Path(path).read_text(encoding="utf-8")).values
        flat = {key: value for body in values.values() for key, value in body.items()}
        assert len(flat) == sum(len(body) for body in values.values())
        for key, value in flat.items():
            assert args[key] == value, f"{path}: {key}"
            assert type(args[key]) is type(value), f"{path}: {key}"
