"""``fedgmi bench peers``: Flower's SecAgg+ on the vectors, silos and drops of ``fedgmi bench secure``, and the ratios.

Flower's packages and this one's do not go together (NumPy, protobuf, click), so Flower runs in an environment of its
own, which a Python named on the command line belongs to::

    python -m venv ENV && ENV/bin/pip install flwr
    fedgmi bench peers --python ENV/bin/python

This file is also what that Python runs: as a script it imports NumPy and Flower and nothing of ours. Measured are
Flower's own functions of each stage on client and server, called in the order of its workflow, one after the other in
one process, without its transport: plain SecAgg (every silo a neighbour of every other), threshold ⌊2K/3⌋ + 1, Flower's
default quantiser.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

__all__ = ["RATIOS", "bench_peers", "flower_figures"]

RATIOS = ("silo_seconds", "server_seconds", "control_seconds", "upload_bytes", "max_abs_error")
_CLIP, _TARGET, _MODULUS = 8.0, 1 << 22, 1 << 32
_MAX_WEIGHT, _EXAMPLES = 1000.0, 1000  # full weight: Flower's smallest error
_TINY, _TIMEOUT = 64, 1800


def bench_peers(python: str, silos: int, parameters: int, drops: int, repeats: int) -> dict[str, Any]:
    """Figures of Flower and of this package, and Flower's over ours; or ``skipped`` with the reason.

    Args:
        python: an interpreter that can import flwr.
        silos, parameters, drops, repeats: as for ``bench_secure``.
    """
    flower = flower_figures(python, silos, parameters, drops, repeats)
    if "skipped" in flower:
        return flower
    from fedgmi_fedml.bench_secure import bench_secure

    ours = bench_secure("masked", silos, parameters, drops, repeats, compare_silos=0)
    ratios = {name: flower[name] / ours[name] for name in RATIOS}
    return {"flower": flower, "fedgmi": {name: ours[name] for name in RATIOS}, "flower_over_fedgmi": ratios}


def flower_figures(python: str, silos: int, parameters: int, drops: int, repeats: int) -> dict[str, Any]:
    """Run this file with another Python; ``skipped`` says why there is nothing to compare with."""
    settings = json.dumps({"silos": silos, "parameters": parameters, "drops": drops, "repeats": repeats})
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter is the user's choice
            [python, "-I", str(Path(__file__).resolve()), settings], capture_output=True, text=True, timeout=_TIMEOUT,
            check=False, env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
    except OSError as error:
        return {"skipped": f"{python} cannot be run: {error.strerror}"}
    except subprocess.TimeoutExpired:
        return {"skipped": f"Flower took longer than {_TIMEOUT} s"}
    try:
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"skipped": f"{python}: {last}"}
    return figures


# ── from here on: in Flower's environment ────────────────────────────────────────────────────────────────────────────
class _Flower:
    """Flower's functions, found once. Raises ImportError or AttributeError where its version has others."""

    def __init__(self) -> None:
        # By name: the type checker of this repository has no Flower, and a function of Flower hides one of its modules.
        root = "flwr.common.secure_aggregation"
        common, client, arithmetic, shamir, quantization = (
            importlib.import_module(name)
            for name in (
                "flwr.common", "flwr.client.mod.secure_aggregation.secaggplus_mod", f"{root}.ndarrays_arithmetic",
                f"{root}.crypto.shamir", f"{root}.quantization",
            )
        )  # fmt: skip
        self.client: Any = client
        self.arithmetic: Any = arithmetic
        self.combine, self.dequantize = shamir.combine_shares, quantization.dequantize
        self.to_array, self.to_parameters = common.bytes_to_ndarray, common.ndarrays_to_parameters
        self.stages = (client._setup, client._share_keys, client._collect_masked_vectors, client._unmask)
        self.key, self.generate = client.Key, client.pseudo_rand_gen


