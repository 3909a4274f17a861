"""Certificates and node keys, made on the spot: an authority of one's own, a server it vouches for, a key a node."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from turnout.core.errors import UserError

_PEM, _DAYS = serialization.Encoding.PEM, 365
_HEAD, _TAIL = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"
PrivateKey = ec.EllipticCurvePrivateKey


def _write_secret(path: Path, key: PrivateKey, form: serialization.PrivateFormat) -> None:
    """A private key in a file readable for its owner alone, from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(_PEM, form, serialization.NoEncryption()))


def _builder(subject: str, issuer: str, key: PrivateKey) -> x509.CertificateBuilder:
    name, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (subject, issuer))
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(by).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    return builder.not_valid_after(now + datetime.timedelta(days=_DAYS))


def _address(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """`ca.pem`, which clients trust, and `link.pem`, `link.key` of a server reached under these names. The authority's
    own key is not kept: nobody can make another certificate."""
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    constraints, signs = x509.BasicConstraints(ca=True, path_length=0), x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = _builder("Turnout authority", "Turnout authority", authority).add_extension(constraints, critical=True)
    root = root.add_extension(signs, critical=True).add_extension(identifier, critical=False)
    ca = root.sign(authority, hashes.SHA384())
    names = x509.SubjectAlternativeName([_address(host) for host in hosts])
    own = _builder("Turnout server", "Turnout authority", key).add_extension(names, critical=False)
    own = own.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    own = own.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = own.add_extension(issuer, critical=False).sign(authority, hashes.SHA384())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.pem").write_bytes(ca.public_bytes(_PEM))
    (folder / "link.pem").write_bytes(certificate.public_bytes(_PEM))
    _write_secret(folder / "link.key", key, serialization.PrivateFormat.PKCS8)


def make_node_key(path: Path) -> str:
    """A private key in a file; the public one as text, as in the table of clients."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key, serialization.PrivateFormat.OpenSSH)
    return as_text(key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def public_of(path: Path) -> str:
    """The public key of a private one in a file, as text."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path}: no node key that can be read; delete it, and enrol again") from error
    return as_text(key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def is_node_key(text: str) -> bool:
    """Tell whether somebody untrusted has written a public key as `as_text` does."""
    try:
        key = serialization.load_pem_public_key(as_pem(text))
    except (ValueError, UnsupportedAlgorithm):
        return False
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        return False
    return as_text(key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)) == text


def fingerprint(text: str) -> str:
    """Name a public key, to be compared by telephone."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


def as_text(pem: bytes) -> str:
    """A public key as one word."""
    return "".join(line for line in pem.decode(errors="replace").split("\n") if not line.startswith("-----")).strip()


def as_pem(text: str) -> bytes:
    """The inverse of `as_text`."""
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join([_HEAD, *lines, _TAIL, ""]).encode()
