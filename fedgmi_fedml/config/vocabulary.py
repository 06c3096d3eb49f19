"""Which keys exist, and what to say about one that does not: the nearest, the section it belongs in, or FedML's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from fedgmi_fedml.config.base import nearest
from fedgmi_fedml.config.models import Config
from fedgmi_fedml.config.reader import Document, KeyPath, dotted

AGENT_SECTIONS = ("dynamic_args", "environment_args", "job_yaml")
"""Sections that FedML's agents and packages add; nothing of ours, so they are read over."""

AGENT_KEYS = {
    "common_args": {"config_version"},
    "train_args": {"run_id", "client_id_list", "client_id", "server_id"},
    "comm_args": {"mqtt_config_path", "s3_config_path"},
    "tracking_args": {"log_file_dir", "log_server_url"},
}
"""Keys that FedML's agents write into our sections when they start a packaged run; likewise read over."""

REQUIRED: tuple[KeyPath, ...] = (
    ("common_args", "training_type"),
    ("data_args", "dataset"),
    ("model_args", "model"),
    ("train_args", "federated_optimizer"),
    ("train_args", "client_num_in_total"),
    ("train_args", "client_num_per_round"),
    ("train_args", "comm_round"),
    ("comm_args", "backend"),
    ("fedgmi_args", "components"),
)
"""What a file must say: the names without which FedML does not start, and the number of components."""

_SECURITY = "FedML's own security options are not used; see fedgmi_args.secure"
_PRIVACY = "differential privacy is not part of FedGMI; remove it rather than trust it"
_MIXTURE = "FedML's partitioner is not used; see data_args.silo_mixture (kind: dirichlet, concentration: …)"
HINTS = {
    "partition_alpha": _MIXTURE,
    "enable_fhe": _SECURITY,
    "enable_secagg": _SECURITY,
    "enable_dp": _PRIVACY,
    "enable_defense": "FedML's defences need single updates in the clear, which nobody has here; remove it",
    "enable_attack": "FedML's attacks are not run here; remove it",
    "using_gpu": "write device_args.device: auto, cpu or cuda",
    "gpu_id": "write device_args.device: cuda:<number>",
    "gpu_mapping_file": "write device_args.device: auto, cpu or cuda:<number>",
    "enable_wandb": "not supported; see tracking_args.enable_tensorboard",
    "lr": "write learning_rate",
}
"""FedML's own keys that would otherwise be ignored in silence."""


def annotation_models(annotation: Any) -> Iterator[type]:
    """The sections (or mappings) inside a field's type, lists and unions included."""
    if is_typeddict(annotation) or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        yield annotation
        return
    for part in get_args(annotation):
        yield from annotation_models(part)


def keys_of(model: type) -> dict[str, Any]:
    """Key → type of one mapping of the configuration."""
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return dict(model.__annotations__)


@cache
def all_paths() -> dict[str, tuple[KeyPath, ...]]:
    """Last name → every place where that key exists, lists' entries left out."""
    found: dict[str, tuple[KeyPath, ...]] = {}

    def visit(model: type, path: KeyPath) -> None:
        for name, annotation in keys_of(model).items():
            here = (*path, name)
            if len(here) > 1:
                found[name] = (*found.get(name, ()), here)
            for inner in annotation_models(annotation):
                if issubclass(inner, BaseModel):
                    visit(inner, here)

    visit(Config, ())
    return found


def settings(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every single setting: dotted name, and pydantic's record of it (description, default)."""
    for name, field in model.model_fields.items():
        inner = [kind for kind in annotation_models(field.annotation) if issubclass(kind, BaseModel)]
        if inner:
            yield from settings(inner[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def describe_unknown(path: KeyPath, valid: list[str]) -> str:
    """What to say about an unknown key: a hint, where it belongs, the nearest name, or the valid ones."""
    name = str(path[-1])
    if name in HINTS:
        return HINTS[name]
    homes = [dotted(home) for home in all_paths().get(name, ()) if home[:-1] != path[:-1]]
    if homes:
        return f"unknown here; it belongs in section {' or '.join(home.rpartition('.')[0] for home in homes)}"
    close = nearest(name, valid)
    if close:
        return f'unknown key; did you mean "{close}"?'
    far = nearest(name, list(all_paths()))
    if far:
        return f'unknown key; did you mean "{dotted(all_paths()[far][0])}"?'
    return f"unknown key; valid here: {', '.join(valid)}"


def is_open(model: type) -> bool:
    """Whether the mapping takes any key."""
    return issubclass(model, BaseModel) and model.model_config.get("extra") == "allow"


def drop_unknown(document: Document, value: Any, model: type, path: KeyPath) -> Any:
    """``value`` without the keys that ``model`` does not know, each reported; other types are left as they are."""
    if not isinstance(value, dict):
        return value
    types, kept = keys_of(model), {}
    for name, inner in value.items():
        here = (*path, name)
        if name not in types:
            if is_open(model):
                kept[name] = inner
            else:
                document.report(here, describe_unknown(here, list(types)))
            continue
        kept[name] = inner
        for nested in annotation_models(types[name]):
            if isinstance(inner, list):
                kept[name] = [drop_unknown(document, item, nested, (*here, i)) for i, item in enumerate(inner)]
            else:
                kept[name] = drop_unknown(document, inner, nested, here)
    return kept
