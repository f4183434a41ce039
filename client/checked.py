"""Checks the arguments of public calls by their annotations: a wrong type is refused with one clear sentence.

`checks_arguments` wraps the public methods of a class. Only parameters with an annotation in `CHECKS` are checked here;
others are checked where they are read. An iterable reaches the method as a list. Two kinds of methods are left out and
check by themselves: hot ones, and those that return records. CPython runs signal handlers when a call with `*args`
returns, so an exception from a handler would lose the records that the wrapped method had returned. Pure.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from raylog.client.arguments import checked_offset, checked_partition
from raylog.client.scheduling import moment_ms

Client = TypeVar("Client", bound=type[Any])
Check = Callable[[str, Any], Any]
"""Name and value of an argument -> the value to pass on. Raises TypeError or ValueError."""


def text(name: str, value: Any) -> Any:
    """A str; its reader decides which values are legal."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}: {value!r:.100}.")
    return value


def whole(name: str, value: Any) -> Any:
    """An int, or an integer of numpy."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r:.100}.")
    return operator.index(value)


def number(name: str, value: Any) -> Any:
    """A number of seconds or milliseconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise TypeError(f"{name} must be a number, not {type(value).__name__}: {value!r:.100}.")
    return value


def whole_or_none(name: str, value: Any) -> Any:
    """An int, or None for the default."""
    return None if value is None else whole(name, value)


def number_or_none(name: str, value: Any) -> Any:
    """A number of seconds or milliseconds, or None for no limit or the default."""
    return None if value is None else number(name, value)


def truth(name: str, value: Any) -> Any:
    """A bool, of numpy too. Nothing else, since a text such as "no" would count as true."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}: {value!r:.100}.")
    return value


def texts(name: str, value: Any) -> Any:
    """An iterable of str, as a list. A single str is refused, though its letters would pass as an iterable of str."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        example = f"[{value!r:.60}]" if isinstance(value, str) else '["a", "b"]'
        raise TypeError(f"{name} must be a list of str, such as {example}, not {type(value).__name__}: {value!r:.100}.")
    return [text(f"each of {name}", each) for each in value]


def partition(name: str, value: Any) -> Any:
    """A TopicPartition, from one or from a (topic, number) pair."""
    return checked_partition(value)


def partitions(name: str, value: Any) -> Any:
    """An iterable of partitions, as a list of TopicPartition."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of TopicPartition, not {type(value).__name__}: {value!r:.100}.")
    return [checked_partition(each) for each in value]


def mapping(name: str, value: Any) -> Any:
    """A mapping of str to settings: text, a number, a bool or None."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, such as a dict, not {type(value).__name__}: {value!r:.100}.")
    for key, each in value.items():
        text(f"each key of {name}", key)
        if each is not None and not isinstance(each, (str, int, float)):
            raise TypeError(f"{name}[{key!r}] must be text, a number, True or False, not {each!r:.100}.")
    return value


def numbers_of_partitions(name: str, value: Any) -> Any:
    """A mapping of partitions to whole numbers."""
    found = _by_partition(name, value)
    return {at: whole(f"{name}[{at}]", each) for at, each in found.items()}


def moments_of_partitions(name: str, value: Any) -> Any:
    """A mapping of partitions to times: milliseconds since 1970, or a datetime with a zone."""
    found = _by_partition(name, value)
    return {
        at: moment_ms(each, f"{name}[{at}]") if isinstance(each, datetime) else whole(f"{name}[{at}]", each)
        for at, each in found.items()
    }


def offsets(name: str, value: Any) -> Any:
    """A mapping of partitions to offsets, or to OffsetAndMetadata."""
    found = _by_partition(name, value)
    for at, each in found.items():
        checked_offset(at, each)
    return found


def _by_partition(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be a mapping of TopicPartition, such as a dict, not {type(value).__name__}: {value!r:.100}."
        )
    return {checked_partition(at): each for at, each in value.items()}


