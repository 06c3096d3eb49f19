"""The allow-list: every name a record may use, its shape, and who may see it. Whatever is not here does not go out.

The server's column follows the promise of secure aggregation: it learns who took part, who dropped, which components
stayed closed, the summed models of open components, and summed metrics. Sizes of components, proportions and drifts
stay with the silos; what needs the truth exists in simulations only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgmi_fedml.summary import Audience

__all__ = ["EVENTS", "EVENT_FIELDS", "ROUND_FIELDS", "Field", "TelemetryError", "clean_record", "plain"]


class TelemetryError(Exception):
    """A record holds what the allow-list does not: a bug in the caller, never the user's fault."""


@dataclass(frozen=True)
class Field:
    """One name of the vocabulary.

    Attributes:
        kind: shape of the value, a key of ``_SHAPES``.
        meaning: what it is, with its unit.
        audiences: who may see it.
    """

    kind: str
    meaning: str
    audiences: frozenset[Audience] = frozenset({"server", "silo", "simulation"})


_OWN: frozenset[Audience] = frozenset({"silo", "simulation"})
_TRUTH: frozenset[Audience] = frozenset({"simulation"})

PHASES = ("candidates", "survey", "warmup", "rounds", "evaluate", "moments", "calibration")
STEPS = ("score", "train", "pack", "protocol", "wait", "apply", "evaluate", "save", "selection")
METHODS = ("fedgmi", "local", "fedavg", "ifca", "fedsoft", "fedem", "oracle")

ROUND_FIELDS: dict[str, Field] = {
    "method": Field("method", "which method of a comparison; fedgmi when left out"),
    "phase": Field("phase", "phase of the algorithm"),
    "round": Field("whole", "round within the phase, from 0"),
    "attempts": Field("whole", "sessions it took, 1 when nothing was repeated"),
    "cohort": Field("ids", "roster ids of the silos that were asked"),
    "survivors": Field("ids", "roster ids of the silos whose updates are in the sum"),
    "dropped": Field("ids", "roster ids of the silos that were asked and are not in the sum"),
    "open": Field("flags", "per component: whether its gate was open"),
    "frozen": Field("ids", "components that kept their models because too few silos hold them"),
    "complete": Field("flag", "whether every silo of the cohort is in the sum"),
    "failed_sessions": Field("whole", "sessions that ended without a result"),
    "surveyed": Field("flag", "whether the survey before this warm-up round succeeded"),
    "vae_loss": Field("vector", "per component: negative ELBO in nats per sample, securely averaged"),
    "expert_loss": Field("vector", "per component: cross-entropy in nats per sample, securely averaged"),
    "candidate_loss": Field("vector", "per cohort: negative ELBO in nats per sample, securely averaged"),
    "validation_accuracy": Field("number", "personalised accuracy on validation parts, securely averaged over silos"),
    "test_accuracy": Field("number", "personalised accuracy on test parts, securely averaged over silos"),
    "confidence": Field("number", "mean largest responsibility on validation parts, securely averaged over silos"),
    "separability": Field("matrix", "pairwise symmetric KL divergence of the VAEs, nats"),
    "beta": Field("number", "sharpness of the warm-up's weights"),
    "temperature": Field("number", "temperature of the affinity"),
    "clipped_share": Field("number", "upper bound on the share of clipped coordinates"),
    "best": Field("flag", "whether these are the best models so far, by validation accuracy"),
    "bytes_up": Field("whole", "bytes from silos to server, all silos together"),
    "bytes_down": Field("whole", "bytes from server to silos, all silos together"),
    "messages": Field("whole", "messages from silos to server"),
    "seconds": Field("number", "wall time of the round, seconds, by a monotonic clock"),
    "step_seconds": Field("steps", "wall time by step of the round, seconds"),
    "effective_components": Field("number", "exp of the entropy of the components' sizes", _OWN),
    "component_weight": Field("vector", "per component: share of the samples of the cohort", _OWN),
    "offset": Field("vector", "per component: pooled mean loss, nats", _OWN),
    "margin": Field("number", "mean margin between best and second component, nats", _OWN),
    "misassignment_rate": Field("number", "expected share of samples in the wrong component", _OWN),
    "alpha_drift": Field("number", "mean total variation of the mixture proportions since the last round", _OWN),
    "alpha_mae": Field("number", "mean absolute error of the mixture proportions", _TRUTH),
    "partition_accuracy": Field("number", "share of samples in their true component", _TRUTH),
    "pooled_accuracy": Field("number", "accuracy over all silos' test samples together", _TRUTH),
}

