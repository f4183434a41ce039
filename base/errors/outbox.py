"""Errors of the outbox and the inbox, which live in a user's database. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError


class OutboxNotInitialized(RaylogError):
    """The database has no outbox: run `raylog outbox init URL`, or call raylog.outbox.init(engine)."""

    code = 1060


class OutboxVersionMismatch(RaylogError):
    """The outbox's tables were made by another release of Raylog; the message says what to do."""

    code = 1061


class OutboxBoundElsewhere(RaylogError):
    """The outbox is relayed under another name, or to another cluster; the message says what to do."""

    code = 1062


class OutboxLeaseLost(RaylogError):
    """Another relay has taken this shard over; nothing that was not marked is lost, for it sends the same batches."""

    code = 1063
