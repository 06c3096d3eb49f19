"""X25519, HKDF and AES-GCM against published vectors; refusals beside what works; secrets stay hidden."""

import copy
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure.errors import InputError, ProtocolError
from secure.keys import (
    SEAL_OVERHEAD,
    MaskingKey,
    SealingKey,
    Secret,
    derive,
    frame,
    hkdf,
    open_sealed,
    random_bytes,
    seal,
)

H = bytes.fromhex

# RFC 7748, section 6.1 (Diffie-Hellman with Curve25519).
ALICE = H("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = H("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = H("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = H("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = H("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")

# RFC 7748, section 5.2 (scalar, u, result), both vectors.
SCALAR_VECTORS = [
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
]

# The u-coordinates of small order and their non-canonical twins (cr.yp.to/ecdh.html, "How do I validate public keys?").
SMALL_ORDER = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]

# RFC 5869, appendix A.1 to A.3 (HKDF-SHA256): ikm, salt, info, okm.
HKDF_VECTORS = [
    (
        "0b" * 22,
        "000102030405060708090a0b0c",
        "f0f1f2f3f4f5f6f7f8f9",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)).hex(),
        bytes(range(0x60, 0xB0)).hex(),
        bytes(range(0xB0, 0x100)).hex(),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
        "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    (
        "0b" * 22,
        "",
        "",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]

