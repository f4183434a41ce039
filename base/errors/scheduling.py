"""Errors of delayed records and half messages. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError, RetriableError


class DelayTooLong(RaylogError):
    """The record would be due later than its topic's ``delay.max.ms`` allows."""

    code = 1017


class DelayDisabled(RaylogError):
    """The topic has ``delay.enable=false``: its records cannot be delayed."""

    code = 1018


class ScheduleFull(RetriableError):
    """As many delayed records wait as ``delay.max.pending`` of ``__scheduled`` allows; try again when some are due."""

    code = 1019


class HalfMessageDecided(RaylogError):
    """The half message was decided otherwise before, and the first decision stands."""

    code = 1070


class UnknownHalfMessage(RaylogError):
    """No half message of this name is held: it was never prepared, or was decided so long ago that it is forgotten."""

    code = 1071


class HalfMessagesFull(RetriableError):
    """As many half messages are held as ``half.max.pending`` of ``__scheduled`` allows; decide about some."""

    code = 1072
