"""The simulation's peak memory does not grow with silos × model size: updates wait on disk and are added one by one."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, tempfile, threading, time
from pathlib import Path
from fedgmi_fedml.config import load_config
from fedgmi_fedml.simulate import run_simulation

def anonymous():  # what the process holds; pages of spool files are the kernel's to take back
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

peak = [0]

def watch():
    while True:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)

threading.Thread(target=watch, daemon=True).start()
silos = int(sys.argv[1])
changes = [
    f"train_args.client_num_in_total={silos}", f"train_args.client_num_per_round={silos}",
    "data_args.silo_mixture.samples_per_silo=30", "train_args.comm_round=2", "train_args.epochs=1",
    "train_args.batch_size=30", "fedgmi_args.initialisation.candidate_rounds=1",
    "fedgmi_args.initialisation.candidate_epochs=1", "fedgmi_args.initialisation.candidates=2",
    "fedgmi_args.initialisation.warmup_rounds=1", "validation_args.evaluate_baselines=[]",
    "model_args.model_options={hidden: [16384]}",
    "model_args.vae_options={hidden: [32], latent: 4, likelihood: bernoulli}",
]
with tempfile.TemporaryDirectory() as folder:
    run_simulation(load_config("digits", changes), Path(folder) / "run")
    parameters = json.loads((Path(folder) / "run" / "summary.json").read_text())["secure"]["parameters"]
print(json.dumps([peak[0], parameters]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_peak_memory_does_not_grow_with_the_number_of_silos():
    """8 and 32 silos with 2.4 M parameters: 24 more silos that held one vector each would need 236 MB more."""

    def peak(silos):
        run = [sys.executable, "-c", PROGRAM, str(silos)]
        done = subprocess.run(run, capture_output=True, text=True, timeout=500, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    few, parameters = peak(8)
    many, _ = peak(32)
    held = 24 * parameters * 4
    assert parameters > 2_000_000
    assert many - few < 0.35 * held, f"{(many - few) / 1e6:.0f} MB more, of {held / 1e6:.0f} MB of vectors"
