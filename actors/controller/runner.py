"""Runs the controller's machine: requests and session changes in, records into the log, other effects once committed.

Used by :class:`raylog.actors.controller.server.ControllerServer`, with connections and the quorum's log, and by the
simulator. It knows no event loop and no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol

from raylog.actors.controller.confirmed import ConfirmedAnswers, QuestionedLog
from raylog.actors.request_table import RequestT, RequestTable
from raylog.actors.runner import Runner
from raylog.base.ids import ControllerEpoch
from raylog.core.controller import events as ctl
from raylog.core.controller.controller import ControllerMachine
from raylog.core.decision import Refuse, Reply
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord
from raylog.core.received import Received, Sender
from raylog.protocol.controller import SESSION_HEARTBEAT, SessionHeartbeatReply, SessionHeartbeatRequest
from raylog.protocol.message import Message
from raylog.protocol.notifications import (
    CLUSTER_CONFIG,
    FALL_ASLEEP,
    METADATA_UPDATE,
    PARTITION_STATE,
    STOP_REPLICA,
    ClusterConfigUpdate,
    FallAsleep,
    MetadataUpdate,
    PartitionStateUpdate,
    StopReplica,
)

NO_REQUEST: Final = 0
"""The number of requests that the runner answers itself."""


class ControllerLog(QuestionedLog, Protocol):
    """The metadata log: ``actors/metadata/quorum_runner.py``, or a model of it. Offsets count records."""

    @property
    def log_end_offset(self) -> int:
        """The log end offset."""

    def append(self, records: Sequence[MetadataRecord], controller_epoch: int) -> None:
        """Append records as one batch; once they are committed, :meth:`ControllerRunner.release` has to be called."""

    def offer(self, image: MetadataImage) -> None:
        """Take a snapshot if one is due; ``image`` is the result of all appended records."""

    def want_voters(self, voters: Sequence[int]) -> None:
        """Begin to make these brokers the voters of the log."""


class ControllerPorts(Protocol):
    """Ports of the runner. None of these may call back before it returns."""

    def now_ms(self) -> int:
        """Return a monotonic time."""

    def notify(self, session: int, method: str, args: Message) -> None:
        """Send a notification over a session; nothing happens when it is closed."""

    def close_session(self, session: int, reason: str) -> None:
        """Close a session's connection."""

    def start_coordinator(self, kind: str, index: int) -> None:
        """Make a coordinator's actor unless it runs; if an earlier one is ending, once it has ended."""

    def end_coordinator(self, kind: str, index: int) -> None:
        """End a coordinator's actor for good."""

    def warn(self, warning: str) -> None:
        """Report something to the operator."""