class _Run:
    """One aggregation: CPU seconds of every silo and stage, and of the server."""

    def __init__(self, flower: _Flower, silos: int, parameters: int, drops: int) -> None:
        self._flower, self._parameters = flower, parameters
        self.ids = list(range(1, silos + 1))
        self.alive = [silo for silo in self.ids if not 2 <= silo <= drops + 1]
        self._dead = [silo for silo in self.ids if silo not in self.alive]
        self.threshold = 2 * silos // 3 + 1
        self.spent: dict[tuple[int, str], float] = {}
        self._states = {silo: flower.client.SecAggPlusState() for silo in self.ids}
        self.upload_bytes = 0
        self.keys: dict[str, Any] = {}

    def _timed(self, party: int, stage: str, action: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = action()
        self.spent[party, stage] = self.spent.get((party, stage), 0.0) + time.process_time() - start
        return result

    def exchange_keys(self) -> dict[int, dict[str, Any]]:
        """Setup and share keys; returns what every silo gets of the others."""
        key, (setup, share, _, _) = self._flower.key, self._flower.stages
        settings = {
            key.SAMPLE_NUMBER: len(self.ids), key.SHARE_NUMBER: len(self.ids), key.THRESHOLD: self.threshold,
            key.CLIPPING_RANGE: _CLIP, key.TARGET_RANGE: _TARGET, key.MOD_RANGE: _MODULUS,
            key.MAX_WEIGHT: _MAX_WEIGHT,
        }  # fmt: skip
        for silo in self.ids:
            state = self._states[silo]
            state.nid = silo
            made = self._timed(silo, "setup", lambda: setup(state, settings))  # noqa: B023
            self.keys[str(silo)] = [made[key.PUBLIC_KEY_1], made[key.PUBLIC_KEY_2]]
        forwarded: dict[int, dict[str, Any]] = {i: {key.CIPHERTEXT_LIST: [], key.SOURCE_LIST: []} for i in self.ids}
        for silo in self.ids:
            state = self._states[silo]
            made = self._timed(silo, "share", lambda: share(state, dict(self.keys)))  # noqa: B023
            for to, sealed in zip(made[key.DESTINATION_LIST], made[key.CIPHERTEXT_LIST], strict=True):
                forwarded[to][key.CIPHERTEXT_LIST].append(sealed)
                forwarded[to][key.SOURCE_LIST].append(silo)
        return forwarded

    def collect(self, forwarded: dict[int, dict[str, Any]], spread: float) -> Any:
        """Masked vectors of the survivors, summed as they come in."""
        key, arithmetic, collect = self._flower.key, self._flower.arithmetic, self._flower.stages[2]
        total = None
        for silo in self.alive:
            state = self._states[silo]
            update = self._flower.to_parameters([vector_of(silo, self._parameters, spread)])
            made = self._timed(silo, "mask", lambda: collect(state, forwarded[silo], _EXAMPLES, update))  # noqa: B023
            self.upload_bytes = sum(map(len, made[key.MASKED_PARAMETERS]))

            def add(before: Any = total, parts: list[bytes] = made[key.MASKED_PARAMETERS]) -> Any:
                arrays = [self._flower.to_array(part) for part in parts]
                return arrays if before is None else arithmetic.parameters_addition(before, arrays)

            total = self._timed(0, "sum", add)
        return self._timed(0, "sum", lambda: arithmetic.parameters_mod(total, _MODULUS))

    def unmask(self, total: Any) -> Any:
        """Shares of the survivors, masks off, the mean."""
        key, unmask = self._flower.key, self._flower.stages[3]
        shares: dict[int, list[bytes]] = {silo: [] for silo in self.ids}
        wanted = {key.ACTIVE_NODE_ID_LIST: self.alive, key.DEAD_NODE_ID_LIST: self._dead}
        for silo in self.alive:
            state = self._states[silo]
            made = self._timed(silo, "unmask", lambda: unmask(state, wanted))  # noqa: B023
            for owner, share in zip(made[key.NODE_ID_LIST], made[key.SHARE_LIST], strict=True):
                shares[owner].append(share)
        return self._timed(0, "unmask", lambda: self._take_masks_off(total, shares))

    def _take_masks_off(self, total: Any, shares: dict[int, list[bytes]]) -> Any:
        flower, arithmetic, client = self._flower, self._flower.arithmetic, self._flower.client
        shapes = arithmetic.get_parameters_shape(total)
        for silo, held in shares.items():
            secret = flower.combine(held)
            if silo in self.alive:
                total = arithmetic.parameters_subtraction(total, flower.generate(secret, _MODULUS, shapes))
                continue
            for peer in (one for one in self.ids if one != silo):
                public = client.bytes_to_public_key(self.keys[str(peer)][0])
                shared = client.generate_shared_key(client.bytes_to_private_key(secret), public)
                change = arithmetic.parameters_addition if silo > peer else arithmetic.parameters_subtraction
                total = change(total, flower.generate(shared, _MODULUS, shapes))
        factor, values = arithmetic.factor_extract(arithmetic.parameters_mod(total, _MODULUS))
        mean = flower.dequantize(values, _CLIP, _TARGET)[0]
        mean += -(len(self.alive) - 1) * _CLIP
        mean *= _TARGET / factor
        return mean


def vector_of(silo: int, parameters: int, spread: float) -> Any:
    """The same numbers as ``bench_session.vector_of``."""
    draw = np.random.default_rng(silo).standard_normal(parameters, dtype=np.float32)
    draw *= np.float32(spread)
    return draw


def _measure(silos: int, parameters: int, drops: int, repeats: int, spread: float = 0.01) -> dict[str, Any]:
    flower = _Flower()
    rows = []
    for _ in range(repeats):
        tiny = _Run(flower, silos, _TINY, drops)
        tiny.unmask(tiny.collect(tiny.exchange_keys(), spread))
        stages = ("setup", "share", "mask", "unmask")
        control = median(sum(tiny.spent[silo, stage] for stage in stages) for silo in tiny.alive)
        run = _Run(flower, silos, parameters, drops)
        mean = run.unmask(run.collect(run.exchange_keys(), spread))
        truth = sum(vector_of(silo, parameters, spread).astype(np.float64) for silo in run.alive) / len(run.alive)
        keys = median(tiny.spent[silo, "mask"] for silo in tiny.alive)
        silo_seconds = max(0.0, median(run.spent[silo, "mask"] for silo in run.alive) - keys)
        server = run.spent[0, "sum"] + run.spent[0, "unmask"]
        rows.append((silo_seconds, server, control, run.upload_bytes, float(np.abs(mean - truth).max())))
    return dict(zip(RATIOS, (median(column) for column in zip(*rows, strict=True)), strict=True))


def _main(settings: str) -> None:
    try:
        figures = _measure(**json.loads(settings))
    except ImportError as error:
        figures = {"skipped": f"this Python has no usable Flower: {error}"}
    except (AttributeError, TypeError, KeyError) as error:
        figures = {"skipped": f"this version of Flower has other functions: {error}"}
    print(json.dumps(figures))


if __name__ == "__main__":
    _main(sys.argv[1])
