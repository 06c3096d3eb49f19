"""BFV through SEAL: known answers, sizes, noise, security level, keys, and what is refused."""

from __future__ import annotations

import hashlib
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from harness import Replay

from secure.api import check_backend, open_server, open_silo
from secure.errors import HomomorphicUnavailable, InputError, ProtocolError

pytest.importorskip("tenseal.sealapi")

from secure.homomorphic import bindings as bindings_module
from secure.homomorphic import plane, scheme
from secure.homomorphic.bindings import NEEDED, MemoryFile, bindings
from secure.homomorphic.scheme import (
    COEFFICIENT_MODULUS,
    DEGREE,
    FRESH_BYTES,
    PLAIN_MODULUS,
    SUM_BYTES,
    GroupKey,
    Scheme,
    check_security,
)

SEED = bytes(range(64))


@pytest.fixture(scope="module")
def public():
    return Scheme()


@pytest.fixture(scope="module")
def key(public):
    return GroupKey(public, SEED)


def numbers(seed=0):
    draw = np.random.default_rng(seed).integers(0, PLAIN_MODULUS, DEGREE)
    draw[:4] = (0, 1, PLAIN_MODULUS - 1, PLAIN_MODULUS // 2)
    return draw


def load(public, packed):
    return public.load(memoryview(packed))


def is_prime(n):
    return all(pow(base, n - 1, n) == 1 for base in (2, 3, 5, 7, 11, 13, 17))


def test_the_parameter_set():
    assert COEFFICIENT_MODULUS.bit_length() == 51
    assert is_prime(COEFFICIENT_MODULUS)
    assert is_prime(PLAIN_MODULUS)
    larger = range(PLAIN_MODULUS + 2 * DEGREE, 1 << 40, 2 * DEGREE)
    assert PLAIN_MODULUS % (2 * DEGREE) == COEFFICIENT_MODULUS % (2 * DEGREE) == 1
    assert not any(map(is_prime, larger)), "t is the largest"


@pytest.mark.parametrize(
    ("degree", "bits", "refused"), [(2048, 51, False), (2048, 52, True), (1024, 26, True), (3000, 1, True)]
)
def test_security_level_of_the_standard(degree, bits, refused):
    if refused:
        with pytest.raises(HomomorphicUnavailable, match="128 bits"):
            check_security(degree, bits)
    else:
        check_security(degree, bits)


def test_a_weaker_set_is_never_built(monkeypatch):
    monkeypatch.setattr(scheme, "MODULUS_BITS", 54)  # what SEAL alone would accept
    with pytest.raises(HomomorphicUnavailable, match="below 128 bits"):
        Scheme()


def test_encrypt_add_decrypt_is_exact(public, key):
    one, two = numbers(1), numbers(2)
    total = load(public, key.encrypt(one))
    public.add(total, load(public, key.encrypt(two)))
    assert (key.decrypt(total) == (one + two) % PLAIN_MODULUS).all()
    public.add_plain(total, one)
    assert (key.decrypt(total) == (2 * one + two) % PLAIN_MODULUS).all()
    public.subtract(total, load(public, key.encrypt(two)))
    assert (key.decrypt(total) == 2 * one % PLAIN_MODULUS).all()


def test_sizes_and_the_way_back(public, key):
    packed = key.encrypt(numbers())
    assert len(packed) == FRESH_BYTES == 7.5 * DEGREE
    item = load(public, packed)
    whole = public.save(item, SUM_BYTES)
    assert len(whole) == SUM_BYTES == 15 * DEGREE
    assert (key.decrypt(load(public, whole)) == numbers()).all()
    assert public.save(item, FRESH_BYTES) == b"", "a sum has no seed, and needs more room"


@pytest.mark.slow
def test_sizes_leave_room(public, key):
    """The room is twenty standard deviations away from the sizes seen."""
    sizes = [int.from_bytes(key.encrypt(numbers())[:2], "big") for _ in range(400)]
    assert FRESH_BYTES - max(sizes) > 12 * np.std(sizes)
    total, sums = load(public, key.encrypt(numbers())), []
    for _ in range(100):
        public.add(total, load(public, key.encrypt(numbers())))
        sums.append(int.from_bytes(public.save(total, SUM_BYTES)[:2], "big"))
    assert SUM_BYTES - max(sums) > 12 * np.std(sums)


@pytest.mark.parametrize("silos", [2, 10, 128])
def test_noise_of_a_sum_of_every_allowed_size(public, key, silos):
    values, item = numbers(3), public.seal.Ciphertext()
    total = load(public, key.encrypt(values))
    assert 5 <= key.budget(total) <= 7
    for _ in range(silos - 1):
        public.add(total, public.load(memoryview(key.encrypt(values)), item))
    public.add_plain(total, values)
    assert key.budget(total) >= 2
    assert key.decrypt(total).tolist() == [(silos + 1) * value % PLAIN_MODULUS for value in values.tolist()]


def test_noise_beyond_the_budget_is_seen(public, key):
    total = load(public, key.encrypt(numbers()))
    for _ in range(12):
        public.add(total, load(public, public.save(total, SUM_BYTES)))
    assert key.budget(total) == 0


def test_the_same_seed_gives_the_same_key_everywhere(public, key):
    """Also in other versions of SEAL: digest seen with TenSEAL 0.3.16 (SEAL 4.1) and 0.3.18 (4.3)."""
    other = GroupKey(Scheme(), SEED)
    assert (other.decrypt(load(public, key.encrypt(numbers()))) == numbers()).all()
    stranger = GroupKey(public, bytes(64))
    assert not (stranger.decrypt(load(public, key.encrypt(numbers()))) == numbers()).any()
    words = [int.from_bytes(SEED[i : i + 8], "little") for i in range(0, 64, 8)]
    secret = public.seal.KeyGenerator(scheme._context(public.seal, words)).secret_key()  # data() alone would dangle
    digest = hashlib.sha256(b"".join(secret.data().data(i).to_bytes(8, "little") for i in range(DEGREE))).hexdigest()
    assert digest.startswith("95f458140e19b8fd")
    for length in (0, 63, 65):
        with pytest.raises(InputError, match="64 bytes"):
            GroupKey(public, bytes(length))


def test_encryption_is_never_repeated(public, key):
    """Only the key comes from a seed: equal noise in two ciphertexts would give the plaintexts' difference away."""
    again = GroupKey(public, SEED)
    packed = [one.encrypt(numbers()) for one in (key, key, again, again)]
    assert len(set(packed)) == 4
    tails = {data[2 : 2 + int.from_bytes(data[:2], "big")][-200:] for data in packed}
    assert len(tails) == 4


def flipped(packed, place, bit=0):
    data = bytearray(packed)
    data[place] ^= 1 << bit
    return bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: bytes(FRESH_BYTES),
        lambda p: b"\xff" * FRESH_BYTES,
        lambda p: os.urandom(FRESH_BYTES),
        lambda p: flipped(p, 2),  # SEAL's own mark
        lambda p: flipped(p, 5),  # its version
        lambda p: flipped(p, 10),  # its length
        lambda p: flipped(p, 0, 4),  # ours
        lambda p: flipped(p, FRESH_BYTES - 1),  # what must be zero
        lambda p: p[:2000] + bytes(FRESH_BYTES - 2000),
    ],
)
def test_what_is_no_ciphertext_is_refused(public, key, change):
    packed = key.encrypt(numbers())
    with pytest.raises(ProtocolError, match="malformed"):
        load(public, change(packed))
    load(public, packed)


