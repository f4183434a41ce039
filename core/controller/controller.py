"""The controller: the machine that decides on the cluster's metadata. Driven by the controller actor and the simulator.

``step(event)`` is the only entry point. It decides (checks, then writes records), applies what it wrote to the image at
once, and returns effects: the records to append in ``now``, and everything that depends on them in ``after_sync``. The
image is hard state and is rebuilt from the log; sessions are soft state and re-register.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from raylog.base.errors import InvalidRequest, RaylogError, UnsupportedVersion
from raylog.base.features import FIRST_LEVEL, SUPPORTED, misfit
from raylog.base.ids import NO_LEADER, BrokerId, ControllerEpoch
from raylog.base.invariants import require
from raylog.core.configuration.config import validate_cluster_config
from raylog.core.controller import cluster_config as cluster_configs
from raylog.core.controller.cluster_config import ClusterSettings
from raylog.core.controller.coordinators import Coordinators
from raylog.core.controller.decision import ControllerDecision, ControllerSettings
from raylog.core.controller.elections import Elections
from raylog.core.controller.events import (
    ControllerRequest,
    Effect,
    EndpointsDead,
    Event,
    RestRequested,
    SessionLost,
    Tick,
    VotersShown,
)
from raylog.core.controller.healing import Healing
from raylog.core.controller.internal_topics import InternalTopics
from raylog.core.controller.isr_changes import IsrChanges
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.moves import Moves
from raylog.core.controller.registrations import Registrations, raise_feature_level
from raylog.core.controller.sessions import BrokerMember, CoordinatorMember, Member, ReplicaMember, Session, Sessions
from raylog.core.controller.shutdown import Shutdown
from raylog.core.controller.sleep import Sleeping
from raylog.core.controller.topics import Topics
from raylog.core.controller.voters import Voters, voters_max
from raylog.core.controller.wake_queue import WakeQueue
from raylog.core.decision import Story
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import (
    ClusterCreated,
    ControllerStarted,
    FeatureLevelRaised,
    VotersEntered,
)
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.protocol.admin import (
    AlterClusterConfigRequest,
    AlterPartitionReassignmentsRequest,
    AlterTopicConfigRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
    EnsureInternalTopicRequest,
    ListPartitionReassignmentsRequest,
    RaiseFeatureLevelRequest,
    ResumeBrokerRequest,
    StopBrokerRequest,
    WakePartitionsRequest,
)
from raylog.protocol.controller import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    EnsureCoordinatorRequest,
    RegisterBrokerRequest,
    RegisterCoordinatorRequest,
    RegisterReplicaRequest,
    ResignLeaderRequest,
    SessionHeartbeatRequest,
    SleepCoordinatorRequest,
    SleepPartitionRequest,
)
from raylog.protocol.message import Message


class ControllerMachine:
    """One incarnation of the controller."""

    def __init__(
        self,
        image: MetadataImage,
        *,
        settings: ControllerSettings,
        now_ms: int,
        cluster_config: Mapping[str, str] | None = None,
        cluster_start: str = "",
    ) -> None:
        """Take over the image that the log adds up to (an empty one for a new cluster); :meth:`start` comes next.

        ``cluster_config`` has the settings given at this start of the cluster, and ``cluster_start`` identifies the
        start. Raises InvalidConfig when a setting is not legal, and UnsupportedVersion when this release does not know
        the feature level of the image's cluster.
        """
        if not SUPPORTED.knows(image.feature_level):
            raise UnsupportedVersion(misfit("The controller", SUPPORTED, image.feature_level))
        self._cluster_config = validate_cluster_config(cluster_config or {})
        self._cluster_start = cluster_start
        self._settings = settings
        self.image = image
        """The metadata as decided so far, for reading only; the log may be a moment behind."""
        self.story = Story()
        """The last records that were written: (now_ms, cause, record)."""
        self._sessions = Sessions()
        self._now_ms = now_ms
        self._liveness = Liveness(image, self._sessions, settings)
        self._isr_changes = IsrChanges(self._liveness)
        self._sleeping = Sleeping(self._liveness)
        self._elections = Elections(self._liveness, now_ms)
        self._shutdown = Shutdown(self._liveness)
        self._wakes = WakeQueue(self._liveness, self._sleeping)
        self._registrations = Registrations(self._liveness, self._wakes)
        self._topics = Topics(settings, self._liveness, self._wakes)
        self._cluster_settings = ClusterSettings(self._wakes)
        self._moves = Moves(self._liveness, self._wakes)
        self._healing = Healing(self._moves)
        self._voters = Voters()
        self._coordinators = Coordinators(self._topics, self._wakes)
        self._internal_topics = InternalTopics(self._topics)
        self._started = False
        self._handlers = self._handlers_by_message()

    def is_present(self, member: Member) -> bool:
        """Return whether a member is connected now; the image also contains members that have not re-registered yet."""
        return self._sessions.of(member) is not None

    def awaited(self) -> dict[tuple[str, int], BrokerId] | None:
        """Return endpoints and brokers of replicas that have not re-registered; None after the grace period."""
        return self._liveness.awaited() if self._liveness.in_grace else None

    def start(
        self, now_ms: int, epoch: ControllerEpoch | None = None, voters: Mapping[str, str] | None = None
    ) -> Outbox[Effect]:
        """Start: a new cluster gets its identity, and this controller the next epoch. Called once.

        ``epoch`` is the one that a majority of voters promised; it is above every epoch in the log. ``voters`` are the
        first ones of a log that names none: they have to be in its first batch.
        """
        require(not self._started, "a controller starts once", self.story)
        self._started = True
        decision = self._decision("start", now_ms)
        image = self.image
        if not image.cluster_id:
            cluster_id = self._settings.cluster_id or self._settings.new_topic_id()
            decision.write(ClusterCreated(cluster_id=cluster_id, config=self._cluster_config))
            if SUPPORTED.highest > FIRST_LEVEL:
                # No broker of an earlier release has joined yet, and none can be needed to read what there is.
                decision.write(FeatureLevelRaised(level=SUPPORTED.highest))
        if voters:
            decision.write(VotersEntered(voters=voters))
        following = ControllerEpoch(image.controller_epoch + 1)
        decision.write(ControllerStarted(controller_epoch=following if epoch is None else epoch))
        cluster_configs.started(self._cluster_config, self._cluster_start, decision)
        self._liveness.started(decision)
        self._moves.started(decision)
        self._wakes.started(image)
        return decision.finish()

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event and return its effects."""
        require(self._started, "a controller starts before its first step", self.story)
        pause_ms = event.now_ms - self._now_ms
        decision = self._decision(event.cause, event.now_ms)
        if pause_ms > self._settings.session_timeout_ms // 3:
            # No session was silent: the controller itself did not run, and their heartbeats still wait in its inbox. A
            # pause shorter than the timeout counts as well: with the time since the last heartbeat it may exceed it.
            self._sessions.forgive(pause_ms)
        try:
            self._handle(event, decision)
        except RaylogError as refusal:
            # Handlers check before they decide, so that a refused request leaves no partial change.
            decision.require(not decision.records, f"a refused request wrote nothing: {event}")
            if isinstance(event, Received):
                decision.refuse(event.request, refusal)
            else:
                decision.require(False, f"{event} is no request that could be refused")
        else:
            self._moves.advance(decision)
        return decision.finish()

    def _decision(self, cause: str, now_ms: int) -> ControllerDecision:
        # Time in here never goes backwards, even if the clock does.
        self._now_ms = max(self._now_ms, now_ms)
        return ControllerDecision(cause, self._now_ms, image=self.image, sessions=self._sessions, story=self.story)

    def _handle(self, event: Event, decision: ControllerDecision) -> None:
        match event:
            case Received():
                self._check_endpoint(event.message)
                self._handlers[type(event.message)](event, decision)
            case SessionLost():
                self._end([self._sessions.close(event.session)], decision)
            case Tick():
                self._time_passed(decision)
            case RestRequested():
                self._wakes.rest(decision)
                self._coordinators.rest(decision)
            case VotersShown():
                decision.write(VotersEntered(voters=event.voters))
            case EndpointsDead():
                self._liveness.endpoints_dead(event.endpoints, decision)
            case _:
                assert_never(event)

    def _handlers_by_message(self) -> Mapping[type[Message], Callable[[Received[Any], ControllerDecision], None]]:
        return {
            SessionHeartbeatRequest: self._heartbeat,
            RegisterBrokerRequest: self._registrations.register_broker,
            RegisterReplicaRequest: self._registrations.register_replica,
            RegisterCoordinatorRequest: self._coordinators.register,
            SleepCoordinatorRequest: self._coordinators.fall_asleep,
            AlterPartitionRequest: self._isr_changes.change_isr,
            ResignLeaderRequest: self._isr_changes.resign,
            SleepPartitionRequest: self._sleeping.propose,
            WakePartitionsRequest: self._wakes.wake,
            CreateTopicRequest: self._topics.create,
            DeleteTopicRequest: self._topics.delete,
            AlterTopicConfigRequest: self._topics.alter_config,
            AlterClusterConfigRequest: self._cluster_settings.alter,
            DescribeConfigsRequest: self._topics.describe_configs,
            CreatePartitionsRequest: self._topics.create_partitions,
            AlterPartitionReassignmentsRequest: self._moves.alter,
            ListPartitionReassignmentsRequest: self._moves.listed,
            ElectLeadersRequest: self._elections.elect,
            StopBrokerRequest: self._shutdown.stop,
            ResumeBrokerRequest: self._shutdown.resume,
            RaiseFeatureLevelRequest: raise_feature_level,
            AllocateProducerIdsRequest: self._coordinators.producer_ids,
            EnsureCoordinatorRequest: self._coordinators.ensure,
            EnsureInternalTopicRequest: self._internal_topics.ensure,
            DescribeClusterRequest: self._describe,
        }

    def _check_endpoint(self, message: ControllerRequest) -> None:
        """Refuse a registration without an endpoint: port 0 means "does not run" in the records."""
        if isinstance(message, RegisterBrokerRequest | RegisterReplicaRequest | RegisterCoordinatorRequest) and not (
            message.host and 0 < message.port < 65_536
        ):
            raise InvalidRequest(f"{message.host!r}:{message.port} is no endpoint; register after the server listens.")

    def _heartbeat(self, event: Received[SessionHeartbeatRequest], decision: ControllerDecision) -> None:
        session, message = event.sender.session, event.message
        self._sessions.stated(session, message.vouched, message.notes, decision.now_ms)
        self._sessions.heartbeat(session, decision.now_ms)
        self._sessions.reported(session, message.disk_hanging_ms)
        self._sessions.dozed(session, message.dozing)
        self._sessions.damaged(session, message.damage, is_mended=message.is_mended)

    def _describe(self, event: Received[DescribeClusterRequest], decision: ControllerDecision) -> None:
        decision.reply(event.request, self._description())

    def _time_passed(self, decision: ControllerDecision) -> None:
        silent = self._sessions.silent_since(decision.now_ms - self._settings.session_timeout_ms)
        for session in silent:
            decision.close(session.number, f"no heartbeat for {decision.now_ms - session.heartbeat_ms} ms")
        self._end(silent, decision)
        in_grace = self._liveness.in_grace
        self._liveness.time_passed(decision)
        if in_grace and not self._liveness.in_grace:
            self._coordinators.grace_ended(decision)
        self._moves.time_passed(decision)
        self._wakes.time_passed(decision)
        if not self._liveness.in_grace:
            self._healing.time_passed(decision)
            self._voters.time_passed(self._healing.given_up(decision), decision)
        self._elections.time_passed(decision)

    def _end(self, sessions: list[Session] | list[Session | None], decision: ControllerDecision) -> None:
        """Act on ended sessions. All are closed first, so that no leadership goes to one of them."""
        for session in sessions:
            match session.member if session is not None else None:
                case BrokerMember() as broker:
                    self._liveness.broker_lost(broker, decision)
                case ReplicaMember() as replica:
                    self._liveness.replica_lost(replica, decision)
                case CoordinatorMember() as coordinator:
                    self._coordinators.lost(coordinator, decision)
                case None:
                    pass

    def absent(self, session: int) -> list[int]:
        """Return the incarnations that the broker with this session vouches for, and that are not registered.

        Raises BrokerIdNotRegistered when the session is over, be it of a broker or of a replica.
        """
        return self._sessions.absent(session)

    def hanging_disks(self) -> list[list[object]]:
        """Return partition, broker and milliseconds of each replica whose disk does not finish a sync."""
        return self._sessions.hanging_disks()

    def damaged_logs(self) -> list[list[object]]:
        """Return partition, broker, damage and whether it was mended, of each replica whose log was found damaged."""
        return self._sessions.damaged_logs()

    def replica_counts(self) -> list[list[int]]:
        """Return [broker, awake, dozing, asleep] of each broker: how many of its replicas are in each state."""
        asleep = Counter(
            broker for state in self.image.partitions() if state.asleep is not None for broker in state.replicas
        )
        counts = []
        for broker in sorted(self.image.brokers):
            dozing = min(self._sessions.dozing_on(broker), self.image.awake[broker])
            counts.append([int(broker), self.image.awake[broker] - dozing, dozing, asleep[broker]])
        return counts

    def _description(self) -> dict[str, object]:
        image = self.image
        leaderless = [str(state.partition) for state in image.partitions() if image.leader_of(state) == NO_LEADER]
        under_replicated = [
            str(state.partition) for state in image.partitions() if len(state.isr) < state.replication_factor
        ]
        return {
            "cluster_id": image.cluster_id,
            "controller_epoch": image.controller_epoch,
            "version": image.version,
            "config": dict(image.config),
            "metadata_voters": {
                "voters": sorted(int(number) for number in image.voters),
                "max": voters_max(image.config),
            },
            "feature_level": image.feature_level,
            "brokers": [
                {
                    "broker": found.broker,
                    "node_id": found.node_id,
                    "host": found.host,
                    "port": found.port,
                    "online": found.online,
                    "incarnation": found.incarnation,
                    "stopped": found.stopped,
                    "feature_levels": list(found.levels),
                }
                for _, found in sorted(image.brokers.items())
            ],
            "topics": len(image.topics),
            "partitions": sum(len(topic.partitions) for topic in image.topics.values()),
            "asleep_partitions": sum(state.asleep is not None for state in image.partitions()),
            "sessions": len(self._sessions),
            "leaderless_partitions": leaderless,
            "under_replicated_partitions": under_replicated,
            "reassigning_partitions": [str(state.partition) for state in image.partitions() if state.is_moving],
            "unclean_partitions": [
                [str(state.partition), state.unclean_leader_epoch]
                for state in image.partitions()
                if state.unclean_leader_epoch
            ],
            "hanging_disks": self.hanging_disks(),
            "replica_counts": self.replica_counts(),
            "lost_logs": [[str(partition), broker] for partition, broker in sorted(image.lost_logs)],
            "damaged_logs": self.damaged_logs(),
        }

    def validate(self) -> None:
        """Check every cross-reference; costly, for tests and the simulator."""
        image = self.image
        image.validate()
        require(not (wrong := self._sessions.wrong()), wrong, self.story)
        for session in self._sessions:
            member = session.member
            match member:
                case BrokerMember():
                    broker = image.brokers.get(member.broker)
                    holds = broker is not None and broker.online and broker.incarnation == session.life
                case ReplicaMember():
                    state = image.partition(member.partition, member.topic_id)
                    place = state.place(member.broker) if state is not None else None
                    # The processes of a partition that has just fallen asleep end a moment later.
                    runs = state is not None and place is not None and (place.port != 0 or state.asleep is not None)
                    holds = runs and place is not None and place.incarnation == session.life
                case CoordinatorMember():
                    found = image.coordinators.get((member.kind, member.index))
                    holds = found is not None and found.port != 0 and found.epoch == session.life
                case _:
                    assert_never(member)
            if not holds:  # evaluated after every step in simulation: the message is built only on failure
                require(False, f"{member} is present as {session.life}", self.story)
        if not self._liveness.in_grace:
            self._validate_presence()

    def _validate_presence(self) -> None:
        """After the grace period every placed member has a session."""
        for broker in self.image.online_brokers():
            if self._sessions.of(BrokerMember(broker.broker)) is None:
                require(False, f"{broker} is there", self.story)
        for state in self.image.partitions():
            for place in state.places:
                if (
                    place.port
                    and self._sessions.of(ReplicaMember(state.topic_id, state.partition, place.broker)) is None
                ):
                    require(False, f"{place} of {state.partition} is there", self.story)


__all__ = ["ControllerMachine", "ControllerSettings"]
