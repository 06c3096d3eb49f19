"""From a kit to what a process needs of it: credentials in force, TLS files, and no setting unfit for a deployment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fedgmi_fedml.errors import ConfigError, RunError
from secure.api import Credentials

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config
    from fedgmi_fedml.provision.kit import Kit
    from fedgmi_fedml.transport.credentials import TlsFiles

TRANSPORT = "FEDGMI_GRPC"


def check_settings(config: Config, repeatable: bool) -> None:
    """Settings that only a simulation may have.

    Args:
        repeatable: every party was told ``--repeatable``: one machine, for comparison with a simulation.

    Raises:
        ConfigError: names the setting and the remedy.
    """
    if config.fedgmi_args.secure.cohort_nonces == "seed" and not repeatable:
        raise ConfigError(
            "fedgmi_args.secure.cohort_nonces: seed lets anybody who knows the seed foresee every cohort; set it to "
            "system on every party (or, on one machine and for comparison with a simulation, give every party "
            "--repeatable)"
        )
    if config.comm_args.backend != TRANSPORT:
        raise ConfigError(
            f"comm_args.backend: {config.comm_args.backend} is FedML's transport, which FedML's own runner starts; "
            f"fedgmi server and fedgmi silo speak {TRANSPORT}"
        )


def check_kit(kit: Kit, role: str) -> None:
    """The kit is of this role, and in force now.

    Raises:
        RunError: every fault with its remedy.
    """
    if kit.role != role:
        other = "silo" if kit.role == "silo" else "server"
        raise RunError(f"{kit.folder}: is the kit of {kit.name}, a {kit.role}: start it with fedgmi {other}")
    problems = kit.check_dates(time.time())
    if problems:
        raise RunError(f"{kit.folder}: " + "; ".join(problems))


def credentials(config: Config, kit: Kit) -> Credentials | None:
    """Identity, roster and (a silo's) policy; ``None`` with back-end ``none``. Raises IdentityError."""
    if config.fedgmi_args.secure.backend == "none":
        return None
    return Credentials(kit.identity(), kit.roster(), kit.policy())


def tls_files(kit: Kit) -> TlsFiles:
    """The kit's files for TLS. gRPC is imported here, once everything that needs no network has been checked."""
    from fedgmi_fedml.transport.credentials import TlsFiles

    return TlsFiles(kit.ca, kit.certificate, kit.key)
