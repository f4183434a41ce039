"""Incarnations of a coordinator on one partition's log: the shell's steps around a shipped runner, without a process.

The log is the shipped one on a disk. It refuses the rows of a deposed incarnation as a partition's leader does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from raylog.actors.coordinators.runner import CoordinatorRunner, fence_row
from raylog.actors.coordinators.stored_rows import EncodedRow, LiveRows, encode_rows, encoded_row
from raylog.base.errors import InvalidProducerEpoch
from raylog.core.transactions.events import EndTxn
from raylog.storage.batch.records import BatchMeta
from tests.unit.storage.logs import NOW, open_log, whole

PRODUCER: Final = 7
"""The producer id of all incarnations."""

Runner = CoordinatorRunner[Any, EncodedRow]


class SentRequest:
    """A request that keeps its replies."""

    def __init__(self, method: str, args: Any) -> None:
        self.method = method
        self.args = args
        self.answers: list[Any] = []
        self.is_deserted = False
        self.peer_host = "10.0.0.7"
        self.grant = None

    def reply(self, args: object = None, payload: object = b"") -> None:
        self.answers.append(args)

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)


class StateLog:
    """The partition's log at its leader."""

    def __init__(self, folder: Path) -> None:
        self._log = open_log(folder)

    def append(self, rows: Sequence[EncodedRow], epoch: int, sequence: int) -> int:
        """Append a batch; returns the offset behind it. Raises InvalidProducerEpoch."""
        meta = BatchMeta(PRODUCER, epoch, sequence)
        self._log.append_as_leader(encode_rows(rows, NOW, meta), 0, NOW)
        return self._log.log_end_offset

    def live(self, end: int) -> LiveRows:
        """Return the live rows below an offset."""
        rows = LiveRows()
        rows.gather(whole(self._log), end)
        rows.complete()
        return rows


class Incarnation:
    """A coordinator from its registration on; it implements the ports of its runner."""

    def __init__(self, log: StateLog, epoch: int, new_runner: Callable[[Any], Runner]) -> None:
        """Fence the earlier ones, read the log, and serve."""
        self._log = log
        self._epoch = epoch
        self._sequence = 0
        self.time_ms = 0
        self.batches: list[int] = []
        """How many rows each batch had that was stored, the first one aside."""
        self.runner = new_runner(self)
        end = self._append([encoded_row(fence_row(epoch), None)[0]])
        for key, value in log.live(end):
            self.runner.replay(key, value)
        self.runner.serve()

    def _append(self, rows: Sequence[EncodedRow]) -> int:
        end = self._log.append(rows, self._epoch, self._sequence)
        self._sequence += len(rows)
        return end

    def send(self, method: str, *args: object) -> SentRequest:
        """Send a request."""
        request = SentRequest(method, list(args))
        self.runner.receive(request)
        return request

    def take(self) -> list[EncodedRow]:
        """Begin to store the rows that wait."""
        return self.runner.take_batch(1_000_000)

    def stored(self, rows: Sequence[EncodedRow]) -> bool:
        """Store the rows that were taken; a coordinator whose rows are refused ends."""
        try:
            self._append(rows)
        except InvalidProducerEpoch:
            self.runner.end()
            return False
        self.batches.append(len(rows))
        self.runner.stored()
        return True

    def store(self) -> None:
        """Store what waits."""
        while rows := self.take():
            if not self.stored(rows):
                return

    def done(self, method: str, *args: object) -> Any:
        """Send a request, store its rows, and return its answer."""
        request = self.send(method, *args)
        self.store()
        (answer,) = request.answers
        return answer

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        return self.time_ms

    def wall_ms(self) -> int:
        return NOW + self.time_ms

    def row(self, key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
        return encoded_row(key, value)

    def row_bytes_max(self) -> int:
        return 1_000_000

    def tick_at(self, due_ms: int) -> None:
        """Nothing: the test ticks."""

    def wake_writer(self) -> None:
        """Nothing: the test stores."""

    def look_up_topics(self, topics: Sequence[str]) -> None:
        """Nothing: no topic is seen."""

    def end_transaction(self, effect: EndTxn) -> None:
        """Nothing: no participant answers."""

    def request_producer_ids(self, count: int) -> None:
        """Nothing: the test grants them."""

    def propose_sleep(self) -> None:
        raise AssertionError("no coordinator of these tests is idle for long")

    def fatal(self, reason: str) -> None:
        raise AssertionError(reason)
