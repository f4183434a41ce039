"""Specifications of actors: the content of their text form."""

import dataclasses
import inspect

import pytest

from raylog.actors import actor_specs as specs

KINDS = [kind for _, kind in inspect.getmembers(specs, dataclasses.is_dataclass) if inspect.isclass(kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_specification_shows_a_secret(kind: type) -> None:
    """Ray prints arguments in errors, and logs keep them."""
    fields = {field.name: f"<{field.name}>" for field in dataclasses.fields(kind)}
    shown = repr(kind(**fields))
    assert "<secret>" not in shown
    assert all(field.repr is False for field in dataclasses.fields(kind) if "secret" in field.name)
    assert len(KINDS) >= 5
