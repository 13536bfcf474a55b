"""The server's address, taken before the model is loaded, so that one that is in use is known at once."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from slipstream.errors import ConfigError, SlipstreamError


class AddressInUseError(SlipstreamError):
    """The server cannot listen where it was told to."""

    exit_code = 8


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket that is bound and does not listen yet: who connects too early is refused, not kept waiting.

    Raises AddressInUseError.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise AddressInUseError(
            f"cannot listen: {error.strerror or error}.", where=f"{host}:{port}", fix="Choose another --port or --host."
        ) from error
    return listener


def read_password(file: Path) -> str:
    """The password of a private key, from a file of one line. Raises ConfigError."""
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}.", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text.", where=str(file)) from error
    password, _, rest = text.partition("\n")
    if rest or not password.strip("\r"):
        raise ConfigError("must hold a password, in one line.", where=str(file))
    return password.rstrip("\r")


def check_tls(certificate: Path | None, key: Path | None, password: str | None = None) -> None:
    """Raises ConfigError if the files are no certificate and its key; before the model is loaded."""
    if certificate is None or key is None:
        return
    _pem(certificate, "CERTIFICATE", "certificate")
    secret = _pem(key, "PRIVATE KEY", "private key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password or (lambda: ""))
    except (OSError, ValueError) as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            why, fix = "the key belongs to another certificate", None
        elif "ENCRYPTED" in secret and password is None:
            why, fix = "the key is encrypted", "Name a file with its password: --tls-key-password FILE."
        elif "ENCRYPTED" in secret:
            why, fix = "the password does not open the key, or one of the files is damaged", None
        else:
            why, fix = f"one of the files is damaged ({error})", None
        raise ConfigError(f"cannot be used for TLS: {why}.", where=f"{certificate}, {key}", fix=fix) from error


def _pem(file: Path, mark: str, what: str) -> str:
    """The file's text, which has a block of that kind. Raises ConfigError."""
    try:
        text = file.read_text("ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot be used for TLS: cannot be read: {error.strerror}.", where=str(file)) from error
    if f"{mark}-----" not in text:
        raise ConfigError(f"cannot be used for TLS: holds no {what} in PEM form.", where=str(file))
    return text