class ControllerRunner(Generic[RequestT]):
    """One controller epoch, from its first record on."""

    def __init__(
        self,
        machine: ControllerMachine,
        log: ControllerLog,
        ports: ControllerPorts,
        *,
        on_records: Callable[[Sequence[MetadataRecord]], None],
        on_defect: Callable[[str], None],
    ) -> None:
        """``on_records`` gets the records before they are appended; ``on_defect`` has to end the process."""
        self.machine = machine
        self._log = log
        self._ports = ports
        self._on_records = on_records
        self._requests: RequestTable[RequestT] = RequestTable()
        self._begun: dict[int, int] = {}
        """The log end offset when a request came, by number; only of requests whose answers state facts."""
        self._answers: ConfirmedAnswers[RequestT] = ConfirmedAnswers(log)
        self._runner: Runner[ctl.Event, ctl.Effect] = Runner(
            machine.step,
            {
                ctl.WriteRecords: self._write,
                Reply: self._reply,
                Refuse: self._refuse,
                ctl.Warn: lambda effect: ports.warn(effect.warning),
                ctl.PublishMetadata: self._publish,
                ctl.SendPartitionState: self._send_state,
                ctl.SendClusterConfig: lambda effect: ports.notify(
                    effect.session, CLUSTER_CONFIG.name, ClusterConfigUpdate(effect.config)
                ),
                ctl.StopReplica: lambda effect: ports.notify(
                    effect.session, STOP_REPLICA.name, StopReplica(effect.reason)
                ),
                ctl.RequestSleep: lambda effect: ports.notify(
                    effect.session, FALL_ASLEEP.name, FallAsleep(effect.idle_ms, effect.for_stop)
                ),
                ctl.CloseSession: lambda effect: ports.close_session(effect.session, effect.reason),
                ctl.StartCoordinator: lambda effect: ports.start_coordinator(effect.kind, effect.index),
                ctl.EndCoordinator: lambda effect: ports.end_coordinator(effect.kind, effect.index),
                ctl.WantVoters: lambda effect: log.want_voters(effect.voters),
            },
            _Committed(log),
            on_defect=on_defect,
        )

    @property
    def is_over(self) -> bool:
        """Whether this epoch has ended."""
        return self._runner.is_over

    def start(self, epoch: ControllerEpoch | None, founding: Mapping[str, str]) -> None:
        """Begin a controller epoch; ``founding`` has the voters to record in a new log."""
        self._runner.perform(self.machine.start(self._ports.now_ms(), epoch, founding))

    def feed(self, event: ctl.Event) -> None:
        """Take an event that needs no reply."""
        self._runner.feed(event)

    def take(self, request: RequestT, method: str, message: ctl.ControllerRequest, session: int = 0) -> None:
        """Take a request; ``session``: that of its connection."""
        number = self._requests.remember(request)
        # Answers to members' own requests do not wait, so that they stay in order with notifications to the members.
        if isinstance(message, ctl.ClientRequest):
            self._begun[number] = self._log.log_end_offset
        self._feed(number, method, message, session)

    def heartbeat(self, message: SessionHeartbeatRequest, session: int) -> SessionHeartbeatReply:
        """Take a heartbeat and return its answer, which does not wait for the log.

        Raises BrokerIdNotRegistered when the session is over.
        """
        self._feed(NO_REQUEST, SESSION_HEARTBEAT.name, message, session)
        return SessionHeartbeatReply(self.machine.absent(session))

    def _feed(self, number: int, method: str, message: ctl.ControllerRequest, session: int) -> None:
        sender, now_ms = Sender(session=session), self._ports.now_ms()
        self._runner.feed(Received(message=message, cause=method, request=number, now_ms=now_ms, sender=sender))

    def inform(self, request: RequestT, result: object) -> None:
        """Answer with the present state, once it is committed and this controller is confirmed."""
        self._answers.send(
            request, lambda it: it.reply(result), end=self._log.log_end_offset, now_ms=self._ports.now_ms()
        )

    def tick(self) -> None:
        """Advance the time."""
        self._answers.expire(self._ports.now_ms())
        self._runner.feed(ctl.Tick(cause="tick", now_ms=self._ports.now_ms()))

    def session_lost(self, session: int, cause: str) -> None:
        """A session's connection broke."""
        self._runner.feed(ctl.SessionLost(cause=cause, now_ms=self._ports.now_ms(), session=session))

    def voters_shown(self, voters: Mapping[str, str]) -> None:
        """Append the new voter configuration to the log."""
        self._runner.feed(ctl.VotersShown(cause="voters shown", now_ms=self._ports.now_ms(), voters=voters))

    def rest(self) -> None:
        """Request all leaders to propose sleep for their partitions, and unused coordinators to propose their end."""
        self._runner.feed(ctl.RestRequested(cause="rest", now_ms=self._ports.now_ms()))

    def release(self) -> None:
        """Carry out the effects of records that are committed by now, and send the answers that are confirmed."""
        self._runner.release()
        self._answers.settle()

    def end(self) -> None:
        """Take no more events and carry out no more effects."""
        self._runner.end()
        self._answers.end()

    # ------------------------------------------------------------ effects

    def _write(self, effect: ctl.WriteRecords) -> None:
        self._on_records(effect.records)
        self._log.append(effect.records, self.machine.image.controller_epoch)
        self._log.offer(self.machine.image)

    def _reply(self, effect: Reply) -> None:
        if effect.warning:
            self._ports.warn(effect.warning)
        self._answer(effect.request, lambda request: request.reply(effect.result))

    def _refuse(self, effect: Refuse) -> None:
        self._answer(effect.request, lambda request: request.fail(effect.error))

    def _answer(self, number: int, send: Callable[[RequestT], None]) -> None:
        request, end = self._requests.pop(number, None), self._begun.pop(number, None)
        if request is None:
            return
        if end is None:
            send(request)
        else:
            self._answers.send(request, send, end=end, now_ms=self._ports.now_ms())

    def _publish(self, effect: ctl.PublishMetadata) -> None:
        update = MetadataUpdate(effect.from_version, [record.to_wire() for record in effect.records])
        for session in effect.sessions:
            self._ports.notify(session, METADATA_UPDATE.name, update)

    def _send_state(self, effect: ctl.SendPartitionState) -> None:
        state = PartitionStateUpdate(effect.incarnation, effect.state.to_wire())
        self._ports.notify(effect.session, PARTITION_STATE.name, state)


class _Committed:
    """The log as the runner's durability: durable = committed."""

    def __init__(self, log: ControllerLog) -> None:
        self._log = log

    def end(self) -> int:
        return self._log.log_end_offset

    def durable_end(self) -> int:
        return self._log.committed_offset

    def kick(self) -> None:
        """Do nothing: the log commits by itself."""
