"""Laws of the partition log: recovery after any cut and any flip, lookups against a dumb twin, any course of events."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from raylog.base.errors import RaylogError
from raylog.storage import filesystem
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.times import TimeBounds
from raylog.storage.log import partition_log as log_module
from raylog.storage.log.partition_log import PartitionLog
from tests.property.storage import in_memory
from tests.unit.storage.logs import NOW, batch, crashed, open_log, produced, values_of, whole

CONFIG: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 100}
calm = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(params=[5.0, 0.0], ids=["recovery point at the start", "recovery point at the last sync"])
def checkpoint_seconds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Whether `sync` writes the recovery point at once, or does not get to it."""
    monkeypatch.setattr(log_module, "CHECKPOINT_SECONDS", request.param)
    seconds: float = request.param
    return seconds


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: these tests write a lot and mean the calls, not the disk."""
    folder = Path(tempfile.mkdtemp(prefix="log-", dir=in_memory.FOLDER))
    yield folder
    shutil.rmtree(folder)


def fresh(scratch: Path) -> Path:
    """A new folder for one example."""
    return Path(tempfile.mkdtemp(dir=scratch))


def made(folder: Path, batches: int, synced: int, epochs: int = 3) -> PartitionLog:
    """A log of `batches` batches in several segments and epochs, of which the first `synced` are synced."""
    log = open_log(folder, **CONFIG)
    sequence = 0
    for number in range(batches):
        count = 1 + number % 3
        log.append_as_leader(produced(sequence, count), 1 + number * epochs // batches, NOW)
        sequence += count
        if number + 1 == synced:
            log.sync()
    return log


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def reopened(folder: Path) -> bytes | None:
    """What can be read after a recovery; None where the log says that it is damaged."""
    try:
        log = open_log(folder, **CONFIG)
    except RaylogError:
        return None
    try:
        return whole(log)
    except RaylogError:
        return None
    finally:
        log.close()


@calm
@given(st.integers(1, 25), st.data())
def test_a_cut_at_any_byte_leaves_a_synced_prefix_or_is_called_damage(
    checkpoint_seconds: float, scratch: Path, batches: int, choose: st.DataObject
) -> None:
    scratch = fresh(scratch)
    synced = choose.draw(st.integers(0, batches))
    log = made(scratch / "t-0", batches, synced)
    expected, synced_end, sizes = whole(log), log.synced_end_offset, [segment.size for segment in log.segments]
    synced_bytes = sum(h.size for _, h in iter_headers(expected) if h.next_offset <= synced_end)
    folder = crashed(log, scratch / "crash")
    cut = choose.draw(st.integers(0, len(expected)))
    junk = choose.draw(st.binary(max_size=80) | st.just(bytes(200)))
    left = cut
    for path, size in zip(files_of(folder), sizes, strict=True):
        keep = min(size, left)
        if keep < size:
            path.write_bytes(path.read_bytes()[:keep] + (junk if left >= 0 else b""))
            left = -1 if left >= 0 else left
        else:
            left -= size
    before = {path: path.read_bytes() for path in files_of(folder)}
    found = reopened(folder)
    if found is None:
        assert cut < synced_bytes
        assert {path: path.read_bytes() for path in files_of(folder)} == before
    else:
        assert expected.startswith(found)
        assert len(found) >= synced_bytes or cut < synced_bytes
        assert reopened(folder) == found


@calm
@given(st.integers(1, 20), st.booleans(), st.data())
def test_a_flipped_bit_in_any_file_is_never_served(
    checkpoint_seconds: float, scratch: Path, batches: int, clean: bool, choose: st.DataObject
) -> None:
    scratch = fresh(scratch)
    log = made(scratch / "t-0", batches, batches)
    expected = whole(log)
    if clean:
        log.close()
        folder = scratch / "t-0"
    else:
        folder = crashed(log, scratch / "crash")
    files = sorted(path for path in folder.iterdir() if path.stat().st_size)
    path = choose.draw(st.sampled_from(files) | st.sampled_from(files_of(folder)))
    data = bytearray(path.read_bytes())
    if data:
        data[choose.draw(st.integers(0, len(data) - 1))] ^= 1 << choose.draw(st.integers(0, 7))
        path.write_bytes(data)
    found = reopened(folder)
    assert found is None or expected.startswith(found) or expected.endswith(found)
    if found is not None and path.suffix != ".log" and path.name.endswith("index"):
        assert found == expected


@calm
@given(st.integers(1, 20), st.data())
def test_a_bit_flipped_under_an_open_log_is_an_error_or_was_not_read(
    scratch: Path, batches: int, choose: st.DataObject
) -> None:
    scratch = fresh(scratch)
    log = made(scratch / "t-0", batches, 0)
    expected = whole(log)
    path = choose.draw(st.sampled_from(files_of(log.folder)))
    data = bytearray(path.read_bytes())
    position = choose.draw(st.integers(0, len(data) - 1))
    data[position] ^= 1 << choose.draw(st.integers(0, 7))
    path.write_bytes(data)
    for offset in range(log.log_end_offset):
        try:
            found = log.read(offset, choose.draw(st.integers(1, 900)), log.log_end_offset)
        except RaylogError:
            continue
        assert found in expected
        assert dict(values_of(found))[offset] == b"%d" % offset
    log.close()


rows = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 60), st.integers(0, 120)), min_size=1, max_size=25)


@calm
@given(rows, st.sampled_from(["live", "clean", "crash"]), st.data())
def test_lookups_equal_a_linear_twin(
    scratch: Path, plan: list[tuple[int, int, int]], how: str, choose: st.DataObject
) -> None:
    scratch = fresh(scratch)
    log = open_log(scratch / "t-0", **CONFIG)
    for count, moment, size in plan:
        log.append_as_leader(batch(*[bytes(size)] * count, timestamps=[moment + n for n in range(count)]), 1, NOW)
    data = whole(log)
    batches = [(header, data[position : position + header.size]) for position, header in iter_headers(data)]
    moments = [moment + n for count, moment, _ in plan for n in range(count)]
    if how == "crash":
        log = open_log(crashed(log, scratch / "crash"), **CONFIG)
    elif how == "clean":
        log.close()
        log = open_log(scratch / "t-0", **CONFIG)
    end = log.log_end_offset
    for _ in range(10):
        offset, upper = choose.draw(st.integers(0, end)), choose.draw(st.integers(0, end + 1))
        max_bytes, wanted = choose.draw(st.integers(1, 2000)), choose.draw(st.integers(-1, 65))
        twin = b""
        for header, body in batches:
            if header.next_offset > offset:
                if header.next_offset > upper or (twin and len(twin) + len(body) > max_bytes):
                    break
                twin += body
        assert log.read(offset, max_bytes, upper) == twin
        visible = max((header.next_offset for header, _ in batches if header.next_offset <= upper), default=0)
        found = [(place, moment) for place, moment in enumerate(moments[:visible]) if moment >= wanted]
        assert log.offset_for_timestamp(wanted, upper) == (found[0] if found else None)
        low, high, most = (
            choose.draw(st.integers(-1, 65)),
            choose.draw(st.integers(-1, 65)),
            choose.draw(st.integers(1, 5)),
        )
        place = log.first_within(TimeBounds(low, high), offset, upper, most)
        assert offset <= place.next_offset <= max(offset, visible)
        assert not any(low <= moment < high for moment in moments[offset : place.next_offset])
        assert place.is_found or place.next_offset >= visible or place.next_offset > offset or most == 1
        newest = max(moments[:visible], default=None)
        assert log.max_timestamp(upper) == (None if newest is None else (moments.index(newest), newest))
    log.close()


event = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("retry"), st.integers(0, 4)),
    st.tuples(st.just("elect"), st.integers(1, 2)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("cut"), st.integers(0, 60)),
    st.tuples(st.just("close"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 2000)),
    st.tuples(st.just("delete"), st.integers(0, 20)),
)


class Twin:
    """A log that is a list: one (first offset, values, epoch) a batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[bytes], int]] = []
        self.start = 0
        self.serial = 0

    @property
    def end(self) -> int:
        return self.batches[-1][0] + len(self.batches[-1][1]) if self.batches else 0

    def cut(self, offset: int) -> None:
        self.batches = [entry for entry in self.batches if entry[0] + len(entry[1]) <= offset]

    def records(self) -> list[tuple[int, bytes | None, int]]:
        return [(first + n, value, epoch) for first, values, epoch in self.batches for n, value in enumerate(values)]


