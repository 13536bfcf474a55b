"""The installed version; pyproject.toml is the one place that states it."""

from __future__ import annotations


def installed_version() -> str:
    """Version of the installed distribution, e.g. "0.1.0".

    Raises importlib.metadata.PackageNotFoundError when the package runs from a source tree that was never installed.
    """
    from importlib.metadata import version  # with email, sockets and archives, which nothing else at start needs

    return version("slipstream-llm")
