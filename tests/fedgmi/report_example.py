"""A made-up but plausible finished run on disk, for the tests of the report (and to look at the page)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgmi_fedml.report import ReportData
from fedgmi_fedml.summary import RulesSummary, RunSummary, SecureSummary
from fedgmi_fedml.telemetry import open_telemetry

SECURE = SecureSummary(
    backend="masked",
    upload_bytes_per_parameter=4.02,
    parameters=61_706,
    rules=RulesSummary(colluders=1, max_drops=1, min_contributors=4, min_samples=8, w_max=0.5),
    gate=4,
    threshold=9,
    quorum=9,
    cohort_size=12,
    clip=8.0,
    clipped_share=0.0,
    roster="copper-lamp-042 river-tin-517",
    sessions=32,
    aborted_sessions=0,
    dropped_silos=1,
    partial_rounds=1,
)


def summary(components: int, silos: int) -> RunSummary:
    """Figures of a good run."""
    matrix = 0.38 + 0.55 * np.eye(components) + 0.02 * np.arange(components)[:, None] / components
    return RunSummary(
        run_name="digits",
        dataset="digits",
        components=components,
        silos=silos,
        alpha_mae=0.0009,
        partition_accuracy=0.9987,
        expert_accuracy=matrix,
        specialisation_gap=0.553,
        personalised_accuracy=0.908,
        pooled_accuracy={"fedgmi": 0.9132, "fedavg": 0.8611, "local": 0.7989, "oracle": 0.9167},
        oracle_accuracy=0.9167,
        effective_components=1.98,
        misassignment_rate=0.004,
        rounds=10,
        best_round=8,
        wall_seconds=48.2,
        phase_seconds={"candidates": 8.1, "warmup": 12.4, "rounds": 25.9, "evaluate": 0.6},
        secure=SECURE,
        seed=0,
        versions={"python": "3.11.2", "torch": "2.14.1", "numpy": "1.26.4"},
        config_digest="5f" * 32,
        model_digests={"final": "ab" * 32, "best": "cd" * 32},
        warnings=["Silo 3 dropped out in round 4; that round's step was shorter, its metrics were left out."],
    )


def write_rounds(run_dir: Path, components: int, silos: int) -> None:
    """Curves that fall and rise as those of a real run, with a gap, a partial round and another method."""
    rng = np.random.default_rng(1)
    costs = {"bytes_up": 247_000 * silos, "bytes_down": 494_000 * silos, "messages": 6 * silos}
    with open_telemetry(run_dir, "simulation") as telemetry:
        for number in range(4):
            losses = [52 - 5 * number + rng.normal() for _ in range(3)]
            telemetry.round({"phase": "candidates", "round": number, "candidate_loss": losses, "seconds": 2.0, **costs})
        for number in range(8):
            losses = [32 - 1.1 * number + 2 * j / (1 + number) for j in range(components)]
            record = {"phase": "warmup", "round": number, "vae_loss": losses, "beta": 1 + 2.0 * number, "seconds": 1.5}
            telemetry.round({**record, "step_seconds": {"score": 0.2, "train": 1.0, "protocol": 0.3}, **costs})
        for number in range(10):
            rise = 1 - np.exp(-(number + 1) / 3)
            telemetry.round(
                {
                    "phase": "rounds",
                    "round": number,
                    "vae_loss": [23.5 - 2 * rise + 0.3 * j for j in range(components)],
                    "expert_loss": [float("nan") if number == 3 and j == 1 else 2.3 - 1.9 * rise + 0.1 * j
                                    for j in range(components)],
                    "test_accuracy": 0.1 + 0.81 * rise,
                    "validation_accuracy": None if number == 4 else 0.1 + 0.8 * rise + 0.01 * rng.normal(),
                    "alpha_mae": 0.012 * np.exp(-number / 2) + 0.0009,
                    "alpha_drift": 0.3 * np.exp(-number),
                    "partition_accuracy": 0.999 - 0.03 * np.exp(-number),
                    "confidence": 0.997 - 0.02 * np.exp(-number),
                    "component_weight": [1 / components] * components,
                    "complete": number != 4,
                    "dropped": [3] if number == 4 else [],
                    "seconds": 2.6,
                    "step_seconds": {"score": 0.3, "train": 1.8, "protocol": 0.4, "evaluate": 0.1},
                    **costs,
                }
            )  # fmt: skip
            telemetry.round(
                {"method": "fedavg", "phase": "rounds", "round": number, "test_accuracy": 0.1 + 0.76 * rise}
            )


def arrays(components: int, silos: int, samples: np.ndarray | None = None) -> ReportData:
    """Mixtures, divergences, pictures and accuracies to go with the figures."""
    rng = np.random.default_rng(0)
    if components == 2:
        share = (np.arange(silos) + 0.5) / silos
        truth = np.stack([share, 1 - share], axis=1)
    else:
        truth = rng.dirichlet(np.ones(components), silos)
    noisy = np.clip(truth + rng.normal(0, 0.012, truth.shape), 0.001, None)
    far = 60 + 40 * rng.random((components, components))
    near = 3 + 40 * rng.random((6, 6))
    names = [f"rotate {360 // max(4, components) * j}" for j in range(components)]
    return ReportData(
        separability=(far + far.T) / 2 * (1 - np.eye(components)),
        candidate_separability=(near + near.T) / 2 * (1 - np.eye(6)),
        chosen=np.array([1, 4]),
        samples=rng.random((components, 32, 1, 8, 8)).astype(np.float32) if samples is None else samples,
        class_names=np.array([str(i) for i in range(10)]),
        silo_names=np.array([f"silo {i + 1}" for i in range(silos)]),
        alpha=noisy / noisy.sum(1, keepdims=True),
        true_alpha=truth,
        true_names=np.array(names),
        true_of=np.arange(components),
        silo_accuracy=0.91 + 0.04 * rng.normal(size=silos).clip(-2, 2),
        silo_samples=rng.integers(90, 130, silos),
        other_accuracy={
            "fedavg": 0.86 + 0.05 * rng.normal(size=silos).clip(-2, 2),
            "local": 0.80 + 0.05 * rng.normal(size=silos).clip(-2, 2),
        },
    )


def write_run(run_dir: Path, components: int = 2, silos: int = 12, samples: np.ndarray | None = None) -> Path:
    """The whole folder that ``write_report`` reads."""
    run_dir.mkdir(parents=True, exist_ok=True)
    summary(components, silos).save(run_dir)
    write_rounds(run_dir, components, silos)
    arrays(components, silos, samples).save(run_dir, "simulation")
    return run_dir
