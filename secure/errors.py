"""Everything that can go wrong in ``secure``, as one small tree.

    SecureError
    ├── InputError            the caller's own vector, totals or settings cannot be used (raised before masking)
    │   └── CapacityError     the declared lengths, clips or silo counts do not fit the ring
    ├── HomomorphicUnavailable  this party's TenSEAL is missing or cannot do what the homomorphic back-end needs
    ├── IdentityError         a key, roster or policy file is missing, unreadable, expired or not signed by the operator
    ├── JournalError          the silo's journal is damaged or cannot be written
    ├── PolicyRefusal         the server proposed less than this silo's local policy demands
    ├── ProtocolError         a message that the present state does not name, or that fails a check
    │   ├── DecodeError       bytes that are no message of ours
    │   └── BlameError        a peer provably lied; ``culprit`` is its silo id
    └── SessionAborted        the session has ended without a result; terminal

No message carries a secret, a count, a proportion, a label or a path of a silo's data.
"""

from __future__ import annotations


class SecureError(Exception):
    """Base of every error raised by this package."""


class InputError(SecureError):
    """The caller's own input cannot be aggregated (NaN, wrong shape or dtype, bad setting)."""


class CapacityError(InputError):
    """Declared lengths, clips and silo counts do not fit the ring."""


class HomomorphicUnavailable(SecureError):  # noqa: N818 - said of an installation, not of a run
    """This party cannot run the homomorphic back-end; there is no weaker one to fall back to."""


class IdentityError(SecureError):
    """A key, roster or policy cannot be used."""


class JournalError(SecureError):
    """The journal that outlives a round is damaged, incomplete or cannot be written."""


class PolicyRefusal(SecureError):  # noqa: N818 - the protocol's own word
    """The proposal asks for less than the local policy demands."""


class ProtocolError(SecureError):
    """A message that the present state does not name, or that fails a check."""


class DecodeError(ProtocolError):
    """Bytes that are not one of our messages."""


class BlameError(ProtocolError):
    """A peer provably lied.

    Args:
        culprit: roster id of the silo that is to blame.
        reason: what was wrong, in words, without any secret.
    """

    def __init__(self, culprit: int, reason: str) -> None:
        super().__init__(f"silo {culprit}: {reason}")
        self.culprit = culprit


class SessionAborted(SecureError):  # noqa: N818 - the protocol's own word
    """The session has ended without a result."""
