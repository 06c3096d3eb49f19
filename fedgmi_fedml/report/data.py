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
from fedgmi_fedml.errors import CheckpointError, DeliveryError
from fedgmi_fedml.summary import Audience

__all__ = ["ReportData"]

FILE = "report_data.npz"
_SILO_FIELDS = ("silo_names", "alpha", "silo_accuracy", "silo_samples", "other_accuracy")
_TRUTH_FIELDS = ("true_alpha", "true_names", "true_of")
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
        samples: decoded samples of every VAE, (M, S, C, H, W) in [0, 1], or (M, S, F) for tables.
        class_names, feature_names: text.
        silo_names: (N,) text; on a silo one row, its own.
        alpha: estimated mixture proportions, (N, M), rows sum to one.
        silo_accuracy: personalised test accuracy, (N,), NaN where a silo has no test data.
        silo_samples: training samples, (N,).
        other_accuracy: by method (``local``, ``fedavg``, …), test accuracy (N,).
        true_alpha: (N, M*), columns in the order of the true components; ``true_names``: (M*,) text, their names.
        true_of: (M,) true component of every learned one, −1 for none (``evaluate.Matching.true_of``).
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
    true_of: npt.NDArray[Any] | None = None

    def for_audience(self, audience: Audience) -> ReportData:
        """A copy without what ``audience`` must not see. Raises DeliveryError where a silo would see other silos."""
        if audience == "silo":
            for name in ("alpha", "silo_accuracy", "silo_samples", "silo_names"):
                array = getattr(self, name)
                if array is not None and len(array) != 1:
                    raise DeliveryError(
                        f"a silo's report holds its own figures only, but {name} is there for {len(array)} silos: "
                        "make it from the silo's own folder"
                    )
        hidden: dict[str, Any] = {name: {} if name == "other_accuracy" else None for name in _HIDDEN[audience]}
        return replace(self, **hidden)

    def partner(self, component: int) -> int | None:
        """The true component that a learned one was matched to; ``None`` for none. Without ``true_of``: the same."""
        if self.true_of is None:
            return component
        found = int(self.true_of[component]) if component < len(self.true_of) else -1
        return found if found >= 0 else None

    def matched_truth(self) -> npt.NDArray[np.float64] | None:
        """True proportions in the order of the learned components, (N, M); zero where one has no partner."""
        if self.alpha is None or self.true_alpha is None or len(self.true_alpha) != len(self.alpha):
            return None
        truth = np.zeros(self.alpha.shape)
        for j in range(truth.shape[1]):
            partner = self.partner(j)
            if partner is not None and partner < self.true_alpha.shape[1]:
                truth[:, j] = self.true_alpha[:, partner]
        return truth

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
        arrays = {name: array for name, array in arrays.items() if array.size}  # nothing is as good as absent
        others = {name.split(".", 1)[1]: array for name, array in arrays.items() if name.startswith("other_accuracy.")}
        return cls(**{name: array for name, array in arrays.items() if name in known}, other_accuracy=others)
