"""Silo data sources, and for simulations the mixtures made from one pooled source. Outsiders need nothing else."""

from __future__ import annotations

from fedgmi_fedml.data.announced import Announced
from fedgmi_fedml.data.federation import load_federation
from fedgmi_fedml.data.layouts import LAYOUTS
from fedgmi_fedml.data.options import DATASETS, option_problems
from fedgmi_fedml.data.records import Federation, SiloData
from fedgmi_fedml.data.samples import Samples, load_samples
from fedgmi_fedml.data.silo import load_silo
from fedgmi_fedml.data.table import TableSchema
from fedgmi_fedml.data.table_moments import (
    TableMoments,
    apply_moments,
    summed_statistics,
    table_statistics,
    table_statistics_spec,
)

__all__ = [
    "DATASETS",
    "LAYOUTS",
    "Announced",
    "Federation",
    "Samples",
    "SiloData",
    "TableMoments",
    "TableSchema",
    "apply_moments",
    "load_federation",
    "load_samples",
    "load_silo",
    "option_problems",
    "summed_statistics",
    "table_statistics",
    "table_statistics_spec",
]
