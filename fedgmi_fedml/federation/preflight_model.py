"""Preflight: versions, device, data, models, and one training step on a few real samples."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import replace

import torch

from fedgmi_fedml.data import SiloData, TableMoments, apply_moments, load_federation, load_silo, table_statistics
from fedgmi_fedml.data.announced import announced
from fedgmi_fedml.errors import ConfigError, DataError, ModelError
from fedgmi_fedml.federation.preflight import Finding, Missing, Node, needed
from fedgmi_fedml.local_training import pick_device, train_expert, train_vae
from fedgmi_fedml.models import export_state
from fedgmi_fedml.rounds.phases import Phases
from fedgmi_fedml.rounds.workbench import Workbench
from fedgmi_fedml.version import WIRE_VERSION, __version__

FEW = 32
"""Samples of the trial step, at most."""


def versions(node: Node) -> Finding:
    """What this node runs: every party needs the same version of FedGMI."""
    return Finding(
        f"fedgmi {__version__} (messages: version {WIRE_VERSION}), Python {platform.python_version()}, "
        f"torch {torch.__version__}"
    )


def device(node: Node) -> Finding:
    """Is the device there that the configuration names?"""
    wanted = needed(node.config, "a valid configuration").device_args.device
    found = pick_device(wanted)
    if found.type == "cpu":
        return Finding(f"cpu ({torch.get_num_threads()} threads)")
    torch.zeros(1, device=found)  # drivers show only now whether they work
    return Finding(f"{found}: {torch.cuda.get_device_name(found)}")


def data(node: Node) -> Finding:
    """Can this silo's samples be read?"""
    config, request = needed(node.config, "a valid configuration"), node.request
    label = node.kit.name if node.kit is not None else "silo"
    if request.part is not None:
        total = config.train_args.client_num_in_total
        if request.part > total:
            raise ConfigError(f"--simulated-part {request.part}: the configuration deals samples to {total} silos")
        found = load_federation(config, only={request.part - 1}).silos[request.part - 1]
    elif request.data is None:
        raise Missing("needs this silo's samples (--data)")
    else:
        found = load_silo(config, request.data, name=label)
    _finite(found)
    node.data = found
    held = f"{len(found.x_train)} samples to train on, {len(found.x_val)} to validate, {len(found.x_test)} to test"
    if not len(found.x_train):
        return Finding("holds no samples to train on: the silo takes part with no weight", "warn")
    if found.skipped:
        files = f"{found.skipped} of {found.used + found.skipped} files or rows"
        return Finding("some files or rows cannot be read and are left out", "warn", f"{files}; {held}")
    return Finding("read", local=held)


def _finite(found: SiloData) -> None:
    if found.needs_moments:  # a table's rows: missing values are allowed where its columns say so
        return
    for part in ("train", "val", "test"):
        if not bool(torch.isfinite(found.part(part)[0]).all()):
            raise DataError(f"{found.name}: samples to {part} hold NaN or infinite values; remove or repair them")


def announced_samples(node: Node) -> Finding:
    """Do the samples look as all parties were told?"""
    config = needed(node.config, "a valid configuration")
    node.announced = told = announced(config, pooled=node.request.repeatable)
    shape = " × ".join(map(str, told.shape.input_shape))
    text = f"shape {shape}, {len(told.class_names)} classes"
    if node.role == "server":
        return Finding(f"{text} (the server sees none of them)")
    if node.data is None:
        return Finding(f"{text}; this silo's own were not compared, as they could not be read", "warn")
    told.check(node.data)
    return Finding(f"this silo's are as announced: {text}")


def model(node: Node) -> Finding:
    """Can the models be built for these samples?"""
    config, told = needed(node.config, "a valid configuration"), needed(node.announced, "announced samples")
    phases = Phases(config, told.shape, schema=told.schema)
    node.bench = bench = Workbench(phases)
    if bench.vae is not None and node.data is not None and len(node.data.x_train) and not node.data.needs_moments:
        bench.vae.check_range(node.data.x_train)
    count = phases.rounds_layout.length
    return Finding(f"{config.fedgmi_args.components} VAEs and experts, {count:,} parameters travel in a round")


def quantiser(node: Node) -> Finding:
    """Does every upload of the run fit its ring?"""
    bench = needed(node.bench, "models that can be built")
    bench.phases.check_capacity(node.silos)
    return Finding(f"sums of {node.silos} silos fit")


def training_step(node: Node) -> Finding:
    """One step of VAE and expert on a few real samples: finite, and how long it takes."""
    bench, held = needed(node.bench, "models that can be built"), needed(node.data, "this silo's samples")
    if node.announced is not None:
        try:
            node.announced.check(held)
        except DataError:
            raise Missing("needs samples that are as announced") from None
    count = min(FEW, len(held.x_train), bench.expert_settings.batch_size)
    if not count:
        raise Missing("this silo has no samples to train on")
    if held.needs_moments and held.schema is not None:
        # In a run all silos' rows are standardised with summed moments; for a trial this silo's own do.
        held = apply_moments(held, TableMoments.from_totals(held.schema, table_statistics(held)))
    rows, seconds = torch.arange(count), []
    for name in ("VAE", "expert"):
        started = time.monotonic()
        loss = _step(bench, held, rows, name)
        seconds.append(time.monotonic() - started)
        if not math.isfinite(loss):
            raise ModelError(f"one step of the {name} gives no finite loss: scale the data, or lower the learning rate")
    node.notes["step_seconds"] = sum(seconds)
    shown = f"{1000 * seconds[0]:.0f} ms for the VAE's, {1000 * seconds[1]:.0f} ms for the expert's"
    return Finding(f"finite on {bench.device.type}; {shown} (the first step is the slowest)")


def _step(bench: Workbench, held: SiloData, rows: torch.Tensor, name: str) -> float:
    """Mean loss of one gradient step, nats; the modules are left as they were."""
    generator = torch.Generator().manual_seed(0)
    if name == "VAE":
        if bench.vae is None:
            return 0.0
        start = export_state(bench.vae)
        settings = replace(bench.vae_settings, epochs=1)
        return train_vae(bench.vae, start, held.x_train, settings, generator, index=rows, what="trial step, VAE")[1]
    start = export_state(bench.expert)
    settings = replace(bench.expert_settings, epochs=1)
    _, stats = train_expert(
        bench.expert, start, held.x_train, held.y_train, settings, generator, index=rows, what="trial step, expert"
    )
    return stats.loss
