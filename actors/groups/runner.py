"""Runs a group coordinator's machine: adds its requests and metrics to the common runner of coordinators. Pure.

A module of its own, because it needs no Ray: simulations run it without the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from raylog.actors.coordinators.runner import CoordinatorPorts, CoordinatorRequest, CoordinatorRunner
from raylog.actors.received import received
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.events import LookUpTopics, TopicsSeen
from raylog.core.groups.figures import GroupFigures
from raylog.core.groups.settings import GroupSettings
from raylog.protocol.groups import GROUP_COORDINATOR

RowT = TypeVar("RowT")
_RowT_co = TypeVar("_RowT_co", covariant=True)
RequestT = TypeVar("RequestT", bound=CoordinatorRequest)


class GroupPorts(CoordinatorPorts[_RowT_co], Protocol[_RowT_co]):
    """Ports of a group coordinator."""

    def look_up_topics(self, topics: Sequence[str]) -> None:
        """Fetch the metadata of these topics; ``topics_seen`` of the runner follows, unless that fails."""


class GroupCoordinatorRunner(CoordinatorRunner[RequestT, RowT]):
    """One load of a group coordinator."""

    def __init__(self, machine: GroupCoordinatorMachine, ports: GroupPorts[RowT]) -> None:
        """``machine``: a new one."""
        self._machine = machine
        effects = {LookUpTopics: lambda effect: ports.look_up_topics(effect.topics)}
        super().__init__(machine, ports, partial(received, GROUP_COORDINATOR), effects, ticks=True)

    def reconfigure(self, settings: GroupSettings) -> None:
        """Use these settings from now on."""
        self._machine.reconfigure(settings)
        self._tick_soon()

    def topics_seen(self, requested: Sequence[str], topics: Mapping[str, tuple[str, int]], now_ms: int) -> None:
        """Take topic id and number of partitions of those ``requested`` topics that exist."""
        self.feed(TopicsSeen(cause="topics seen", now_ms=now_ms, requested=requested, topics=topics))

    def census(self) -> list[GroupFigures]:
        """Return figures of the groups for the metrics; see :meth:`GroupCoordinatorMachine.census`."""
        return self._machine.census()