def assignment(name: str, value: Any) -> Any:
    """A list with a list of broker ids for each partition."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a list with the brokers of each partition, not {value!r:.100}.")
    for brokers in value:
        if not isinstance(brokers, Sequence) or isinstance(brokers, (str, bytes)):
            raise TypeError(f"{name} must have a list of brokers for each partition, not {brokers!r:.100}.")
        for broker in brokers:
            whole(f"each broker of {name}", broker)
    return value


def wholes(name: str, value: Any) -> Any:
    """An iterable of int, as a list."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of int, not {type(value).__name__}: {value!r:.100}.")
    return [whole(f"each of {name}", each) for each in value]


def called(name: str, value: Any) -> Any:
    """A callable."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {type(value).__name__}: {value!r:.100}.")
    return value


CHECKS: dict[str, Check] = {
    "str": text,
    "int": whole,
    "float": number,
    "bool": truth,
    "Iterable[str]": texts,
    "Iterable[int]": wholes,
    "TopicPartition": partition,
    "tuple[str, int]": partition,
    "Iterable[TopicPartition]": partitions,
    "Iterable[tuple[str, int]]": partitions,
    "Iterable[TopicPartition | tuple[str, int]]": partitions,
    "Mapping[str, Any]": mapping,
    "Mapping[str, str]": mapping,
    "Mapping[TopicPartition, int]": numbers_of_partitions,
    "Mapping[TopicPartition, Moment]": moments_of_partitions,
    "Mapping[tuple[str, int], int]": numbers_of_partitions,
    "Mapping[TopicPartition, int | OffsetAndMetadata]": offsets,
    "Offsets": offsets,
    "Sequence[Sequence[int]]": assignment,
    "Say": called,
    "Callable[[QueueMessage], object]": called,
    "Callable[[QueueMessage], Awaitable[object] | object]": called,
}
"""The check for each annotation, without its `| None`; None is legal where it is the default or is annotated."""


def checks_arguments(*left_out: str) -> Callable[[Client], Client]:
    """A class decorator that wraps the public methods, inherited ones too, except those named in `left_out`."""

    def wrapped(client: Client) -> Client:
        for name, method in inspect.getmembers(client, inspect.isfunction):
            if not name.startswith("_") and name not in left_out and not inspect.isgeneratorfunction(method):
                setattr(client, name, checked_call(method))
        return client

    return wrapped


def checked_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, wrapped so that its arguments are checked first; unwrapped if there is nothing to check."""
    checks = _checks_of(method)
    if not checks or hasattr(method, "__wrapped__"):
        return method
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **named: Any) -> Any:
            args, named = _checked(checks, args, named)
            return await method(*args, **named)

        return awaited

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        args, named = _checked(checks, args, named)
        return method(*args, **named)

    return call


Checks = tuple[tuple[int, str, bool, Check], ...]
"""Per parameter: position (-1 = keyword only), name ("*" = variadic, from that position on), whether None is legal,
check."""


def _checks_of(method: Callable[..., Any]) -> Checks:
    found = []
    for position, parameter in enumerate(inspect.signature(method).parameters.values()):
        annotation = str(parameter.annotation).removesuffix(" | None")
        check = CHECKS.get(annotation)
        if check is None:
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            found.append((position, "*", False, check))
        else:
            is_named_only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            optional = parameter.default is None or str(parameter.annotation).endswith("| None")
            found.append((-1 if is_named_only else position, parameter.name, optional, check))
    return tuple(found)


def _checked(checks: Checks, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = list(args)
    for position, name, optional, check in checks:
        if name == "*":
            given[position:] = [check("each argument", each) for each in given[position:]]
        elif 0 <= position < len(given):
            if given[position] is not None or not optional:
                given[position] = check(name, given[position])
        elif name in named and (named[name] is not None or not optional):
            named[name] = check(name, named[name])
    return tuple(given), named
