"""Ed25519 identities: published vectors, domain separation, files that only their owner can read."""

import copy
import os
import pickle
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from secure import _files
from secure.errors import IdentityError, InputError, ProtocolError
from secure.identity import PASSPHRASE_VARIABLE, Identity, fingerprint, is_valid, proquint, verify
from secure.keys import frame

H = bytes.fromhex

# RFC 8032, section 7.1 (Ed25519), tests 1 to 3: secret key, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_rfc_8032(secret, public, message, signature):
    identity = Identity.generate(lambda _count: H(secret))
    assert identity.public_key == H(public)
    assert identity._private.sign(H(message)) == H(signature)


def test_signature_is_ed25519_over_the_framed_label_and_data():
    identity = Identity.generate()
    identity._private.public_key().verify(identity.sign("vote", b"data"), frame(b"fedgmi/1/sign", b"vote", b"data"))


class TestSignatures:
    @given(st.text(min_size=1, max_size=8), st.binary(max_size=40))
    def test_verifies(self, label, data):
        identity = Identity.generate()
        signature = identity.sign(label, data)
        verify(identity.public_key, label, data, signature)
        assert is_valid(identity.public_key, label, data, signature)

    def test_label_data_key_and_signature_are_bound(self):
        identity, other = Identity.generate(), Identity.generate()
        good = identity.sign("vote", b"data")
        flipped = bytes([good[0] ^ 1]) + good[1:]
        for key, label, data, signature in (
            (other.public_key, "vote", b"data", good),
            (identity.public_key, "vot", b"edata", good),  # moved across the border of label and data
            (identity.public_key, "receipt", b"data", good),
            (identity.public_key, "vote", b"datb", good),
            (identity.public_key, "vote", b"data", flipped),
            (identity.public_key, "vote", b"data", good[:-1]),
            (identity.public_key, "vote", b"data", b""),
            (identity.public_key, "vote", b"data", None),
            (b"short", "vote", b"data", good),
        ):
            assert not is_valid(key, label, data, signature)
            with pytest.raises(ProtocolError, match="does not verify"):
                verify(key, label, data, signature)

    def test_empty_label(self):
        with pytest.raises(InputError):
            Identity.generate().sign("", b"data")


class TestFingerprint:
    # D. Wilkerson, "A Proposal for Proquints", arXiv:0901.4016, section 3: examples.
    @pytest.mark.parametrize(
        ("address", "text"),
        [
            ((127, 0, 0, 1), "lusab-babad"),
            ((63, 84, 220, 193), "gutih-tugad"),
            ((63, 118, 7, 35), "gutuk-bisog"),
            ((140, 98, 193, 141), "mudof-sakat"),
            ((216, 35, 68, 215), "tobog-higil"),
            ((198, 81, 129, 136), "sinid-makam"),
        ],
    )
    def test_published_proquints(self, address, text):
        assert proquint(bytes(address)) == text

    def test_eight_groups(self):
        groups = fingerprint(bytes(32)).split("-")
        assert len(groups) == 8
        assert all(len(group) == 5 for group in groups)
        assert Identity.generate().fingerprint() != Identity.generate().fingerprint()

    @given(st.binary(min_size=2, max_size=2), st.binary(min_size=2, max_size=2))
    def test_no_two_words_sound_alike(self, one, other):
        assert (proquint(one) == proquint(other)) == (one == other)

    def test_odd_number_of_bytes(self):
        with pytest.raises(InputError):
            proquint(b"abc")


class TestSecrecy:
    def test_printed_forms_show_the_fingerprint_only(self):
        identity = Identity.generate(lambda _count: b"\xc3" * 32)
        for text in (repr(identity), str(identity), f"{identity}"):
            assert text == f"<Identity {identity.fingerprint()}>"

    @pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_no_pickles_no_copies(self, how):
        with pytest.raises(TypeError, match="secret"):
            how(Identity.generate())