# McGrew and Viega, "The Galois/Counter Mode of Operation (GCM)", submission to NIST, test cases 13, 14 and 16
# (AES-256, 96-bit nonces): key, nonce, plaintext, associated, ciphertext, tag.
GCM_VECTORS = [
    ("00" * 32, "00" * 12, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    ("00" * 32, "00" * 12, "00" * 16, "", "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
    (
        "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        "cafebabefacedbaddecaf888",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
        "b16aedf5aa0de657ba637b39",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
        "c5f61e6393ba7a0abcc9f662",
        "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
]


def replay(data: bytes):
    return lambda count: data[:count]


class TestX25519:
    def test_rfc_7748_key_agreement(self):
        alice, bob = SealingKey.generate(replay(ALICE)), SealingKey.generate(replay(BOB))
        assert (alice.public, bob.public) == (ALICE_PUBLIC, BOB_PUBLIC)
        assert alice.shared(bob.public) == bob.shared(alice.public) == SHARED

    @pytest.mark.parametrize(("scalar", "u", "result"), SCALAR_VECTORS)
    def test_rfc_7748_scalar_multiplication(self, scalar, u, result):
        assert MaskingKey.from_private_bytes(H(scalar)).shared(H(u)) == H(result)

    @pytest.mark.parametrize("public", SMALL_ORDER)
    def test_small_order_is_refused(self, public):
        with pytest.raises(ProtocolError, match="small order"):
            SealingKey.generate().shared(H(public))

    def test_zero_result_is_refused_whatever_the_library_does(self):
        class Lenient:
            def exchange(self, _peer):
                return bytes(32)

        key = SealingKey.generate()
        key._private = Lenient()
        with pytest.raises(ProtocolError, match="small order"):
            key.shared(BOB_PUBLIC)

    @pytest.mark.parametrize("public", [b"", bytes(31), BOB_PUBLIC + b"x", None])
    def test_malformed_public_key_is_refused(self, public):
        with pytest.raises(ProtocolError):
            SealingKey.generate().shared(public)

    def test_masking_key_survives_its_bytes(self):
        key = MaskingKey.generate()
        again = MaskingKey.from_private_bytes(key.private_bytes())
        assert again.public == key.public
        with pytest.raises(ProtocolError):
            MaskingKey.from_private_bytes(bytes(31))

    def test_sealing_key_offers_no_private_bytes(self):
        assert not hasattr(SealingKey.generate(), "private_bytes")

    def test_erased_key_refuses_everything_but_its_public_half(self):
        key = MaskingKey.generate()
        key.erase()
        key.erase()
        assert len(key.public) == 32
        for use in (key.private_bytes, lambda: key.shared(BOB_PUBLIC)):
            with pytest.raises(ProtocolError, match="erased"):
                use()

    def test_fresh_keys_differ(self):
        assert len({SealingKey.generate().public for _ in range(20)}) == 20

    def test_short_random_source_is_refused(self):
        with pytest.raises(InputError):
            SealingKey.generate(replay(bytes(31)))
        with pytest.raises(InputError):
            random_bytes(lambda n: bytes(n + 1), 4)


class TestDerivation:
    @pytest.mark.parametrize(("ikm", "salt", "info", "okm"), HKDF_VECTORS)
    def test_rfc_5869(self, ikm, salt, info, okm):
        assert hkdf(H(ikm), H(salt), H(info), len(okm) // 2) == H(okm)

    def test_derive_is_hkdf_over_the_framed_label(self):
        assert derive(b"s", "mask", b"a", b"b", length=16) == hkdf(b"s", b"", frame(b"fedgmi/1/mask", b"a", b"b"), 16)

    def test_pinned_output(self):
        # Made by this package's first version: a change here breaks runs between versions.
        assert derive(bytes(32), "pin", b"context").hex() == PINNED

    def test_label_context_and_secret_all_matter(self):
        outputs = {
            derive(b"s", "mask", b"ab", b"c"),
            derive(b"s", "mask", b"a", b"bc"),
            derive(b"s", "mask", b"abc"),
            derive(b"s", "mask", b"c", b"ab"),
            derive(b"s", "seal", b"ab", b"c"),
            derive(b"t", "mask", b"ab", b"c"),
            derive(b"s", "mask"),
        }
        assert len(outputs) == 7

    @pytest.mark.parametrize("length", [0, -1, 255 * 32 + 1])
    def test_bad_length(self, length):
        with pytest.raises(InputError):
            derive(b"s", "mask", length=length)

    def test_empty_label(self):
        with pytest.raises(InputError):
            derive(b"s", "")

    @given(st.lists(st.binary(max_size=5), max_size=4), st.lists(st.binary(max_size=5), max_size=4))
    def test_frames_collide_only_when_equal(self, one, other):
        assert (frame(*one) == frame(*other)) == (one == other)


PINNED = "4405f44dc6799cf0a9f65813484ba73aa9bc0b5bf8e80cd32b85026367831096"


class TestSealing:
    @pytest.mark.parametrize(("key", "nonce", "plain", "associated", "cipher", "tag"), GCM_VECTORS)
    def test_gcm_vectors(self, key, nonce, plain, associated, cipher, tag):
        sealed = seal(H(key), H(plain), H(associated), replay(H(nonce)))
        assert sealed == H(nonce) + H(cipher) + H(tag)
        assert open_sealed(H(key), sealed, H(associated)) == H(plain)

    @given(st.binary(max_size=200), st.binary(max_size=40))
    def test_round_trip_and_length(self, plain, associated):
        sealed = seal(bytes(32), plain, associated)
        assert len(sealed) == len(plain) + SEAL_OVERHEAD
        assert open_sealed(bytes(32), sealed, associated) == plain

    @given(st.integers(0, 8 * 60 - 1))
    def test_every_flipped_bit_is_caught(self, bit):
        sealed = bytearray(seal(bytes(32), bytes(32), b"ids"))
        sealed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            open_sealed(bytes(32), bytes(sealed), b"ids")

    def test_other_key_other_associated_data_or_a_stump(self):
        sealed = seal(bytes(32), b"plain", b"1>2")
        for key, data, associated in (
            (b"\1" * 32, sealed, b"1>2"),
            (bytes(32), sealed, b"2>1"),
            (bytes(32), sealed[:-1], b"1>2"),
            (bytes(32), sealed[: SEAL_OVERHEAD - 1], b"1>2"),
            (bytes(32), b"", b"1>2"),
        ):
            with pytest.raises(ProtocolError, match=r"^sealed packet cannot be opened$"):
                open_sealed(key, data, associated)

    @pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
    def test_only_aes_256(self, size):
        with pytest.raises(InputError):
            seal(bytes(size), b"", b"")
        with pytest.raises(InputError):
            open_sealed(bytes(size), bytes(40), b"")

    def test_nonces_are_fresh(self):
        assert len({seal(bytes(32), b"", b"")[:12] for _ in range(50)}) == 50


class TestSecrecy:
    HOLDERS = (lambda: Secret(b"\xc3" * 32), lambda: MaskingKey.from_private_bytes(b"\xc3" * 32))

    @pytest.mark.parametrize("make", HOLDERS)
    def test_nothing_in_printed_forms(self, make):
        item = make()
        for text in (repr(item), str(item), f"{item}", f"{item!r}", "%s" % item, repr([item])):  # noqa: UP031
            assert "hidden" in text
            assert "c3" not in text.lower()
            assert "\\xc3" not in text

    @pytest.mark.parametrize("make", HOLDERS)
    @pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_no_pickles_no_copies(self, make, how):
        with pytest.raises(TypeError, match="secret"):
            how(make())

    def test_all_protocols_of_pickle(self):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError):
                pickle.dumps(Secret(b"x"), protocol)

    def test_exceptions_carry_no_key(self):
        key = b"\xc3" * 32
        for attempt in (
            lambda: open_sealed(key, bytes(60), b""),
            lambda: MaskingKey.from_private_bytes(key[:31]),
            lambda: MaskingKey.from_private_bytes(key).shared(bytes(32)),
        ):
            with pytest.raises(ProtocolError) as caught:
                attempt()
            text = "".join(traceback.format_exception_only(caught.type, caught.value))
            assert "c3" not in text.lower()
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__ or caught.value.__context__ is None

    def test_secret_reveals_and_erases(self):
        secret = Secret.generate(lambda n: b"k" * n)
        buffer = secret._data
        assert secret.reveal() == b"k" * 32
        secret.erase()
        secret.erase()
        assert buffer == bytes(32)  # overwritten, not only dropped
        with pytest.raises(ProtocolError, match="erased"):
            secret.reveal()

    def test_no_instance_dictionary_to_dump(self):
        for make in self.HOLDERS:
            with pytest.raises(TypeError):
                vars(make())
