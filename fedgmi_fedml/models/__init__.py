"""VAEs and experts by name or by import path: the one door to the models.

Everything that leaves this room is either an ``nn.Module`` or a plain ``OrderedDict`` of float32 CPU tensors.
"""

from fedgmi_fedml.models.experts import build_expert, build_router, make_expert
from fedgmi_fedml.models.states import Bank, State, VaeBank, export_state, load_state, parameter_count
from fedgmi_fedml.models.vaes import Vae, build_vae, make_vae
from fedgmi_fedml.shapes import DataShape

__all__ = [
    "Bank",
    "DataShape",
    "State",
    "Vae",
    "VaeBank",
    "build_expert",
    "build_router",
    "build_vae",
    "export_state",
    "load_state",
    "make_expert",
    "make_vae",
    "parameter_count",
]
