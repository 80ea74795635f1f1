"""Device ids of Syncthing: the SHA-256 of a certificate, in base 32 with check digits.

Source: https://docs.syncthing.net/dev/device-ids.html
"""

import base64
import hashlib
import socket
import ssl

from csi_ub.reasons import Unreachable

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


def device_id(certificate: bytes) -> str:
    """Return the id of the device that shows ``certificate`` (DER)."""
    text = base64.b32encode(hashlib.sha256(certificate).digest()).decode("ascii").rstrip("=")
    parts = [text[at : at + 13] for at in range(0, 52, 13)]
    checked = "".join(part + _check_digit(part) for part in parts)
    return "-".join(checked[at : at + 7] for at in range(0, 56, 7))


def ask(host: str, port: int, timeout_s: float = 2) -> str:
    """Return the id of the device that answers at ``host``: its nodes are trusted by their address.

    Raises:
        Unreachable: nobody answers there.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # certificates are their own authority
    try:
        with socket.create_connection((host, port), timeout_s) as plain, context.wrap_socket(plain) as secure:
            certificate = secure.getpeercert(binary_form=True)
    except OSError as error:
        raise Unreachable(f"no Syncthing answers at {host}:{port}: {error}") from error
    if certificate is None:
        raise Unreachable(f"{host}:{port} shows no certificate")
    return device_id(certificate)


def _check_digit(text: str) -> str:
    factor, total = 1, 0
    for character in text:
        addend = factor * _ALPHABET.index(character)
        factor = 3 - factor
        total += addend // 32 + addend % 32
    return _ALPHABET[-total % 32]
