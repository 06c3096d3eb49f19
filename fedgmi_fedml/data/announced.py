"""What all parties know of the samples without seeing them: shape, classes and columns.

A deployment's server has no data, and no silo sees another's. So the configuration says what samples look like, or a
published data set does; every silo holds its own data against that before it joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedgmi_fedml.data.federation import load_federation
from fedgmi_fedml.data.options import read_options
from fedgmi_fedml.data.records import SiloData
from fedgmi_fedml.data.silo import OWN_DATA
from fedgmi_fedml.data.table import TableSchema, declared_schema
from fedgmi_fedml.errors import ConfigError, DataError
from fedgmi_fedml.shapes import DataShape

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config

_SHAPE, _OPTIONS = "data_args.announced_shape", "data_args.data_options"


@dataclass(frozen=True)
class Announced:
    """What samples look like everywhere.

    Attributes:
        shape: of one sample, the number of classes, the range of values.
        class_names: in the order of the labels.
        schema: columns of a table, else ``None``.
    """

    shape: DataShape
    class_names: tuple[str, ...]
    schema: TableSchema | None = None

    def check(self, data: SiloData) -> None:
        """Raises DataError with the first thing in which a silo's data differ from what is announced."""
        found = data.shape
        ours: list[tuple[str, Any, Any]] = [
            ("samples of shape", None if found is None else found.input_shape, self.shape.input_shape),
            ("classes", data.class_names, self.class_names),
            ("values", None if found is None else found.value_range, self.shape.value_range),
            ("columns", _columns(data.schema), _columns(self.schema)),
        ]
        for what, held, announced in ours:
            if held != announced:
                raise DataError(
                    f"{data.name}: the data hold {what} {_shown(held)}, but the federation announced "
                    f"{_shown(announced)}: bring the data to that form, or correct {_SHAPE} or {_OPTIONS} "
                    "on every party"
                )


def announced(config: Config, pooled: bool = False) -> Announced:
    """What a configuration announces.

    Args:
        config: the agreed configuration.
        pooled: whether the samples of ``data_args.data_path`` may be read where nothing is announced: on one machine
            that plays all parties, never in a deployment.

    Raises:
        ConfigError: what must be announced, by key. DataError: a published data set cannot be read.
    """
    data = config.data_args
    if data.dataset in OWN_DATA:
        missing = _undeclared(config)
        if not missing:
            return _declared(config)
        if not pooled or data.data_path is None:
            raise ConfigError(
                f"{missing}: a federation whose parties see only their own data must announce it; set it in the "
                "configuration of every party"
            )
    federation = load_federation(config, only=())
    return Announced(federation.shape, federation.class_names, federation.schema)


def _undeclared(config: Config) -> str | None:
    """The key that is still to be set before the configuration says what samples look like; ``None`` for none."""
    data = config.data_args
    options = read_options(data.dataset, data.data_options)
    if not isinstance(options.classes, int | tuple):
        return f"{_OPTIONS}.classes (their names, in order)"
    if data.dataset == "csv":
        return f"{_OPTIONS}.columns (range or values of each)" if options.columns is None else None
    if data.dataset == "npz" and options.columns is not None:
        return None
    if data.announced_shape is not None:
        return None
    if data.dataset == "image_folder" and options.image_size is not None and options.mode is not None:
        return None
    return f"{_SHAPE} ([channels, height, width] of one image)"


def _declared(config: Config) -> Announced:
    data = config.data_args
    options = read_options(data.dataset, data.data_options)
    classes = options.classes
    names = tuple(str(label) for label in range(classes)) if isinstance(classes, int) else tuple(classes)
    if getattr(options, "columns", None) is not None:
        schema = declared_schema(options.columns, options.max_rows)
        return Announced(DataShape((schema.width,), len(names), "real"), names, schema)
    shape = data.announced_shape
    if data.dataset == "image_folder" and options.image_size is not None and options.mode is not None:
        sizes = (3 if options.mode == "rgb" else 1, *options.image_size)
        if shape not in (None, sizes):
            raise ConfigError(
                f"{_SHAPE}: {list(shape or ())} contradicts image_size and mode in {_OPTIONS} ({list(sizes)}); "
                "correct or remove one"
            )
        shape = sizes
    if shape is None:
        raise ConfigError(f"{_SHAPE}: is missing")
    value_range = getattr(options, "value_range", None) or "unit"
    return Announced(DataShape(tuple(shape), len(names), value_range), names)


def _columns(schema: TableSchema | None) -> Any:
    return None if schema is None else schema.to_dict()


def _shown(value: Any) -> str:
    """A shape, names or a schema in a few words."""
    if value is None:
        return "(none)"
    if isinstance(value, dict):
        names = [str(column[0]) for column in (*value["numeric"], *value["categorical"])]
        return f"{len(names)} ({', '.join(names[:8])}{', …' if len(names) > 8 else ''}) with their ranges and values"
    if isinstance(value, tuple):
        words = " × ".join if all(isinstance(item, int) for item in value) else ", ".join
        return words(map(str, value[:12])) + (", …" if len(value) > 12 else "")
    return str(value)
