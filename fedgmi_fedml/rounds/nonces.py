"""A silo's part of the beacon that draws the cohorts."""

from __future__ import annotations

import hashlib
import os

from fedgmi_fedml.config import Config


def beacon_nonce(config: Config, silo: int) -> bytes:
    """32 bytes: from the system, or repeatable where the configuration says so.

    Where all parties are one machine nobody can be cheated; between strangers only the system's will do.
    """
    if config.fedgmi_args.secure.cohort_nonces == "system":
        return os.urandom(32)
    seed = config.common_args.random_seed
    return hashlib.sha256(f"fedgmi/simulated nonce/{seed}/{silo}".encode()).digest()
