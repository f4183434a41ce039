"""Single options of a run in place of those that its seed draws. Called by every world that has options. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

Options = TypeVar("Options")


def limited(options: Options, limits: Mapping[str, Any] | None) -> Options:
    """Return options with these values, which may come as JSON has them."""
    if not limits:
        return options
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in limits.items()}
    return replace(options, **values)  # type: ignore[type-var]
