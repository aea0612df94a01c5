"""Certificates for a study: an authority of its own, and the coordinator's certificate signed by it."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from twofold.errors import InputError
from twofold.extras import require

__all__ = ["is_loopback", "make_certificates"]

YEARS = 3


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("hospital.org")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_certificates(folder: str | Path, hosts: list[str]) -> None:
    """Write ca.crt (for everybody), ca.key (to be kept away), server.pem and server.key (for the coordinator) into a folder.

    The certificate holds for the names and addresses in `hosts`. What is there already is never overwritten.
    """
    x509 = require("cryptography.x509", "Certificates", "flower")
    hashes = require("cryptography.hazmat.primitives.hashes", "Certificates", "flower")
    ec = require("cryptography.hazmat.primitives.asymmetric.ec", "Certificates", "flower")
    serialization = require("cryptography.hazmat.primitives.serialization", "Certificates", "flower")
    folder = Path(folder)
    if (folder / "server.pem").exists():
        raise InputError(f"{folder} holds certificates already: they are never overwritten. Name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: Any) -> Any:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("twofold study"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        )

    def alternative(host: str) -> Any:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False,
    )  # fmt: skip
    root = (
        builder("twofold study", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        builder(hosts[0], server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem) + root.public_bytes(pem))
    for file, key in (("ca.key", authority), ("server.key", server)):
        text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        with os.fdopen(os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(text)
