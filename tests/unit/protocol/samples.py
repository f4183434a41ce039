"""Well-formed messages made from their types, as an earlier, the same and a later release would send them."""

import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from raylog.protocol.message import Description, Message

NEW = {"of": "a later release"}
"""A value for a field that this release does not know."""
PLAIN: Mapping[Any, Any] = {int: 7, str: "text", bool: True, bytes: b"bytes", float: 0.5, Any: [1, "a"]}


def of_this_release(kind: Any) -> Any:
    """Return a message with all fields that this release knows."""
    return _sample(kind, lambda fields, values: values)


def of_a_later_release(kind: Any) -> Any:
    """Return the same with an unknown field behind those of each message, at every depth."""
    return _sample(kind, lambda fields, values: [*values, NEW])


def of_the_first_release(kind: Any) -> Any:
    """Return the same without the fields that have a default, at every depth."""
    return _sample(
        kind, lambda fields, values: [value for field, value in zip(fields, values, strict=True) if field.required]
    )


def inner(kind: Any) -> Any:
    """Return what an optional or annotated type holds."""
    if get_origin(kind) in (Union, types.UnionType):
        return inner(next(part for part in get_args(kind) if part is not type(None)))
    return inner(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def _sample(kind: Any, arrange: Callable[[Sequence[Any], list[Any]], list[Any]]) -> Any:
    kind = inner(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if get_origin(kind) is not None:
        *_, held = get_args(kind)
        return {"key": _sample(held, arrange)} if issubclass(get_origin(kind), Mapping) else [_sample(held, arrange)]
    fields = msgspec.structs.fields(kind)
    values = [_sample(field.type, arrange) for field in fields]
    if issubclass(kind, Description):
        return {field.encode_name: value for field, value in zip(fields, values, strict=True)}
    assert issubclass(kind, Message), kind
    return arrange(fields, values)


def grown(kind: Any, wire: Any) -> Any:
    """Return a message as a later release sends it: with an unknown field behind those of each message inside."""
    kind = inner(kind)
    origin = get_origin(kind)
    if wire is None or kind in PLAIN or (isinstance(kind, type) and issubclass(kind, Enum)):
        return wire
    if origin is not None:
        held = [part for part in get_args(kind) if part is not ...][-1]
        if issubclass(origin, Mapping):
            return {name: grown(held, value) for name, value in wire.items()}
        return [grown(held, value) for value in wire]
    fields = msgspec.structs.fields(kind)
    if issubclass(kind, Description):
        types_of = {field.encode_name: field.type for field in fields}
        return {**{name: grown(types_of.get(name, Any), value) for name, value in wire.items()}, "of": NEW}
    values = [grown(field.type, value) for field, value in zip(fields, wire, strict=False)]
    return [*values, *(field.default for field in fields[len(values) :]), NEW]
