"""BFV through SEAL: one parameter set, seeded symmetric ciphertexts, sums.

N = 2048, one 51-bit prime q, plaintext modulus t = the largest prime below 2^40 that is 1 modulo 2N (so that a
plaintext is 2048 numbers modulo t that add up slot by slot).

**Security.** 51 bits are the most that N = 2048 allows with a ternary secret at 128 bits against *quantum* attackers;
54 against classical ones: Albrecht et al., "Homomorphic Encryption Security Standard", HomomorphicEncryption.org,
Toronto 2018, tables 1 and 2 (``STANDARD``). Asserted by ``check_security``; SEAL itself asserts the classical one.

**Noise.** A ciphertext decrypts to Δ·m + e with |e| ≤ 21 per coefficient (centred binomial, σ = 3.2) and half a step of
rounding; it is right as long as the sum's noise stays below q / 2t = 1024. Of 128 additions the noise has σ = 37: 1024
are 27 σ. Fresh ciphertexts show a budget of 5 – 6 bits, sums of 128 one of 2.

**Keys** come from 64-byte seeds that every silo derives for itself; SEAL's generator expands them, alike in all its 4.x
versions (a test compares). They are made where they are used, and nothing ever writes them to a file.

**Versions.** SEAL refuses ciphertexts of another minor version; ``Scheme.name`` says which one this is, and the
proposal carries it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secure.errors import InputError, ProtocolError
from secure.homomorphic.bindings import MemoryFile, bindings, unavailable
from secure.keys import _Secretive

DEGREE = 2048
"""N: slots of one ciphertext."""

MODULUS_BITS = 51
COEFFICIENT_MODULUS = 2251799813640193
"""q."""

PLAIN_MODULUS = 1099511590913
"""t = 2^40 − 36863."""

STANDARD = {1024: (27, 25), 2048: (54, 51), 4096: (109, 101), 8192: (218, 202), 16384: (438, 411), 32768: (881, 827)}
"""N → most bits of q for 128 bits of security, ternary secret: (classical, quantum)."""

SEED_BYTES = 64
FRESH_BYTES = 15360
"""Room for one seeded ciphertext and its two bytes of length: 7.5 bytes a slot. Seen: 15,115 … 15,186."""

SUM_BYTES = 30720
"""Room for one sum of ciphertexts: 15 bytes a slot. Seen: 29,996 … 30,079."""

_HEADER = 16
_MOST = 1 << 16


def check_security(degree: int, bits: int) -> None:
    """Hold a parameter set against the standard's table.

    Raises:
        HomomorphicUnavailable: it has less than 128 bits of security against quantum attackers.
    """
    if bits > STANDARD.get(degree, (0, 0))[1]:
        raise unavailable(f"N = {degree} with {bits} bits of modulus is below 128 bits of security (quantum)")


class Scheme:
    """The public half: encode, read, write, add. Holds no key and cannot decrypt.

    Raises:
        HomomorphicUnavailable: TenSEAL is missing or builds another parameter set.
    """

    def __init__(self) -> None:
        self.seal = bindings()
        self.context = _context(self.seal)
        self._evaluator, self._encoder = self.seal.Evaluator(self.context), self.seal.BatchEncoder(self.context)
        self._plain, self._file = self.seal.Plaintext(), MemoryFile()
        self.seal.Ciphertext(self.context).save(self._file.name)
        major, minor = self._file.read(_HEADER)[3:5]
        self.name = f"BFV {DEGREE}/{MODULUS_BITS}/{PLAIN_MODULUS.bit_length()}, SEAL {major}.{minor}"

    def encode(self, slots: npt.NDArray[np.int64]) -> Any:
        """``DEGREE`` numbers 0 … t − 1 as a plaintext, valid until the next call."""
        self._encoder.encode(slots.tolist(), self._plain)
        return self._plain

    def decode(self, plain: Any) -> npt.NDArray[np.int64]:
        """Undo ``encode``."""
        return np.fromiter(self._encoder.decode_uint64(plain), dtype=np.int64, count=DEGREE)

    def save(self, item: Any, room: int) -> bytes:
        """A ciphertext as ``room`` bytes: two of length (big-endian), SEAL's own, zeros. Empty if it needs more room.

        Args:
            item: seeded or not.
        """
        item.save(self._file.name)
        data = self._file.read(_MOST)
        if len(data) > room - 2:
            return b""
        return len(data).to_bytes(2, "big") + data + bytes(room - 2 - len(data))

    def load(self, packed: memoryview, into: Any = None) -> Any:
        """Read what ``save`` wrote, strictly: a ciphertext of two polynomials for exactly this parameter set.

        Args:
            into: a ciphertext to be overwritten; else a new one is made.

        Raises:
            ProtocolError: it is none.
        """
        size = int.from_bytes(packed[:2], "big")
        data, rest = packed[2 : 2 + size], packed[2 + size :]
        if size < _HEADER or len(data) != size or int.from_bytes(data[8:16], "little") != size or any(rest.tobytes()):
            raise ProtocolError("ciphertext is malformed")
        item = self.seal.Ciphertext() if into is None else into
        self._file.write(data)
        try:
            item.load(self.context, self._file.name)
        except Exception:  # SEAL raises several types
            raise ProtocolError("ciphertext is malformed") from None
        if item.size() != 2 or item.is_transparent() or item.is_ntt_form():
            raise ProtocolError("ciphertext is malformed")
        return item

    def add(self, total: Any, item: Any) -> None:
        """Add one ciphertext to another, in place."""
        self._evaluator.add_inplace(total, item)

    def subtract(self, total: Any, item: Any) -> None:
        """Undo ``add``."""
        self._evaluator.sub_inplace(total, item)

    def add_plain(self, total: Any, slots: npt.NDArray[np.int64]) -> None:
        """Add numbers 0 … t − 1 to what a ciphertext holds, without knowing it."""
        self._evaluator.add_plain_inplace(total, self.encode(slots))


class GroupKey(_Secretive):
    """The silos' key of one session: encrypts and decrypts.

    Args:
        seed: 64 secret bytes, uniform; the same seed gives the same key.

    Raises:
        InputError: the seed has another length.
    """

    def __init__(self, scheme: Scheme, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise InputError(f"a group key's seed has {SEED_BYTES} bytes")
        seal, words = scheme.seal, [int.from_bytes(seed[i : i + 8], "little") for i in range(0, SEED_BYTES, 8)]
        # Only the key comes from the seed: the context that encrypts keeps SEAL's own randomness from the system.
        generator = seal.KeyGenerator(_context(seal, words))
        secret = generator.secret_key()
        self._scheme = scheme
        self._encryptor, self._decryptor = (
            seal.Encryptor(scheme.context, secret),
            seal.Decryptor(scheme.context, secret),
        )
        self._plain = seal.Plaintext()

    def encrypt(self, slots: npt.NDArray[np.int64]) -> bytes:
        """``DEGREE`` numbers 0 … t − 1 as ``FRESH_BYTES``: one polynomial and the seed of the other."""
        plain = self._scheme.encode(slots)
        for _ in range(100):
            packed = self._scheme.save(self._encryptor.encrypt_symmetric(plain), FRESH_BYTES)
            if packed:  # the size varies by a few bytes, which say nothing of what is inside
                return packed
        raise InputError("ciphertexts of this SEAL need more room than the protocol has for them")

    def decrypt(self, item: Any) -> npt.NDArray[np.int64]:
        """The numbers in a ciphertext, 0 … t − 1. Anything decrypts: what is no sum of honest ones, to noise."""
        self._decryptor.decrypt(item, self._plain)
        return self._scheme.decode(self._plain)

    def budget(self, item: Any) -> int:
        """Bits of noise that a ciphertext has room for; zero when it no longer decrypts."""
        return int(self._decryptor.invariant_noise_budget(item))


def _context(seal: Any, seed: list[int] | None = None) -> Any:
    """SEAL's context of the one parameter set; with a seed, everything random in it is repeated: for keys only."""
    check_security(DEGREE, MODULUS_BITS)
    primes = seal.CoeffModulus.Create(DEGREE, [MODULUS_BITS])
    if [prime.value() for prime in primes] != [COEFFICIENT_MODULUS]:
        raise unavailable("it chooses other primes")
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(primes)
    parameters.set_plain_modulus(PLAIN_MODULUS)
    if seed is not None:
        parameters.set_random_generator(seal.Blake2xbPRNGFactory(seed))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise unavailable("it refuses N = 2048 with a 51-bit modulus at 128 bits of security")
    return context