def records_of(log: PartitionLog) -> list[tuple[int, bytes | None, int]]:
    data = whole(log)
    epochs = {offset: h.partition_leader_epoch for _, h in iter_headers(data) for offset in range(h[0], h.next_offset)}
    return [(offset, value, epochs[offset]) for offset, value in values_of(data)]


@calm
@given(st.lists(event, max_size=30))
@example([("append", 1), ("delete", 1), ("cut", 1), ("close", 0), ("crash", 0)])  # history knows no epoch any more
def test_any_course_of_events_leaves_what_a_list_would_hold(
    checkpoint_seconds: float, scratch: Path, plan: list[tuple[str, int]]
) -> None:
    scratch = fresh(scratch)
    twin, epoch, folder, crashes = Twin(), 1, scratch / "t-0", 0
    log = open_log(folder, **CONFIG)
    sent: list[bytes] = []  # payloads of this producer epoch, the sequences of which follow each other
    producer_epoch = sequence = 0
    for verb, number in plan:
        if verb == "append":
            values = [b"%d" % (sequence + n) for n in range(number)]
            payload = produced(sequence, number, epoch=producer_epoch)
            assert log.append_as_leader(payload, epoch, NOW)[:3] == (twin.end, twin.end + number, False)
            twin.batches.append((twin.end, values, epoch))
            sent.append(payload)
            sequence += number
        elif verb == "retry" and number < len(sent):
            info = log.append_as_leader(sent[-1 - number], epoch, NOW)
            assert (info.duplicate, info.first_offset) == (True, twin.batches[-1 - number][0])
        elif verb == "elect":
            epoch += number
            log.assign_leader_epoch(epoch, log.log_end_offset)
        elif verb == "sync":
            assert log.sync() == twin.end
        elif verb == "cut" and number >= twin.start:
            log.truncate_to(number, NOW)
            twin.cut(number)
            twin.start = min(twin.start, twin.end)
        elif verb == "close":
            log.close()
            log = open_log(folder, **CONFIG)
            assert log.recovered.clean
        elif verb == "delete" and number <= twin.end:
            log.sync()  # only what lies below the high watermark is ever deleted
            log.advance_log_start(number)
            twin.start = max(twin.start, number)
        elif verb == "crash":
            synced, crashes = log.synced_end_offset, crashes + 1
            folder = crashed(log, scratch / f"crash-{crashes}")
            last = files_of(folder)[-1]
            lost = max(0, last.stat().st_size - number)
            if log.segments[-1].base_offset >= synced:  # nothing of the last file was synced: any of it may be lost
                last.write_bytes(last.read_bytes()[:lost])
            log = open_log(folder, **CONFIG)
            assert log.log_end_offset >= synced
            twin.cut(log.log_end_offset)
        if verb in ("cut", "crash"):  # a new producer epoch, because sequences may have been lost
            producer_epoch, sequence = producer_epoch + 1, 0
            sent.clear()
        assert (log.log_start_offset, log.log_end_offset) == (twin.start, twin.end)
        kept = [record for record in records_of(log) if record[0] >= log.log_start_offset]
        assert kept == [record for record in twin.records() if record[0] >= twin.start]
        log.epochs.validate(log.log_end_offset)
    log.close()