def test_ciphertexts_of_other_parameters_are_refused(public):
    """A set that SEAL itself finds good, with another plaintext modulus."""
    seal, file = public.seal, MemoryFile()
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, [51]))
    parameters.set_plain_modulus(seal.PlainModulus.Batching(DEGREE, 30))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    secret = seal.KeyGenerator(context).secret_key()
    seal.Encryptor(context, secret).encrypt_symmetric(seal.Plaintext("1")).save(file.name)
    data = file.read(1 << 16)
    with pytest.raises(ProtocolError, match="malformed"):
        load(public, len(data).to_bytes(2, "big") + data + bytes(FRESH_BYTES - 2 - len(data)))


def test_a_ciphertext_that_hides_nothing_is_refused(public, key):
    """c1 = 0: the plaintext in the clear. Made by subtracting one from itself, which SEAL refuses, so by hand."""
    transparent = public.seal.Ciphertext(public.context)
    transparent.resize(2)
    packed = public.save(transparent, SUM_BYTES)
    assert packed
    with pytest.raises(ProtocolError, match="malformed"):
        load(public, packed)


def test_memory_files_are_on_no_disk():
    file = MemoryFile()
    assert os.readlink(file.name).startswith("/memfd:")
    file.write(b"longer content")
    file.write(b"short")
    assert file.read(100) == b"shortr content"
    name = file.name
    del file
    assert not os.path.exists(name)


