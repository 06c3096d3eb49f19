"""Silo data sources and, for simulations, the mixtures made from one pooled source. Everything outsiders need is here."""

from __future__ import annotations

from fedgmi_fedml.data.federation import load_federation
from fedgmi_fedml.data.records import Federation, SiloData

__all__ = ["Federation", "SiloData", "load_federation"]
