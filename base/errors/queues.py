"""Errors of queue mode (share groups). Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError, RetriableError, StaleMetadataError


class InvalidRecordState(RaylogError):
    """The record is not locked by this member: its lock has run out, or its leader was replaced.

    What was done for it may be done again by the next member that gets it.
    """

    code = 121


class FencedStateEpoch(StaleMetadataError):
    """The queue was loaded by another leader since; this one may store nothing more."""

    code = 124


class QueueLoadInProgress(RetriableError):
    """The leader is loading the queue's state."""

    code = 1040
