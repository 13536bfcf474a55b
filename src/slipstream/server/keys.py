"""API keys: where they come from, and whose one is."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`name` is the tenant: it shows in logs and metrics. The secret itself is not kept."""

    name: str
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, secret: str) -> ApiKey:
        """Raises ConfigError for a secret that no header could carry."""
        if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise ConfigError("an API key must be printable ASCII without spaces.", where=f"key {name}")
        return cls(name, _digest(secret))


def parse_keys(lines: Iterable[str], where: str) -> tuple[ApiKey, ...]:
    """One `NAME SECRET`, or a secret alone, per line; empty lines and those that begin with # do not count.

    A nameless key is called key-1, key-2, ... Raises ConfigError that names the line, never the secret.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ConfigError("a line holds NAME SECRET, or a secret alone.", where=f"{where}, line {number}")
        key = ApiKey.of(words[0] if len(words) == 2 else f"key-{len(keys) + 1}", words[-1])
        if any(key.name == other.name or key.digest == other.digest for other in keys):
            raise ConfigError("a name or a secret is there twice.", where=f"{where}, line {number}")
        keys.append(key)
    return tuple(keys)


def read_keys(path: Path | None, from_environment: str | None) -> tuple[ApiKey, ...]:
    """Keys of the file, then those of the environment (separated by commas); none: everybody may ask.

    Raises ConfigError, also for a file without any key: that would open the server by mistake.
    """
    keys: tuple[ApiKey, ...] = ()
    if path is not None:
        try:
            lines = path.read_text("utf-8").splitlines()
        except OSError as error:
            raise ConfigError(
                f"the file of API keys cannot be read: {error.strerror or error}.",
                where=str(path),
                fix="Put one NAME SECRET per line into it, or leave --api-keys out to let everybody ask.",
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError("the file of API keys is not UTF-8 text.", where=str(path)) from error
        keys = parse_keys(lines, str(path))
        if not keys:
            raise ConfigError("holds no API key.", where=str(path), fix="Put one per line: NAME SECRET.")
    if from_environment is not None:
        keys += parse_keys(from_environment.split(","), "SLIPSTREAM_API_KEYS")
    if len({key.name for key in keys}) != len(keys) or len({key.digest for key in keys}) != len(keys):
        raise ConfigError("the file and the environment hold the same key.", where="SLIPSTREAM_API_KEYS")
    return keys


def find_key(keys: Sequence[ApiKey], secret: str) -> ApiKey | None:
    """Whose secret it is. All are compared, each in constant time, so that the time taken tells nothing."""
    given = _digest(secret)
    found = None
    for key in keys:
        if hmac.compare_digest(key.digest, given):
            found = key
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
