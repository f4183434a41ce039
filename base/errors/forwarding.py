"""Errors of forwarders and redrives. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError


class ForwarderFenced(RaylogError):
    """The leader of a later epoch forwards the records of this partition; this one may store nothing more."""

    code = 1050


class RedriveRunning(RaylogError):
    """A redrive of this topic runs already; cancel it, or wait for its end."""

    code = 1051
