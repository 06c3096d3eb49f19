"""Modules and settings that all silos of one process share, so that nothing is built twice."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fedgmi_fedml.local_training import TrainSettings, pick_device
from fedgmi_fedml.mixture import MixtureState
from fedgmi_fedml.models import VaeBank, build_expert, build_router, build_vae
from fedgmi_fedml.rounds.phases import Phases, derive_seed


class Workbench:
    """One VAE, one expert and (where there is one) one router, into which states are loaded as they are needed."""

    def __init__(self, phases: Phases) -> None:
        config = phases.config
        self.phases = phases
        self.device = pick_device(config.device_args.device)
        self.vae = build_vae(config, phases.shape, phases.seed).to(self.device) if "vae" in phases.parts else None
        self.expert = build_expert(config, phases.shape, phases.seed).to(self.device)
        self._router = build_router(config, phases.shape, phases.seed).to(self.device) if phases.routes else None
        self.vae_settings, self.expert_settings = TrainSettings.for_vae(config), TrainSettings.for_expert(config)
        self.router_settings = replace(
            self.expert_settings,
            optimizer="adam",
            learning_rate=config.fedgmi_args.affinity.router_learning_rate,
            weight_decay=0.0,
        )

    @property
    def router(self) -> nn.Module:
        """The module of the router; ValueError where there is none."""
        if self._router is None:
            raise ValueError("this run has no router")
        return self._router

    def bank(self, state: MixtureState) -> VaeBank:
        """The VAEs of ``state``, one at a time in one module."""
        if self.vae is None:
            raise ValueError("this method has no VAEs")
        return VaeBank(self.vae, state.vaes)

    def generator(self, silo: int, *purpose: object) -> torch.Generator:
        """Training's randomness: a fresh generator for each purpose, so that nothing depends on what ran before."""
        return torch.Generator().manual_seed(derive_seed(self.phases.seed, "silo", silo, *purpose))
