"""Predictions for new samples, and how they are written: CSV or npz."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedgmi_fedml import atomic
from fedgmi_fedml.errors import DeliveryError

__all__ = ["Prediction"]


@dataclass(frozen=True)
class Prediction:
    """Personalised predictions for B samples.

    Attributes:
        names: of the samples (file, line or row).
        class_names: (C) text; ``probabilities``: (B, C); ``responsibilities``: (B, M), each row sums to one.
        alpha: mixture proportions that were used, (M,); ``alpha_source``: where from, in words.
        labels: true classes (B,) where the file has them, else ``None``.
        skipped: names of files that could not be read.
    """

    names: tuple[str, ...]
    class_names: tuple[str, ...]
    probabilities: npt.NDArray[np.float64]
    responsibilities: npt.NDArray[np.float64]
    alpha: npt.NDArray[np.float64]
    alpha_source: str
    labels: npt.NDArray[np.int64] | None = None
    skipped: tuple[str, ...] = ()

    @property
    def predicted(self) -> npt.NDArray[np.int64]:
        """The most probable class of every sample, (B,)."""
        return np.asarray(self.probabilities.argmax(axis=1), dtype=np.int64)

    @property
    def accuracy(self) -> float | None:
        """Share of right predictions; ``None`` without labels."""
        if self.labels is None or not len(self.labels):
            return None
        return float((self.predicted == self.labels).mean())

    def save(self, output: Path) -> None:
        """Write ``output`` atomically, as CSV or npz by its ending. Raises DeliveryError for another ending."""
        output = Path(output)
        if output.suffix not in (".csv", ".npz"):
            raise DeliveryError(f"{output}: the output must end in .csv or .npz")
        try:
            atomic.write_bytes(output, self._csv() if output.suffix == ".csv" else self._npz())
        except OSError as error:
            raise DeliveryError(f"{output} cannot be written: {error.strerror or error}") from error

    def _csv(self) -> bytes:
        """One line a sample: name, class, its probability, responsibilities, and the label where known."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        components = [f"component_{j}" for j in range(self.responsibilities.shape[1])]
        writer.writerow(
            ["sample", "class", "probability", *components, *(["label"] if self.labels is not None else [])]
        )
        predicted = self.predicted
        for i, name in enumerate(self.names):
            shares = [f"{share:.6f}" for share in self.responsibilities[i]]
            label = [] if self.labels is None else [self.class_names[int(self.labels[i])]]
            chosen = predicted[i]
            writer.writerow([name, self.class_names[chosen], f"{self.probabilities[i, chosen]:.6f}", *shares, *label])
        return text.getvalue().encode()

    def _npz(self) -> bytes:
        buffer = io.BytesIO()
        arrays: dict[str, npt.NDArray[Any]] = {
            "names": np.array(self.names, dtype=np.str_),
            "class_names": np.array(self.class_names, dtype=np.str_),
            "predicted": self.predicted,
            "probabilities": self.probabilities,
            "responsibilities": self.responsibilities,
            "alpha": self.alpha,
        }
        if self.labels is not None:
            arrays["labels"] = self.labels
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()
