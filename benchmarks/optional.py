"""Peers' client libraries, each optional: loaded by name, typed as Any, with a reason when missing."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any


class Missing(Exception):
    """A library is not installed; the message names it and how to get it."""


def module(name: str) -> Any:
    """Import a library. Raises Missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise Missing(f"the Python library {package} is not installed ({error}); the extra `bench` brings it") from None


def version_of(distribution: str) -> str:
    """The installed version of a distribution, or 'not installed'."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
