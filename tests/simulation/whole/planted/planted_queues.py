"""Bugs of the queues' shells, keeper and consumers, seen by workers; more of the machine are in tests/property."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.coordinators.state_role import OwnPartition
from raylog.actors.queues.copies import CopySender
from raylog.actors.queues.letters import LetterSender
from raylog.actors.queues.queue import Queue
from raylog.actors.queues.reading import Chunk
from raylog.actors.queues.role import QueuesRole
from raylog.client.queues.buffer import MessageBuffer
from raylog.client.queues.engine import QueueEngine
from raylog.client.queues.source import QueueSource
from raylog.core.queues.acknowledging import Acknowledging
from raylog.core.queues.book import RecordBook
from raylog.core.queues.decision import QueueDecision
from raylog.core.queues.letters import DeadLetters
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import QUEUES
from tests.simulation.whole.planted.bugs import Bug


def _edit(*texts: str) -> Callable[[Any], Any]:
    return Edit(*texts).of


def _bug(
    name: str, target: Any, attribute: str, patch: Callable[[Any], Any], rules: tuple[str, ...], seeds: int = 12
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, QUEUES)


QUEUE_BUGS: Final = (
    _bug(
        "a commit does not wait for partitions that went to another member",
        QueueEngine,
        "commit",
        _edit("(*self._sources.values(), *self._retiring)", "self._sources.values()"),
        ("W40", "W42", "W43"),
    ),
    _bug(
        "a verdict is answered before it is stored",
        QueueDecision,
        "reply",
        _edit("self.after_sync.append(Reply", "self.now.append(Reply"),
        ("W40", "W43", "W9"),
        30,
    ),
    _bug(
        "changes count as stored before the keeper has them",
        Queue,
        "_keep_writing",
        _edit(
            "await self._states.write(self.group, self.state_epoch, self._version, joined(changes))",
            "self._host.spawn(self._states.write(self.group, self.state_epoch, self._version, joined(changes)), 'w')",
        ),
        ("W40", "W42", "W43", "W9", "W10"),
        30,
    ),
    _bug(
        "a record that waits is passed",
        RecordBook,
        "trim",
        _edit("in TERMINAL", "in (*TERMINAL, WAITING)"),
        ("W9", "W42"),
    ),
    _bug(
        "a record to be retried does not wait",
        Acknowledging,
        "_retry",
        _edit("if delay_ms > 0 and", "if False and"),
        ("W44",),
    ),
    _bug(
        "a new leader ends waits by the clock of its machine",
        QueuesRole,
        "_wall_ms",
        _edit("await clock.set(CLOCK_WAIT_MS)", "pass"),
        ("W44", "W42", "W9"),
        60,
    ),
    _bug(
        "the leader reads no keys",
        Chunk,
        "keys",
        _edit("None if key is None else hash(key)", "None"),
        ("W41",),
    ),
    _bug(
        "the leader hands out what was aborted",
        Chunk,
        "__init__",
        _edit("header.producer_id in hidden)", "False)"),
        ("W47",),
    ),
    _bug(
        "a producer that aborted once counts as aborted from then on",
        Chunk,
        "__init__",
        _edit("if header.is_control:", "if False:"),
        ("W42", "W9"),
        30,
    ),
    _bug(
        "a new leader sends dead letters under other sequences",
        DeadLetters,
        "resume",
        _edit("if cell.cause.sequence < 0:", "if True:"),
        ("W43", "W9"),
        40,
    ),
    _bug(
        "a dead letter that was not stored counts as stored",
        LetterSender,
        "send",
        _edit("continue", "pass"),
        ("W9", "W43"),
        30,
    ),
    _bug(
        "a batch of dead letters that is too large is sent again as it is",
        LetterSender,
        "send",
        _edit("if trouble is Trouble.REFUSED:", "if False:"),
        ("W9", "W42", "W43"),
        30,
    ),
    _bug(
        "a new keeper leaves out the last of its log",
        OwnPartition,
        "begin",
        _edit("return await until_committed(self._host)", "return await until_committed(self._host) - 3"),
        ("W40", "W43", "W9", "W10"),
        30,
    ),
    _bug(
        "what comes for a partition that was given up is kept",
        QueueSource,
        "_take",
        _edit("if not self.is_wanted or not locks:", "if not locks:"),
        ("W45",),
        60,
    ),
    _bug(
        "what was not taken of a partition that is given up stays",
        MessageBuffer,
        "take_out",
        _edit("message._lock.source in holders", "False"),
        ("W45", "W42"),
        30,
    ),
    _bug(
        "a copy that was not stored counts as stored",
        CopySender,
        "send",
        _edit("continue", "pass"),
        ("W9", "W42"),
        30,
    ),
)
