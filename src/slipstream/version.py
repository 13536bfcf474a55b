"""The installed version; pyproject.toml is the one place that states it."""

from __future__ import annotations

from importlib.metadata import version


def installed_version() -> str:
    """Version of the installed distribution, e.g. "0.1.0".

    Raises importlib.metadata.PackageNotFoundError when the package runs from a source tree that was never installed.
    """
    return version("slipstream-llm")
