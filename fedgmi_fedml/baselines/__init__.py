"""Methods to compare with, through the same drivers, data, models and budget as FedGMI.

fedgmi   M VAEs and M experts; samples find their component by MAP
fedavg   one expert for everybody (McMahan et al. 2017): FedGMI's rounds with M = 1 and no VAE
ifca     M experts; every silo trains the one that fits it best (Ghosh et al. 2020)
fedsoft  M centres; every silo trains one model of its own, tied to all of them (Ruan and Joe-Wong 2022)
fedem    M experts; every silo trains all, samples weighted by responsibility (Marfoq et al. 2021)
oracle   M experts trained on the true components: what a perfect partition would give
local    one expert a silo, never aggregated (``local_only``)

All but ``local`` run the one script of ``rounds.fedgmi``, which without VAEs begins with the sample-level rounds: their
server does the same, a securely summed, weighted mean for each component. What differs is a silo's local work.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedgmi_fedml.baselines.fedem import FedEMWork
from fedgmi_fedml.baselines.fedsoft import FedSoftWork
from fedgmi_fedml.baselines.ifca import IFCAWork
from fedgmi_fedml.baselines.local_only import local_only
from fedgmi_fedml.config import Config
from fedgmi_fedml.packing import Part
from fedgmi_fedml.rounds.local import FedGMIWork, Partition

__all__ = ["METHODS", "Method", "local_only"]


@dataclass(frozen=True)
class Method:
    """How a method differs: what travels, how samples find their component, and a silo's local work."""

    name: str
    parts: tuple[Part, ...]
    partition: Partition
    work: type[FedGMIWork] = FedGMIWork

    @property
    def mixes(self) -> bool:
        """Whether it estimates mixture proportions."""
        return self.partition in ("map", "own")

    def configure(self, config: Config, true_components: int) -> Config:
        """The configuration with this method's number of components."""
        chosen = config.fedgmi_args.components
        components = {"map": chosen, "own": chosen, "single": 1, "truth": true_components}[self.partition]
        args = config.fedgmi_args.model_copy(update={"components": components})
        return config.model_copy(update={"fedgmi_args": args})


METHODS = {
    method.name: method
    for method in (
        Method("fedgmi", ("vae", "expert"), "map"),
        Method("fedavg", ("expert",), "single"),
        Method("ifca", ("expert",), "own", IFCAWork),
        Method("fedsoft", ("expert",), "own", FedSoftWork),
        Method("fedem", ("expert",), "own", FedEMWork),
        Method("oracle", ("expert",), "truth"),
    )
}
