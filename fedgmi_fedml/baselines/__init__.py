"""Methods to compare with, through the same drivers, data, models and budget as FedGMI.

fedgmi   M VAEs and M experts; samples find their component by MAP
fedavg   one expert for everybody (McMahan et al. 2017): FedGMI's rounds with M = 1 and no VAE
oracle   M experts trained on the true components: what a perfect partition would give
local    one expert a silo, never aggregated (``local_only``)
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgmi_fedml.baselines.local_only import local_only
from fedgmi_fedml.config import Config
from fedgmi_fedml.packing import Part
from fedgmi_fedml.rounds.local import Partition

__all__ = ["METHODS", "Method", "local_only"]


@dataclass(frozen=True)
class Method:
    """How a method differs: what travels, how samples find their component, and how many components there are."""

    name: str
    parts: tuple[Part, ...]
    partition: Partition

    def configure(self, config: Config, true_components: int) -> Config:
        """The configuration with this method's number of components."""
        components = {"map": config.fedgmi_args.components, "single": 1, "truth": true_components}[self.partition]
        args = config.fedgmi_args.model_copy(update={"components": components})
        return config.model_copy(update={"fedgmi_args": args})


METHODS = {
    method.name: method
    for method in (
        Method("fedgmi", ("vae", "expert"), "map"),
        Method("fedavg", ("expert",), "single"),
        Method("oracle", ("expert",), "truth"),
    )
}
