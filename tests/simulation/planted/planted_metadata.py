"""Planted bugs in the controller's topics, moves, elections and stops, and in its runner."""

from __future__ import annotations

from raylog.actors.controller.runner import _Committed
from raylog.core.configuration.altering import ClusterValues
from raylog.core.controller import cluster_config, isr_changes, leadership, liveness, moves
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.coordinators import Coordinators
from raylog.core.controller.registrations import Registrations
from raylog.core.controller.shutdown import Shutdown
from raylog.core.controller.topics import Topics
from raylog.core.metadata.image import MetadataImage
from tests.simulation.planted.bugs import bugs, nothing

METADATA_BUGS = bugs(
    "metadata",
    ("metadata",),
    (
        "an alteration of the cluster's settings is acknowledged and not written",
        10,
        cluster_config,
        "_write",
        "decision.write(cluster_altered(after))",
        "pass",
    ),
    (
        "a controller's start forgets what was altered",
        10,
        ClusterValues,
        "started",
        "**given}, self.altered, start)",
        "**given}, {}, start)",
    ),
    (
        "what waits for a start of the cluster counts with the next controller",
        10,
        ClusterValues,
        "started",
        "() if start != self.start else NEXT_START",
        "()",
    ),
    (
        "coordinators are not sent what was altered",
        10,
        cluster_config,
        "_write",
        "isinstance(session.member, CoordinatorMember)",
        "False",
    ),
    ("a snapshot forgets what was altered", 10, MetadataImage, "to_records", "if self.values != ", "if None and "),
    (
        "the controller answers before its records are committed",
        10,
        _Committed,
        "durable_end",
        "committed_offset",
        "log_end_offset",
    ),
    (
        "producer ids are handed out without being written",
        10,
        Coordinators,
        "_allocate",
        "decision.write(ProducerIdsAllocated(next_id=ProducerId(first + count)))",
        "pass",
    ),
    ("a block of producer ids ends behind its first", 10, Coordinators, "_allocate", "first + count", "first + 1"),
    (
        "a topic's configuration is acknowledged and not written",
        10,
        Topics,
        "alter_config",
        "decision.write(TopicConfigured(topic_id=topic.topic_id, topic=topic.name, config=config))",
        "pass",
    ),
    ("a coordinator's epoch is not written", 10, Coordinators, "_place", nothing),
    ("a leader whose end was cut leads again", 20, Registrations, "_leave_to_others", nothing),
    ("a snapshot forgets the producer ids", 10, MetadataImage, "to_records", "if self.next_producer_id:", "if False:"),
    (
        "a deletion is acknowledged and not done",
        10,
        Topics,
        "delete",
        "if topic.internal:",
        "decision.reply(event.request, [])\n    return\n    if topic.internal:",
    ),
    ("a move ends elsewhere", 10, moves.Moves, "_begun", "begun(state, target,", "begun(state, target[:-1] or target,"),
    (
        "a move is complete before its target is in sync",
        10,
        moves,
        "completed",
        "not set(target) <= set(state.isr) - set(lost)",
        "not set(target) & set(state.isr)",
    ),
    (
        "an election is unclean without permission",
        10,
        liveness,
        "settle",
        "if unclean and hopeless and online:",
        "if online:",
    ),
    (
        "a replica that leaves the ISR is not eligible",
        10,
        leadership,
        "eligible",
        "{*state.isr, *state.elr}",
        "{*state.elr}",
    ),
    (
        "a replica that its leader drops is not eligible",
        10,
        isr_changes,
        "with_isr",
        "elr = () if drops_eligible else eligible(state, isr, min_isr, lost)",
        "elr = ()",
    ),
    ("the metadata's majority may stop", 10, Shutdown, "stop", "self._check_majority(broker, decision)", "pass"),
    (
        "the last replica may stop",
        10,
        Shutdown,
        "stop",
        "if (leaderless or below) and not event.message.force:",
        "if False:",
    ),
    (
        "a controller counts its epochs itself",
        10,
        ControllerMachine,
        "start",
        "following if epoch is None else epoch",
        "following",
    ),
    (
        "the last of the replicas in sync is elected",
        10,
        liveness,
        "settle",
        "_changed(state, clean[0], following",
        "_changed(state, clean[-1], following",
    ),
    (
        "a snapshot forgets which brokers were stopped",
        10,
        MetadataImage,
        "to_records",
        "if broker.stopped:",
        "if False:",
    ),
)