class Crash(BaseException):
    """The process ends here."""


def crashing(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let the `at`-th system call that changes a file end the process instead."""
    left = at

    def guarded(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            return real(*arguments, **named)

        return call

    for name in ("replace", "ftruncate", "fsync", "fdatasync", "unlink", "pwrite"):
        patch.setattr(filesystem, name, guarded(getattr(filesystem, name)))


@calm
@given(st.integers(2, 15), st.integers(0, 40), st.booleans(), st.data())
def test_a_crash_in_a_truncation_leaves_a_prefix_with_all_below_it(
    checkpoint_seconds: float, scratch: Path, batches: int, at: int, full: bool, choose: st.DataObject
) -> None:
    scratch = fresh(scratch)
    log = made(scratch / "t-0", batches, batches)
    expected = values_of(whole(log))
    target = choose.draw(st.integers(0, log.log_end_offset))
    with pytest.MonkeyPatch.context() as patch:
        crashing(patch, at)
        try:
            log.truncate_fully_and_start_at(1000, NOW) if full else log.truncate_to(target, NOW)
        except Crash:
            pass
    copy = scratch / "crash"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(log.folder, copy)
    log.close()
    log = open_log(copy, **CONFIG)
    found = values_of(whole(log))
    assert found == expected[: len(found)]
    if not full:
        assert len(found) >= target - 2  # a batch holds up to three records, and goes as a whole
    log.append_as_leader(batch(b"next"), 9, NOW)
    assert values_of(whole(log)) == [*found, (log.log_end_offset - 1, b"next")]
    log.close()


@calm
@given(st.integers(1, 15), st.integers(0, 12))
def test_a_crash_at_any_step_of_opening_is_finished_by_the_next(
    checkpoint_seconds: float, scratch: Path, batches: int, at: int
) -> None:
    scratch = fresh(scratch)
    log = made(scratch / "t-0", batches, batches // 2)
    expected = whole(log)
    folder = crashed(log, scratch / "crash")
    last = files_of(folder)[-1]
    last.write_bytes(last.read_bytes() + b"torn")
    with pytest.MonkeyPatch.context() as patch:
        crashing(patch, at)
        try:
            open_log(folder, **CONFIG).close()
        except Crash:
            pass
    assert reopened(folder) == expected
