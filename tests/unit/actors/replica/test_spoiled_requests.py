"""A request whose handling fails unexpectedly is answered with that, and the leader goes on."""

from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import UnknownServerError
from raylog.core.replication.events import deadline_ms
from raylog.protocol.replica import FetchRequest, ListOffsetsRequest, ProduceRequest, WriteTxnMarkersRequest
from raylog.storage.batch.records import encode_batch
from tests.unit.actors.replica.test_consumer_reads import Answered, leading


class Failing(Answered):
    """A request that keeps its errors as well."""

    def __init__(self, payload: bytes = b"") -> None:
        super().__init__(payload)
        self.errors: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)


def breaks(*_: object, **__: object) -> Any:
    raise ValueError("this was not foreseen")


def test_an_append_that_fails_unexpectedly_spoils_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, batch = ProduceRequest("id", 0, 3, 1, 1000), encode_batch(None, [b"x"], [1])
    with leading(tmp_path) as runner:
        with monkeypatch.context() as patch:
            patch.setattr(runner.log, "append_as_leader", breaks)
            spoiled = Failing(batch)
            runner.receive(spoiled, args)
            patch.setattr(runner.log, "append_marker", breaks)
            marker = Failing()
            runner.receive(marker, WriteTxnMarkersRequest("id", 0, 3, 1, 1, 1, True, 1000))
        for request in (spoiled, marker):
            (error,) = request.errors
            assert isinstance(error, UnknownServerError)
            assert "this was not foreseen" in str(error)
        sound = Failing(batch)
        runner.receive(sound, args)
        assert len(sound.answers) == 1


def test_an_append_that_fails_with_the_log_changed_is_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with leading(tmp_path) as runner:
        append = runner.log.append_as_leader

        def half(*args: Any) -> Any:
            append(*args)
            breaks()

        monkeypatch.setattr(runner.log, "append_as_leader", half)
        request = Failing(encode_batch(None, [b"x"], [1]))
        with pytest.raises(ValueError, match="this was not foreseen"):
            runner.receive(request, ProduceRequest("id", 0, 3, 1, 1000))


def test_a_read_that_fails_unexpectedly_spoils_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leading(tmp_path) as runner:
        runner.receive(Failing(encode_batch(None, [b"x"], [1])), ProduceRequest("id", 0, 3, 1, 1000))
        with monkeypatch.context() as patch:
            patch.setattr(runner.log, "offset_for_timestamp", breaks)
            patch.setattr(runner._reads._tail, "read", breaks)
            fetch, look_up = Failing(), Failing()
            runner.receive(fetch, FetchRequest("id", 0, 3, 0, 1000, 1, 0, 0))
            runner.receive(look_up, ListOffsetsRequest("id", 0, 3, 0))
        assert [type(error) for error in (*fetch.errors, *look_up.errors)] == [UnknownServerError] * 2
        again = Failing()
        runner.receive(again, FetchRequest("id", 0, 3, 0, 1000, 1, 0, 0))
        assert len(again.answers) == 1


@pytest.mark.parametrize(("wait_ms", "waits_ms"), [(500, 500), (300_001, 300_000), (2**62, 300_000)])
def test_no_request_waits_longer_than_five_minutes(tmp_path: Path, wait_ms: int, waits_ms: int) -> None:
    with leading(tmp_path) as runner:
        machine = runner.machine
        assert machine is not None
        runner.receive(Failing(), FetchRequest("id", 0, 3, 0, 1000, 1, wait_ms, 0))
        came_ms = runner._effects.now_ms
        assert machine.next_due_ms(came_ms, 2**63) - came_ms == waits_ms
    assert deadline_ms(7, wait_ms) - 7 == waits_ms
