"""``fedgmi preflight``: everything that can be known to go wrong on a node, found out before it joins, each by name.

A check passes, warns, fails or is skipped. One that rests on something another check has failed to find is skipped and
says on what. Nothing here needs a server; without ``offline`` its reachability is tried as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedgmi_fedml.errors import FedgmiError
from secure.errors import SecureError

if TYPE_CHECKING:
    from fedgmi_fedml.config import Config
    from fedgmi_fedml.data import SiloData
    from fedgmi_fedml.data.announced import Announced
    from fedgmi_fedml.provision.kit import Kit
    from fedgmi_fedml.rounds.workbench import Workbench

Status = Literal["pass", "warn", "fail", "skip"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        text: in a sentence.
        status: ``pass`` unless said otherwise.
        local: figures of this silo's own data, for the screen of its admin only: never in ``--json``.
    """

    text: str
    status: Status = "pass"
    local: str = ""


@dataclass(frozen=True)
class Check:
    """One finished check."""

    name: str
    finding: Finding
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        """Its outcome."""
        return self.finding.status


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        config: file or shipped name; ``None``: the kit's.
        overrides: ``section.key=value`` each.
        kit, data, out: folders and files of this party; ``None`` where not given.
        part: number of a simulated silo in place of ``data``.
        address: dial this instead of the kit's server; ``bind``: listen there instead.
        offline: leave the network alone.
        repeatable: one machine plays all parties (``fedgmi silo --repeatable``).
    """

    config: str | None = None
    overrides: tuple[str, ...] = ()
    kit: Path | None = None
    data: Path | None = None
    out: Path | None = None
    part: int | None = None
    address: str | None = None
    bind: str | None = None
    offline: bool = False
    repeatable: bool = False


class Missing(Exception):  # noqa: N818 - says what is missing
    """A check rests on something that was not found; the text says on what."""


@dataclass
class Node:
    """A node under examination: what was asked, and what the checks so far have found.

    Attributes:
        now: seconds since 1970 by this machine's clock.
        config … bench: found by the checks of those names, ``None`` until then.
    """

    request: Request
    now: float
    config: Config | None = None
    kit: Kit | None = None
    data: SiloData | None = None
    announced: Announced | None = None
    bench: Workbench | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def role(self) -> Literal["silo", "server"]:
        """The kit's, be it whole or not; without one, a silo's."""
        return "server" if self.notes.get("role") == "server" else "silo"

    @property
    def out(self) -> Path:
        """Where the run will write."""
        if self.request.out is not None or self.config is None:
            return self.request.out or Path()
        tracking, name = self.config.tracking_args, "server" if self.role == "server" else "silo"
        return Path(tracking.output_dir) / self.config.common_args.run_name / (self.kit.name if self.kit else name)

    @property
    def silos(self) -> int:
        """How many silos there are: the roster's, else the configuration's."""
        if self.kit is not None:
            return len(self.kit.roster().silos)
        return needed(self.config, "a valid configuration").train_args.client_num_in_total


def needed(value: _T | None, what: str) -> _T:
    """The value, or ``Missing``."""
    if value is None:
        raise Missing(f"needs {what}")
    return value


Examine = Callable[[Node], Finding]


def run_checks(
    request: Request, now: float | None = None, begun: Callable[[str], None] = lambda name: None
) -> Iterator[Check]:
    """All checks that concern this node, each as soon as it is finished.

    Args:
        now: seconds since 1970; ``None``: the clock's.
        begun: told the name of each check before it begins.
    """
    node = Node(request, time.time() if now is None else now)
    for name, roles, examine in _all_checks():
        if node.role not in roles:
            continue
        begun(name)
        started = time.monotonic()
        yield Check(name, _examined(examine, node), time.monotonic() - started)


def _examined(examine: Examine, node: Node) -> Finding:
    """A check's finding; whatever it raises becomes one."""
    try:
        return examine(node)
    except Missing as reason:
        return Finding(f"not checked: {reason}", "skip")
    except (FedgmiError, SecureError) as error:
        return Finding(str(error), "fail")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return Finding(f"{where}{error.strerror or error}", "fail")
    except MemoryError:
        return Finding("not enough memory for it: give this machine more, or take a smaller model", "fail")
    except Exception as error:  # a user's own model may raise anything, and the checks after it are wanted all the same
        text = str(error).splitlines()[0][:300] if str(error) else "without a message"
        return Finding(f"{type(error).__name__}: {text}", "fail")


def _all_checks() -> list[tuple[str, tuple[str, ...], Examine]]:
    """Name, whom it concerns, and the work: in an order in which later ones rest on earlier ones."""
    from fedgmi_fedml.federation import preflight_kit as kit
    from fedgmi_fedml.federation import preflight_model as model
    from fedgmi_fedml.federation import preflight_network as network
    from fedgmi_fedml.federation import preflight_sizes as sizes

    both, silo, server = ("silo", "server"), ("silo",), ("server",)
    return [
        ("kit", both, kit.kit),
        ("configuration", both, kit.configuration),
        ("deployment settings", both, kit.settings),
        ("certificate dates", both, kit.certificate_dates),
        ("roster", both, kit.roster),
        ("policy", silo, kit.policy),
        ("silos and rules", both, kit.rules),
        ("foreign keys", both, kit.foreign_keys),
        ("clock", both, kit.clock),
        ("folders", both, sizes.folders),
        ("versions", both, model.versions),
        ("device", both, model.device),
        ("data", silo, model.data),
        ("announced samples", both, model.announced_samples),
        ("model", both, model.model),
        ("quantiser", both, model.quantiser),
        ("training step", silo, model.training_step),
        ("memory", both, sizes.memory),
        ("disk", both, sizes.disk),
        ("shared memory", both, sizes.shared_memory),
        ("server name", silo, network.name),
        ("server port", silo, network.port),
        ("server TLS", silo, network.tls),
        ("own port", server, network.own_port),
    ]
