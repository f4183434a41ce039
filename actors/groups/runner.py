"""Runs a group coordinator's machine: its own requests, and figures for the metrics. See the base class. Pure."""

from __future__ import annotations

from typing import TypeVar

from raylog.actors.coordinators.runner import CoordinatorPorts, CoordinatorRunner
from raylog.actors.groups.requests import GroupRequest, event_for
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.figures import GroupFigures

RowT = TypeVar("RowT")
RequestT = TypeVar("RequestT", bound=GroupRequest)


class GroupCoordinatorRunner(CoordinatorRunner[RequestT, RowT]):
    """One load of a coordinator's groups."""

    def __init__(self, machine: CoordinatorMachine, ports: CoordinatorPorts[RowT]) -> None:
        """``machine`` is a fresh one."""
        self._machine = machine
        super().__init__(machine, ports, event_for, {})

    def census(self) -> list[GroupFigures]:
        """Return the groups for the metrics; see :meth:`CoordinatorMachine.census`."""
        return self._machine.census()
