"""TenSEAL's raw bindings of SEAL: found, or refused with one clear error. And files that are only memory.

The bindings read and write objects by file name only. ``MemoryFile`` has a name below /proc/self/fd and no place on any
disk. What goes through it are ciphertexts; secret keys never do (``scheme.GroupKey`` makes them from seeds).
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from secure.errors import HomomorphicUnavailable

NEEDED = {
    "BatchEncoder": ("encode", "decode_uint64"),
    "Blake2xbPRNGFactory": (),
    "Ciphertext": ("is_transparent", "load", "save", "size"),
    "CoeffModulus": ("Create",),
    "Decryptor": ("decrypt", "invariant_noise_budget"),
    "EncryptionParameters": (
        "set_coeff_modulus", "set_plain_modulus", "set_poly_modulus_degree", "set_random_generator",
    ),
    "Encryptor": ("encrypt_symmetric",),
    "Evaluator": ("add_inplace", "add_plain_inplace", "sub_inplace"),
    "KeyGenerator": ("secret_key",),
    "Plaintext": (),
    "SCHEME_TYPE": ("BFV",),
    "SEALContext": ("parameters_set",),
    "SEC_LEVEL_TYPE": ("TC128",),
}  # fmt: skip
"""Everything that is called, by class."""


@lru_cache(maxsize=1)
def bindings() -> Any:
    """The module ``tenseal.sealapi``, complete.

    Raises:
        HomomorphicUnavailable: TenSEAL is not installed, cannot be loaded, or lacks what is needed; says which.
    """
    try:
        import tenseal.sealapi as sealapi
    except ImportError as error:
        raise unavailable(f"its raw bindings (tenseal.sealapi) cannot be imported ({type(error).__name__})") from None
    missing = [name for name in NEEDED if not hasattr(sealapi, name)]
    missing += [
        f"{name}.{call}"
        for name, calls in NEEDED.items()
        for call in calls
        if name not in missing and not hasattr(getattr(sealapi, name), call)
    ]
    if missing:
        raise unavailable(f"its raw bindings lack {', '.join(missing)}")
    if not hasattr(os, "memfd_create"):
        raise unavailable("this system has no memory files (memfd_create); run on Linux")
    return sealapi


def unavailable(reason: str) -> HomomorphicUnavailable:
    """The one error for everything that is wrong with this party's TenSEAL."""
    return HomomorphicUnavailable(
        f"this party cannot run back-end homomorphic: TenSEAL: {reason}. Install fedgmi-fedml[homomorphic] (TenSEAL "
        "0.3.14 or later) here; nothing weaker is used in its place"
    )


class MemoryFile:
    """One file in memory, used again and again; gone with the object."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("fedgmi", os.MFD_CLOEXEC)
        self.name = f"/proc/self/fd/{self._descriptor}"

    def write(self, data: bytes | memoryview) -> None:
        """Replace the front of the content; what was longer stays behind it (readers go by the length in the data)."""
        os.pwrite(self._descriptor, data, 0)

    def read(self, most: int) -> bytes:
        """The content, at most so many bytes."""
        return os.pread(self._descriptor, most, 0)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)
