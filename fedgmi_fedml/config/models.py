"""The whole configuration as one frozen object."""

from __future__ import annotations

from pydantic import Field

from .base import Section
from .method import FedgmiArgs
from .sections import (
    CommArgs,
    CommonArgs,
    DataArgs,
    DeviceArgs,
    ModelArgs,
    TrackingArgs,
    TrainArgs,
    ValidationArgs,
)


class Config(Section):
    """One run's configuration, validated. Read it from a file with ``load_config``."""

    common_args: CommonArgs = Field(default=CommonArgs(), description=CommonArgs.__doc__)
    data_args: DataArgs = Field(default=DataArgs(), description=DataArgs.__doc__)
    model_args: ModelArgs = Field(default=ModelArgs(), description=ModelArgs.__doc__)
    train_args: TrainArgs = Field(default=TrainArgs(), description=TrainArgs.__doc__)
    validation_args: ValidationArgs = Field(default=ValidationArgs(), description=ValidationArgs.__doc__)
    device_args: DeviceArgs = Field(default=DeviceArgs(), description=DeviceArgs.__doc__)
    comm_args: CommArgs = Field(default=CommArgs(), description=CommArgs.__doc__)
    tracking_args: TrackingArgs = Field(default=TrackingArgs(), description=TrackingArgs.__doc__)
    fedgmi_args: FedgmiArgs = Field(default=FedgmiArgs(), description=FedgmiArgs.__doc__)
