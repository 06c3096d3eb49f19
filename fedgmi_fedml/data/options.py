"""The settings of each source, ``data_args.data_options``: which keys exist, and every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgmi_fedml.errors import ConfigError

Range = tuple[float, float]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NoOptions(_Options):
    """Sources without settings."""


class DownloadOptions(_Options):
    """Published data sets that torchvision can download."""

    download: bool = Field(
        default=False, description="Let torchvision download the data set where it is not there yet."
    )


class ColumnOptions(_Options):
    """One column of a table, in full. Short forms: ``[low, high]`` and ``[name, name, …]``."""

    range: Range | None = Field(default=None, description="Numeric: smallest and largest value possible.")
    values: Names | None = Field(default=None, description="Categorical: every value possible.")
    missing: bool = Field(default=False, description="Whether a row may lack the value.")


Column = ColumnOptions | Range | Annotated[tuple[str, ...], Field(min_length=1)]


class _Tabular(_Options):
    columns: dict[str, Column] | None = Field(
        default=None,
        description="Columns to learn from; a simulation without it takes all and their ranges from its file.",
    )
    max_rows: int = Field(default=1 << 20, ge=1, description="Largest number of training rows that any silo may hold.")
    classes: int | Names | str | None = Field(
        default=None, description="Names of the classes, their number, or the name of an array that lists them."
    )


class NpzOptions(_Tabular):
    """Names of the arrays in an npz file; where left out, the usual ones are tried."""

    x_train: str | None = None
    y_train: str | None = None
    x_val: str | None = None
    y_val: str | None = None
    x_test: str | None = None
    y_test: str | None = None
    test_mask: str | None = Field(default=None, description="Array that is true for the test samples of x_train.")
    group_names: str | None = Field(
        default=None, description="Array with the names of the groups that numbers stand for."
    )
    axes: Literal["hw", "hwc", "chw"] | None = Field(
        default=None, description="Order of an image's axes; null: by its shape."
    )
    pixel_max: float | None = Field(
        default=None, gt=0, description="Stored value that means white; null: 255 for uint8."
    )
    value_range: Literal["unit", "real"] | None = Field(
        default=None, description="real: images are standardised, not within [0, 1]; needs the gaussian likelihood."
    )


class ImageFolderOptions(_Options):
    """A folder with one sub-folder a class, or train/, val/ and test/ with such sub-folders."""

    classes: Names | None = Field(default=None, description="Names of the class sub-folders in order of their labels.")
    image_size: tuple[int, int] | None = Field(
        default=None, description="Resize to [height, width]; null: all alike already."
    )
    mode: Literal["grey", "rgb"] | None = Field(default=None, description="null: as the first readable image.")
    max_unreadable_share: float = Field(
        default=0.1, ge=0, lt=1, description="Larger shares of unreadable files are an error."
    )


class CsvOptions(_Tabular):
    """A table with a header line."""

    label: str = Field(description="Column that holds the class.")
    test_mask: str | None = Field(default=None, description="Column that is 1 (true, yes) for test rows.")
    ignore: Names = Field(default=(), description="Columns to leave out when columns are taken from the file.")
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    missing: Names = Field(
        default=("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"), description="Texts that mean a missing value."
    )


_BY_SOURCE: dict[str, type[_Options]] = {
    "digits": NoOptions,
    "breast_cancer": NoOptions,
    "wine": NoOptions,
    "mnist": DownloadOptions,
    "fashion": DownloadOptions,
    "emnist": DownloadOptions,
    "cifar10": DownloadOptions,
    "npz": NpzOptions,
    "image_folder": ImageFolderOptions,
    "csv": CsvOptions,
}
DATASETS = tuple(_BY_SOURCE)


def _describe(error: Mapping[str, Any], valid: list[str]) -> str:
    path = [str(step) for step in error["loc"] if str(step) not in ("ColumnOptions",) and "[" not in str(step)]
    key = ".".join(["data_args.data_options", *path])
    if error["type"] == "extra_forbidden":
        close = get_close_matches(path[-1], valid, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"{key}: unknown key{hint} (valid: {', '.join(valid) or 'none for this data set'})"
    if error["type"] == "missing":
        return f"{key}: is required"
    return f"{key}: {error['msg'].lower()}, not {error['input']!r}"


def option_problems(dataset: str, options: Mapping[str, Any]) -> list[str]:
    """Every problem of ``data_args.data_options`` for a data set, each naming key, value and remedy."""
    model = _BY_SOURCE.get(dataset)
    if model is None:
        return [f"data_args.dataset: {dataset!r} is not one of {', '.join(DATASETS)}"]
    try:
        model.model_validate(dict(options))
    except ValidationError as error:
        valid = sorted(model.model_fields)
        return list(dict.fromkeys(_describe(dict(item), valid) for item in error.errors()))
    return []


def read_options(dataset: str, options: Mapping[str, Any]) -> Any:
    """The validated settings of a source. Raises ConfigError with every problem."""
    problems = option_problems(dataset, options)
    if problems:
        raise ConfigError(problems)
    return _BY_SOURCE[dataset].model_validate(dict(options))
