"""``report_data.npz``: the arrays behind the report that are too large or too private for ``summary.json``."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import CheckpointError
from fedgmi_fedml.summary import Audience

__all__ = ["ReportData"]

FILE = "report_data.npz"
_SILO_FIELDS = ("silo_names", "alpha", "silo_accuracy", "silo_samples", "other_accuracy")
_TRUTH_FIELDS = ("true_alpha", "true_names")
_HIDDEN: dict[Audience, tuple[str, ...]] = {
    "server": _SILO_FIELDS + _TRUTH_FIELDS,
    "silo": _TRUTH_FIELDS,
    "simulation": (),
}


@dataclass(frozen=True)
class ReportData:
    """Arrays for the report. Whatever is ``None`` is left out of the page. N silos, M components.

    Attributes:
        separability: symmetric KL divergence of every two VAEs, (M, M) nats.
        candidate_separability: the same of the candidates, (C, C) nats; ``chosen``: indices of those selected.
        samples: decoded samples, (M, S, C, H, W) in [0, 1], or (M, S, F) for tables.
        class_names, feature_names: text.
        silo_names: (N,) text; on a silo one row, its own.
        alpha: estimated mixture proportions, (N, M), rows sum to one.
        silo_accuracy: personalised test accuracy, (N,), NaN where a silo has no test data.
        silo_samples: training samples, (N,).
        other_accuracy: by method (``local``, ``fedavg``, …), test accuracy (N,).
        true_alpha: (N, M), columns matched to the learned components.
        true_names: (M,) text: the true component that each learned one was matched to.
    """

    separability: npt.NDArray[Any] | None = None
    candidate_separability: npt.NDArray[Any] | None = None
    chosen: npt.NDArray[Any] | None = None
    samples: npt.NDArray[Any] | None = None
    class_names: npt.NDArray[Any] | None = None
    feature_names: npt.NDArray[Any] | None = None
    silo_names: npt.NDArray[Any] | None = None
    alpha: npt.NDArray[Any] | None = None
    silo_accuracy: npt.NDArray[Any] | None = None
    silo_samples: npt.NDArray[Any] | None = None
    other_accuracy: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    true_alpha: npt.NDArray[Any] | None = None
    true_names: npt.NDArray[Any] | None = None

    def for_audience(self, audience: Audience) -> ReportData:
        """A copy without what ``audience`` must not see. Raises ValueError for a silo's data that holds other silos."""
        if audience == "silo":
            for name in ("alpha", "silo_accuracy", "silo_samples", "silo_names"):
                array = getattr(self, name)
                if array is not None and len(array) != 1:
                    raise ValueError(f"a silo's report data must hold one silo's {name}, not {len(array)}")
        hidden = {name: {} if name == "other_accuracy" else None for name in _HIDDEN[audience]}
        return replace(self, **hidden)  # type: ignore[arg-type]

    def save(self, run_dir: Path, audience: Audience) -> Path:
        """Write ``report_data.npz`` atomically, for ``audience`` only. Equal data give equal bytes."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        shown = self.for_audience(audience)
        for item in fields(shown):
            value = getattr(shown, item.name)
            if item.name == "other_accuracy":
                arrays |= {f"other_accuracy.{name}": np.asarray(array) for name, array in value.items()}
            elif value is not None:
                array = np.asarray(value)
                arrays[item.name] = array.astype(np.str_) if array.dtype.kind == "O" else array
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        path = Path(run_dir) / FILE
        atomic.write_bytes(path, buffer.getvalue())
        return path

    @classmethod
    def load(cls, run_dir: Path) -> ReportData:
        """Read ``report_data.npz``; without that file, empty data. Raises CheckpointError when it is damaged."""
        path = Path(run_dir) / FILE
        if not path.exists():
            return cls()
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{path} is damaged: restore it, or remove it for a report without it.") from error
        known = {item.name for item in fields(cls)}
        others = {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith("other_accuracy.")}
        return cls(**{name: array for name, array in arrays.items() if name in known}, other_accuracy=others)
