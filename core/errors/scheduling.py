"""Errors of delayed records. Pure."""

from __future__ import annotations

from raylog.core.errors.base import RaylogError, RetriableError


class DelayTooLong(RaylogError):
    """The record would be due later than its topic's ``delay.max.ms`` allows."""

    code = 1017


class DelayDisabled(RaylogError):
    """The topic has ``delay.enable=false``: its records cannot be delayed."""

    code = 1018


class ScheduleFull(RetriableError):
    """As many delayed records wait as ``delay.max.pending`` of ``__scheduled`` allows; try again when some are due."""

    code = 1019