class TestFiles:
    def test_round_trip_and_mode(self, tmp_path):
        identity, path = Identity.generate(), tmp_path / "new" / "identity.pem"
        identity.save(path, environ={})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert Identity.load(path, environ={}).public_key == identity.public_key
        assert sorted(p.name for p in path.parent.iterdir()) == ["identity.pem"]

    def test_mode_whatever_the_umask(self, tmp_path):
        before = os.umask(0)
        try:
            Identity.generate().save(tmp_path / "a", environ={})
            os.umask(0o777)
            Identity.generate().save(tmp_path / "b", environ={})
        finally:
            os.umask(before)
        assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"} == {0o600}

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610, 0o601])
    def test_readable_by_others_is_refused_with_the_remedy(self, tmp_path, mode):
        path = tmp_path / "identity.pem"
        Identity.generate().save(path, environ={})
        path.chmod(mode)
        with pytest.raises(IdentityError, match="chmod 600"):
            Identity.load(path, environ={})
        path.chmod(0o400)
        Identity.load(path, environ={})

    @pytest.mark.parametrize(
        ("given_passphrase", "environ"),
        [("correct horse", {}), (None, {PASSPHRASE_VARIABLE: "correct horse"})],
    )
    def test_passphrase(self, tmp_path, given_passphrase, environ):
        identity, path = Identity.generate(), tmp_path / "identity.pem"
        identity.save(path, given_passphrase, environ=environ)
        assert b"ENCRYPTED" in path.read_bytes()
        assert Identity.load(path, given_passphrase, environ=environ).public_key == identity.public_key
        assert Identity.load(path, "correct horse", environ={}).public_key == identity.public_key
        with pytest.raises(IdentityError, match=PASSPHRASE_VARIABLE):
            Identity.load(path, environ={})
        with pytest.raises(IdentityError, match="wrong passphrase") as caught:
            Identity.load(path, "battery staple", environ={})
        assert "battery" not in str(caught.value)

    def test_bare_file_ignores_the_environment(self, tmp_path):
        identity, path = Identity.generate(), tmp_path / "identity.pem"
        identity.save(path, environ={})
        assert Identity.load(path, environ={PASSPHRASE_VARIABLE: "x"}).public_key == identity.public_key

    def test_never_overwrites_unless_told(self, tmp_path):
        first, second, path = Identity.generate(), Identity.generate(), tmp_path / "identity.pem"
        first.save(path, environ={})
        with pytest.raises(IdentityError, match="exists"):
            second.save(path, environ={})
        assert Identity.load(path, environ={}).public_key == first.public_key
        second.save(path, replace=True, environ={})
        assert Identity.load(path, environ={}).public_key == second.public_key
        assert len(list(tmp_path.iterdir())) == 1  # no temporary left

    def test_nothing_half_written(self, tmp_path, monkeypatch):
        first, path = Identity.generate(), tmp_path / "identity.pem"
        first.save(path, environ={})

        def full_disk(_descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(_files.os, "fsync", full_disk)
        with pytest.raises(IdentityError, match="No space"):
            Identity.generate().save(path, replace=True, environ={})
        monkeypatch.undo()
        assert Identity.load(path, environ={}).public_key == first.public_key
        assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.parametrize(
        "content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
    )
    def test_damaged(self, tmp_path, content):
        path = tmp_path / "identity.pem"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(IdentityError, match="cannot be read"):
            Identity.load(path, environ={})

    def test_missing_folder_and_other_kinds_of_key(self, tmp_path):
        with pytest.raises(IdentityError, match="cannot be read"):
            Identity.load(tmp_path / "absent", environ={})
        with pytest.raises(IdentityError, match="cannot be read"):
            Identity.load(tmp_path, environ={})
        pem = X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / "x").write_bytes(pem)
        (tmp_path / "x").chmod(0o600)
        with pytest.raises(IdentityError, match="another kind"):
            Identity.load(tmp_path / "x", environ={})

    def test_errors_hold_no_private_byte(self, tmp_path):
        identity, path = Identity.generate(), tmp_path / "identity.pem"
        identity.save(path, environ={})
        body = path.read_text().splitlines()[1]
        path.write_text(path.read_text().replace(body, body[:-12]))
        with pytest.raises(IdentityError) as caught:
            Identity.load(path, environ={})
        assert body[10:30] not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_standard_format(self, tmp_path):
        """Any tool that reads PKCS #8 reads ours."""
        identity, path = Identity.generate(), tmp_path / "identity.pem"
        identity.save(path, environ={})
        key = load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, Ed25519PrivateKey)
        assert key.public_key().public_bytes_raw() == identity.public_key
