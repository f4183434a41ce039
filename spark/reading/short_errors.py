"""Errors of the data source as Spark's users see them: the sentence, without the frames that led to it.

PySpark runs a data source in processes of its own and puts the whole traceback into the error that the user's program
gets. An error that Raylog raises on purpose says everything in its sentence. Its frames would be a hundred lines in
front of that sentence, so they are left out. Errors of any other kind keep theirs.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from raylog.base.errors import RaylogError

C = TypeVar("C", bound=type)


def without_frames(*names: str) -> Callable[[C], C]:
    """Decorate a class: errors of its methods `names`, called by Spark, lose the frames below them."""

    def decorate(decorated: C) -> C:
        for name in names:
            method = vars(decorated)[name]
            setattr(decorated, name, _generator(method) if inspect.isgeneratorfunction(method) else _function(method))
        return decorated

    return decorate


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*given: Any, **named: Any) -> Any:
        try:
            returned = method(*given, **named)
        except RaylogError as error:
            raise (_of_pickling(error) if method.__name__ == "__getstate__" else error).with_traceback(None) from None
        return _rows(returned) if inspect.isgenerator(returned) else returned

    return called


def _of_pickling(error: RaylogError) -> RaylogError:
    """The same error as a PickleError too: PySpark prints and rewrites any other error raised while it pickles."""
    kind = type(error)
    both = type(kind.__name__, (kind, pickle.PickleError), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    same: RaylogError = both.__new__(both, *error.args)
    vars(same).update(vars(error))
    return same


def _generator(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(method)
    def called(*given: Any, **named: Any) -> Iterator[Any]:
        return _rows(method(*given, **named))

    return called


def _rows(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except RaylogError as error:
        raise error.with_traceback(None) from None
