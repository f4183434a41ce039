"""Field types of messages, and the decoding of a message from msgpack values. Pure.

A message is a list of fields in a fixed order. A release may add fields at the end, with a default: a reader ignores
the fields after those it knows, and fields that an earlier sender leaves out have their defaults. Rows inside a message
follow the same rule (ADR 0037).
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from raylog.base.errors import InvalidRequest

MessageT = TypeVar("MessageT")
StructT = TypeVar("StructT", bound=msgspec.Struct)

Int16: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**15), le=2**15 - 1)]
"""A whole number of 16 bits, as batches have for the epochs of producers."""
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A whole number of 32 bits, as batches have for the epochs of leaders; partitions and generations are such as well."""
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of 64 bits; true and false are none."""
Setting: TypeAlias = str | int | float | bool
"""The value of a configuration key; the controller decides whether it is legal."""

NAMES_MAX: Final = 10_000
"""Most names in a list of a request; a client with more of them sends several requests."""
ROWS_MAX: Final = 100_000
"""Most entries of any other list in a request."""
ItemT = TypeVar("ItemT")
Names: TypeAlias = Annotated[Sequence[str], msgspec.Meta(max_length=NAMES_MAX)]
"""A list of names in a request."""
Rows: TypeAlias = Annotated[Sequence[ItemT], msgspec.Meta(max_length=ROWS_MAX)]
"""Another list in a request: a server handles each request as a whole, while others wait."""
Settings: TypeAlias = Annotated[Mapping[str, ItemT], msgspec.Meta(max_length=NAMES_MAX)]
"""A mapping from names in a request."""

WAIT_MS_MAX: Final = 300_000
"""Longest that a request waits for its event, whatever it states; and no longer than its sender's token holds."""
NONE: Final = -1
"""Stands for "none" or "not known" where a number has to be given."""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A request, a reply or a row of either, as a list of its fields."""

    has_bytes: ClassVar[bool] = False
    """Whether a field holds bytes: then text, which msgspec would take for base64, has to be refused."""


class Description(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A reply, or a part of one, that travels as a mapping from names to values: for people and monitoring.

    Names that a reader does not know are ignored; those that a sender leaves out have their defaults.
    """


class Empty(Message, frozen=True):
    """No fields."""


_OCTETS: Final = (bytes, bytearray, memoryview)


def replace(message: StructT, **changes: object) -> StructT:
    """Return a message with other values in some fields."""
    return msgspec.structs.replace(message, **changes)


def read(kind: type[MessageT], args: object, what: str) -> MessageT:
    """Return decoded msgpack as a message; no arguments at all are an empty list.

    ``what`` names the message in errors. Raises :class:`InvalidRequest`, which names the field and what was expected.
    """
    try:
        if getattr(kind, "has_bytes", False):
            return msgspec.convert(args, kind, builtin_types=_OCTETS)
        return msgspec.convert(() if args is None else args, kind)
    except msgspec.ValidationError as wrong:
        raise InvalidRequest(f"{what}: {_explained(kind, str(wrong))}.") from None


def read_encoded(decode: Callable[[Any], MessageT], kind: type[MessageT], args: msgspec.Raw, what: str) -> MessageT:
    """Return encoded arguments as a message, with its type's decoder: no object is made that the type does not hold.

    Otherwise as :func:`read`.
    """
    try:
        return decode(args)
    except msgspec.ValidationError as wrong:
        if bytes(args) == _NIL:
            return read(kind, None, what)
        raise InvalidRequest(f"{what}: {_explained(kind, str(wrong))}.") from None
    except Exception as error:  # text that is no UTF-8, keys that cannot be hashed, depth: caused by the sender's bytes
        raise InvalidRequest(f"{what}: its arguments are not the msgpack they should be: {error}.") from error


_NIL: Final = b"\xc0"
_PLACE: Final = re.compile(r" - at `(?P<key>key in `|key` in `)?\$(?P<path>[^`]*)`$")
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]|\.([^.\[]+)")


def _explained(kind: Any, wrong: str) -> str:
    """Return msgspec's sentence with the names of fields in place of their numbers."""
    found = _PLACE.search(wrong)
    path: list[str] = []
    inner = kind
    for number, name in _STEP.findall(found["path"] if found else ""):
        inner = _without_none(inner)
        if number.isdigit() and _is_message(inner):
            field = msgspec.structs.fields(inner)[int(number)]
            path.append(f".{field.name}" if path else field.name)
            inner = field.type
        else:
            path.append(f".{name}" if name else f"[{number}]")
            inner = (*get_args(inner), None)[0] if number else None
    expected = wrong[: found.start()] if found else wrong
    missing = re.match(r"Expected `array` of at least length (\d+), got (\d+)", expected)
    inner = _without_none(inner)
    if missing and _is_message(inner):
        first = msgspec.structs.fields(inner)[int(missing[2])].name
        expected = f"expected {missing[1]} fields or more, got {missing[2]}: {first!r} is missing"
    where = f"the field {''.join(path)!r} is wrong, " if path else ""
    return where + expected[0].lower() + expected[1:].replace("`", "")


def _without_none(kind: Any) -> Any:
    """Return what an optional type holds, and what an annotated one annotates."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)
