"""The whole configuration as one frozen object."""

from __future__ import annotations

from pydantic import Field

from fedgmi_fedml.config.agreement import CHANGES_RESULTS, EXCLUDED, digest, item_digests
from fedgmi_fedml.config.base import Section
from fedgmi_fedml.config.method import FedgmiArgs
from fedgmi_fedml.config.reader import dump_yaml
from fedgmi_fedml.config.sections import (
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

    def digest(self) -> str:
        """SHA-256, 64 hex digits, of what must agree between parties; ``agreement.EXCLUDED`` lists what need not."""
        return digest(self.model_dump(), EXCLUDED)

    def item_digests(self) -> dict[str, bytes]:
        """``digest`` key by key, to name the first difference (``agreement.item_digests``)."""
        return item_digests(self.model_dump(), EXCLUDED)

    def run_digest(self) -> str:
        """SHA-256, 64 hex digits, of everything that changes a run's results: also the numbers of silos."""
        return digest(self.model_dump(), set(EXCLUDED) - CHANGES_RESULTS)

    def to_yaml(self) -> str:
        """The effective configuration, defaults included. Reading it again gives an equal ``Config``."""
        return dump_yaml(self.model_dump())
