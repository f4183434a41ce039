"""What stands in for a shell, a port or a log in the simulator takes and gives the same arguments as what ships.

An argument that the shell leaves out and a stand-in gives, or the other way round, hides a fault from every simulation.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterable

import pytest

import tests.simulation.storage.calls as storage_calls
import tests.simulation.storage.lives as storage_lives
import tests.simulation.storage.transactions.run as storage_transactions
from raylog.actors import flusher
from raylog.actors.controller.runner import ControllerPorts
from raylog.actors.controller.server import ControllerServer
from raylog.actors.flusher import Flusher
from raylog.actors.groups.runner import GroupPorts
from raylog.actors.groups.server import GroupCoordinatorServer
from raylog.actors.metadata.quorum_log import QuorumLog
from raylog.actors.metadata.quorum_runner import QuorumListener
from raylog.actors.metadata.voter import Files
from raylog.actors.metadata.voter_runner import VoterDisk
from raylog.actors.replica import cleaner, consumer_reads, effects, opening, ports, runner, watermark_keeper
from raylog.actors.replica.watermark_keeper import WatermarkKeeper
from raylog.client.consumer import consumer_session, group_session, handover
from raylog.client.group.consumer_membership import ConsumerMembership
from raylog.client.group.membership import Membership
from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.consumers import coordinator as consumers
from tests.simulation.consumers import member as consumer_members
from tests.simulation.groups import coordinator as groups
from tests.simulation.groups import member as group_members
from tests.simulation.metadata.controller import MetadataController
from tests.simulation.partition.controller import ControllerNode
from tests.simulation.partition.replica_disk import OpenedLog, VirtualKeeper, VirtualSync
from tests.simulation.quorum.controller import SimController
from tests.simulation.quorum.voter import VirtualFiles
from tests.simulation.storage import shell


def stated(kind: type, name: str) -> list[inspect.Parameter]:
    """The parameters of a method, without `self`."""
    return list(inspect.signature(getattr(kind, name)).parameters.values())[1:]


def calls_of(port: type) -> list[str]:
    """The methods of a port, those that it inherits too."""
    named = {name for kind in port.__mro__ for name, value in vars(kind).items() if inspect.isfunction(value)}
    return sorted(name for name in named if name[0] != "_")


LOG_CALLS = calls_of(ports.Log)
STAND_INS: list[tuple[type, type]] = [
    (ports.Sync, Flusher),
    (ports.Sync, VirtualSync),
    (ports.Keeper, WatermarkKeeper),
    (ports.Keeper, VirtualKeeper),
    (GroupPorts, GroupCoordinatorServer),
    (GroupPorts, groups.Coordinator),
    (GroupPorts, consumers.Coordinator),
    (ControllerPorts, ControllerServer),
    (ControllerPorts, MetadataController),
    (ControllerPorts, ControllerNode),
    (VoterDisk, Files),
    (VoterDisk, VirtualFiles),
    (QuorumListener, QuorumLog),
    (QuorumListener, SimController),
]
"""Each port that a runner has, with its shipped class and with what stands in for that in a simulation."""


@pytest.mark.parametrize(
    ("port", "kind"), STAND_INS, ids=[f"{port.__name__} {kind.__module__.split('.')[-2]}" for port, kind in STAND_INS]
)
def test_what_implements_a_port_takes_the_arguments_that_it_states(port: type, kind: type) -> None:
    assert calls_of(port)
    for name in calls_of(port):
        wanted, found = stated(port, name), stated(kind, name)
        kinds = [(each.kind, each.default) for each in wanted]
        assert [(each.kind, each.default) for each in found] == kinds, (kind, name)


@pytest.mark.parametrize("name", LOG_CALLS)
@pytest.mark.parametrize("kind", [PartitionLog, OpenedLog])
def test_the_log_and_its_virtual_twin_take_exactly_what_the_port_states(kind: type, name: str) -> None:
    """A parameter with a default may be left out by the shell and given by a simulator, which then sees less."""
    port, found = stated(ports.Log, name), stated(kind, name)
    assert [each.name for each in found] == [each.name for each in port]
    assert all(each.default is inspect.Parameter.empty for each in (*port, *found))


Given = dict[str, set[tuple[int, tuple[str | None, ...]]]]
"""How many arguments by place, and which by name, each method is given."""


def given_in(modules: Iterable[object], calls: set[str], objects: Collection[str] = ()) -> Given:
    """What each of these methods is given in some modules; ``objects``: of variables and attributes of these names."""
    found: Given = {}
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):  # type: ignore[arg-type]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in calls:
                owner = node.func.value
                if objects and getattr(owner, "attr", getattr(owner, "id", "")) not in objects:
                    continue
                names = tuple(each.arg for each in node.keywords)
                found.setdefault(node.func.attr, set()).add((len(node.args), names))
    return found


SHELLS = (cleaner, consumer_reads, effects, opening, runner, watermark_keeper, flusher)
"""Every module of a replica that calls its log, or the file of its watermark."""
CALLED = {
    "advance_log_start",
    "append_as_follower",
    "append_as_leader",
    "append_marker",
    "apply_retention",
    "assign_leader_epoch",
    "checkpoint",
    "count_producers_as_seen",
    "keep",
    "lower",
    "open",
    "order_cleaning",
    "purge_deleted",
    "slices",
    "sync_records",
    "take_cleaned",
    "truncate_fully_and_start_at",
    "truncate_to",
    "want",
}
"""What changes a log on disk, or depends on the time."""


def test_the_shell_and_the_simulator_of_storage_make_the_same_calls() -> None:
    """Argument by argument; what cuts a log is called by the shell alone, which the simulator uses for that."""
    shipped = given_in(SHELLS, CALLED)
    simulated = given_in((storage_calls, storage_lives, storage_transactions), CALLED)
    assert len(simulated) >= 12
    for name, shapes in simulated.items():
        of_log = shapes - {(0, ())}  # of methods of the same name that the model has
        assert of_log <= shipped[name], (name, of_log, shipped[name])
    assert not simulated.keys() & {"truncate_to", "truncate_fully_and_start_at"}
    assert given_in((shell,), {"_cut_log"}) == {"_cut_log": {(1, ())}}


MEMBERS: list[tuple[type, object, object]] = [
    (Membership, group_session, group_members),
    (ConsumerMembership, consumer_session, consumer_members),
]
"""Each machine of a group's member, the shipped session that drives it, and what stands in for that in a simulation."""


@pytest.mark.parametrize(("machine", "session", "stand_in"), MEMBERS, ids=[kind.__name__ for kind, _, _ in MEMBERS])
def test_a_simulated_member_drives_its_machine_as_the_session_does(
    machine: type, session: object, stand_in: object
) -> None:
    """No method that the session does not call, and none with other arguments: such a member would test itself."""
    calls = set(calls_of(machine))
    shipped = given_in((session, handover), calls, ("member", "membership"))
    simulated = given_in((stand_in,), calls, ("member", "membership"))
    assert len(simulated) >= 6
    for name, shapes in simulated.items():
        assert shapes <= shipped.get(name, set()), (name, shapes, shipped.get(name))
