"""One machine plays all parties: the same drivers and bytes as a deployment, over memory instead of a network."""

from __future__ import annotations

from fedgmi_fedml.simulate.run import run_simulation

__all__ = ["run_simulation"]