EVENT_FIELDS: dict[str, Field] = {
    "method": ROUND_FIELDS["method"],
    "phase": ROUND_FIELDS["phase"],
    "round": ROUND_FIELDS["round"],
    "silo": Field("whole", "roster id"),
    "silos": Field("ids", "roster ids"),
    "component": Field("whole", "component"),
    "components": Field("ids", "components"),
    "candidates": Field("whole", "number of candidates"),
    "chosen": Field("ids", "candidates that were selected"),
    "total": Field("whole", "rounds of the phase"),
    "done": Field("whole", "rounds of the phase already done"),
    "seconds": ROUND_FIELDS["seconds"],
    "backend": Field("text", "data plane of secure aggregation"),
    "reason": Field("text", "why, in words"),
    "error": Field("text", "class of an error"),
    "text": Field("text", "a warning in words a user can act on"),
}

EVENTS = frozenset(
    {
        "absent", "aborted", "checkpoint", "component_frozen", "component_reseeded", "dropped", "failed", "finished",
        "interrupted", "joined", "left", "phase", "refused", "released", "resumed", "selected", "silo_failed",
        "silo_returned", "started", "stopped_early", "warning",
    }
)  # fmt: skip

_PATH = re.compile(r"""(?:^|[\s'"(=:,])(?:[A-Za-z]:\\|~?/|\.{1,2}/|\\\\)[^\s'"]""")
_LONGEST_TEXT, _LONGEST_LIST = 500, 65_535


def plain(value: Any) -> Any:
    """NumPy and torch values as Python numbers and lists; tuples as lists. Everything else unchanged."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) <= _LONGEST_LIST and all(map(test, value))


def _steps(value: Any) -> bool:
    return isinstance(value, Mapping) and all(key in STEPS and _number(item) for key, item in value.items())


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and not _PATH.search(value)


_SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "phase": (f"one of {', '.join(PHASES)}", lambda value: value in PHASES),
    "method": (f"one of {', '.join(METHODS)}", lambda value: value in METHODS),
    "whole": ("a whole number", _whole),
    "number": ("a number", _number),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "flags": ("a list of true and false", _list_of(lambda value: isinstance(value, bool))),
    "ids": ("a list of whole numbers", _list_of(_whole)),
    "vector": ("a list of numbers", _list_of(_number)),
    "matrix": ("a list of lists of numbers", _list_of(_list_of(_number))),
    "steps": (f"seconds by step ({', '.join(STEPS)})", _steps),
    "text": (f"a text of at most {_LONGEST_TEXT} characters without a path", _text),
}


def _finite(value: Any) -> tuple[Any, bool]:
    """The value with NaN and infinity as ``None``, and whether there were any."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, True
    if isinstance(value, list):
        pairs = [_finite(item) for item in value]
        return [item for item, _ in pairs], any(bad for _, bad in pairs)
    if isinstance(value, Mapping):
        mapped = {key: _finite(item) for key, item in value.items()}
        return {key: item for key, (item, _) in mapped.items()}, any(bad for _, bad in mapped.values())
    return value, False


def clean_record(
    record: Mapping[str, Any], vocabulary: Mapping[str, Field], audience: Audience
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Sort a record's entries by whether they may go to ``audience``.

    Returns:
        what may go, as JSON-able values with finite numbers only (the names of entries that lost NaN or infinity are
        listed under ``not_finite``); the names withheld from this audience; and what is wrong with the others, in
        words that hold no value.
    """
    allowed: dict[str, Any] = {}
    withheld: list[str] = []
    problems: list[str] = []
    lost: list[str] = []
    for name, value in record.items():
        field = vocabulary.get(name)
        if field is None:
            known = isinstance(name, str) and re.fullmatch(r"[a-z_]{1,40}", name)
            problems.append(f"{name if known else 'a name'} is not in the allow-list")
            continue
        what, fits = _SHAPES[field.kind]
        if not fits(value := plain(value)):
            problems.append(f"{name} must be {what}")
        elif audience not in field.audiences:
            withheld.append(name)
        else:
            allowed[name], bad = _finite(value)
            lost += [name] * bad
    if lost:
        allowed["not_finite"] = lost
    return allowed, withheld, problems
