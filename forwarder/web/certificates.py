"""The certificate of a server and its private key, which are checked before the server listens."""

import ssl
from pathlib import Path

from spool.errors import InvalidArgument


def check_certificate(certificate: str, key: str) -> None:
    """Raise InvalidArgument, with advice, for a certificate or key that OpenSSL would refuse without a reason.

    For a key with a password, OpenSSL would ask at the terminal.
    """
    if b"-----BEGIN CERTIFICATE-----" not in _read(certificate):
        raise InvalidArgument("the file of --tls-cert has no certificate as PEM: give another file")
    data = _read(key)
    if b"PRIVATE KEY-----" not in data:
        raise InvalidArgument("the file of --tls-key has no private key as PEM: give another file")
    if b"-----BEGIN ENCRYPTED" in data or b"Proc-Type: 4,ENCRYPTED" in data:
        raise InvalidArgument(
            "the private key in the file of --tls-key has a password: give a key without one, which openssl pkey -in "
            "KEY -out NEW_KEY writes"
        )
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        if reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgument(
                "the private key does not belong to the certificate: give --tls-key the key of the --tls-cert"
            ) from None
        raise InvalidArgument(f"the certificate or its key is not valid: {reason}") from None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"the certificate or its key cannot be read: {path}: {error.strerror}") from None