def test_keys_hide_themselves(key):
    assert repr(key) == "<GroupKey, hidden>"
    with pytest.raises(TypeError):
        key.__reduce__()
    assert "SecretKey" not in NEEDED, "nothing ever saves one"


@pytest.mark.parametrize("lost", ["module", "class", "call", "memory files"])
def test_a_tenseal_that_lacks_something_is_one_clear_error_at_start(monkeypatch, lost):
    found = bindings()
    bindings.cache_clear()
    parts = {name: SimpleNamespace(**dict.fromkeys(calls)) for name, calls in NEEDED.items()}
    if lost == "module":
        monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    elif lost == "class":
        del parts["Encryptor"]
    elif lost == "call":
        del parts["Evaluator"].add_plain_inplace
    else:
        monkeypatch.delattr(os, "memfd_create")
    if lost in ("class", "call"):
        import tenseal

        monkeypatch.setitem(sys.modules, "tenseal.sealapi", SimpleNamespace(**parts))
        monkeypatch.setattr(tenseal, "sealapi", SimpleNamespace(**parts))
    try:
        with pytest.raises(HomomorphicUnavailable) as caught:
            check_backend("homomorphic")
    finally:
        bindings.cache_clear()
    text = str(caught.value)
    wanted = {"module": "sealapi", "class": "Encryptor", "call": "add_plain_inplace", "memory files": "memfd_create"}
    assert wanted[lost] in text
    assert "fedgmi-fedml[homomorphic]" in text
    assert "nothing weaker" in text
    monkeypatch.undo()
    assert bindings() is found or bindings().__name__ == found.__name__


def test_a_party_without_tenseal_opens_no_session(monkeypatch):
    from harness import World

    from secure.types import Contribution

    world = World(range(1, 6), backends=("homomorphic",))
    params = world.params(backend="homomorphic")
    monkeypatch.setattr(plane, "Scheme", lambda: (_ for _ in ()).throw(bindings_module.unavailable("gone")))
    with pytest.raises(HomomorphicUnavailable):
        open_server(params, credentials=world.credentials(0), random=Replay(0))
    with pytest.raises(HomomorphicUnavailable):
        open_silo(1, params, Contribution((1.0, 1.0), (0.0, 0.0)), credentials=world.credentials(1),
                  journal=world.journals[1])  # fmt: skip


def test_wrong_arithmetic_is_noticed_at_start(monkeypatch):
    check_backend("homomorphic")
    monkeypatch.setattr(Scheme, "add_plain", lambda *_: None)
    with pytest.raises(HomomorphicUnavailable, match="adds up wrongly"):
        check_backend("homomorphic")


def test_other_backends_need_no_tenseal(monkeypatch):
    monkeypatch.setitem(sys.modules, "secure.homomorphic.plane", None)
    check_backend("masked")
    check_backend("none")
    with pytest.raises(InputError, match="not available"):
        check_backend("quantum")
