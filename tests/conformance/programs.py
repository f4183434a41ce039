"""The programs. Each does something that a user does, and returns what the user sees, as plain values."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from tests.conformance.stage import Stage, read, until, values

Program: TypeAlias = Callable[[Stage], Any]
PROGRAMS: Final[dict[str, Program]] = {}
"""By name, in order."""
KEYS: Final = [b"a", b"b", b"user-17", b"", b"\xff\x00"]
NOON_MS: Final = 1_700_000_000_000


def program(function: Program) -> Program:
    """Enter a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


# --- producing ---------------------------------------------------------------------------------------------------


@program
def offsets_count_from_zero(stage: Stage) -> Any:
    return [found.offset for found in stage.put(stage.topic(), b"a", b"b", b"c")]


@program
def a_key_chooses_its_partition_by_murmur2(stage: Stage) -> Any:
    writer, topic = stage.writer({"partitioner": "murmur2"} if "confluent" in stage.name() else {}), stage.topic(5)
    return [writer.send(topic, b"x", key=key)().partition for key in KEYS]


@program
def a_record_comes_back_as_it_was_sent(stage: Stage) -> Any:
    topic, headers = stage.topic(), [("trace", b"1"), ("trace", b"2"), ("empty", b"")]
    stage.put(topic, b"value", key=b"key", headers=headers, timestamp_ms=NOON_MS)
    (record,) = read(stage.at((topic, 0)), 1)
    return [record.key, record.value, record.timestamp_ms == NOON_MS, [list(pair) for pair in record.headers]]


@program
def a_header_without_value(stage: Stage) -> Any:
    topic = stage.topic()
    stage.put(topic, b"x", headers=[("none", None)])
    (record,) = read(stage.at((topic, 0)), 1)
    return [list(pair) for pair in record.headers]


@program
def no_value_is_not_an_empty_value(stage: Stage) -> Any:
    topic, writer = stage.topic(), stage.writer()
    for value, key in ((None, b"k"), (b"", b""), (b"", None)):
        writer.send(topic, value, key=key)()
    return [[record.key, record.value] for record in read(stage.at((topic, 0)), 3)]


@program
def a_partition_that_does_not_exist(stage: Stage) -> Any:
    topic, writer = stage.topic(2), stage.writer({"delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000})
    return stage.refused(lambda: writer.send(topic, b"x", partition=7)())


@program
def a_topic_that_does_not_exist(stage: Stage) -> Any:
    more = {"topic.metadata.propagation.max.ms": 500} if "confluent" in stage.name() else {"max.block.ms": 3_000}
    return stage.refused(lambda: stage.writer(more).send(stage.name("missing"), b"x")())


@program
def a_record_above_the_limit_of_its_topic(stage: Stage) -> Any:
    topic, writer = stage.topic(1, {"max.message.bytes": "2000"}), stage.writer()
    return [stage.refused(lambda: writer.send(topic, bytes(5_000))()), writer.send(topic, b"next")().offset]


@program
def a_time_of_the_broker_s_own(stage: Stage) -> Any:
    topic = stage.topic(1, {"message.timestamp.type": "LogAppendTime"})
    (sent,) = stage.put(topic, b"x", timestamp_ms=NOON_MS)
    (record,) = read(stage.at((topic, 0)), 1)
    return [abs(record.timestamp_ms / 1000 - time.time()) < 60, sent.timestamp_ms == record.timestamp_ms]


@program
def a_time_far_ahead_is_refused(stage: Stage) -> Any:
    topic, ahead = stage.topic(), int(time.time() * 1000) + 7 * 86_400_000
    return stage.refused(lambda: stage.put(topic, b"x", timestamp_ms=ahead))


@program
def every_codec_is_read_back(stage: Stage) -> Any:
    topic, codecs = stage.topic(), ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        stage.writer({"compression.type": codec}).send(topic, codec.encode() * 500)()
    return [record[: len(codec)] for record, codec in zip(values(read(stage.at((topic, 0)), 5)), codecs, strict=True)]


@program
def without_acknowledgements_no_offset_is_known(stage: Stage) -> Any:
    topic, writer = stage.topic(), stage.writer({"acks": 0, "enable.idempotence": False})
    sent = writer.send(topic, b"x")()
    return [sent.offset, values(read(stage.at((topic, 0)), 1))]


@program
def a_closed_producer_takes_nothing(stage: Stage) -> Any:
    topic, writer = stage.topic(), stage.writer()
    writer.send(topic, b"x")
    writer.close()
    return [bool(stage.refused(lambda: writer.send(topic, b"y")())), values(read(stage.at((topic, 0)), 1))]


@program
def idempotence_needs_all_acknowledgements(stage: Stage) -> Any:
    return stage.refused(lambda: stage.writer({"enable.idempotence": True, "acks": 1}))


@program
def a_setting_that_does_not_exist(stage: Stage) -> Any:
    return bool(stage.refused(lambda: stage.writer({"linger.mss": 5})))


# --- transactions ------------------------------------------------------------------------------------------------


def _transactional(stage: Stage, name: str) -> Any:
    writer = stage.writer({"transactional.id": name})
    writer.init_transactions()
    return writer


def _committed_and_aborted(stage: Stage) -> str:
    topic, writer = stage.topic(), _transactional(stage, stage.name("tx"))
    for value, ends in ((b"1", writer.commit), (b"2", writer.abort), (b"3", writer.commit)):
        writer.begin()
        writer.send(topic, value, partition=0)
        writer.flush()
        ends()
    return topic


@program
def readers_of_committed_records_see_no_aborted_ones(stage: Stage) -> Any:
    reader = stage.at((_committed_and_aborted(stage), 0), {"isolation.level": "read_committed"})
    found = read(reader, 2)
    return [[record.offset, record.value] for record in found]


@program
def other_readers_see_aborted_records_too(stage: Stage) -> Any:
    reader = stage.at((_committed_and_aborted(stage), 0), {"isolation.level": "read_uncommitted"})
    return [[record.offset, record.value] for record in read(reader, 3)]


@program
def an_open_transaction_holds_back_what_follows(stage: Stage) -> Any:
    topic, writer = stage.topic(), _transactional(stage, stage.name("tx"))
    writer.begin()
    writer.send(topic, b"open", partition=0)()
    stage.put(topic, b"after")
    reader = stage.at((topic, 0), {"isolation.level": "read_committed"})
    before = values(read(reader, 1, 2.0))
    writer.commit()
    return [before, values(read(reader, 2))]


@program
def a_second_producer_with_the_id_fences_the_first(stage: Stage) -> Any:
    topic, name = stage.topic(), stage.name("tx")
    first = _transactional(stage, name)
    first.begin()
    first.send(topic, b"first", partition=0)()
    second = _transactional(stage, name)
    second.begin()
    second.send(topic, b"second", partition=0)()
    second.commit()
    reader = stage.at((topic, 0), {"isolation.level": "read_committed"})
    return [bool(stage.refused(first.commit)), values(read(reader, 1))]


@program
def a_transactional_producer_sends_in_transactions_only(stage: Stage) -> Any:
    topic, writer = stage.topic(), _transactional(stage, stage.name("tx"))
    return bool(stage.refused(lambda: writer.send(topic, b"x")()))


@program
def a_transaction_before_the_id_is_taken(stage: Stage) -> Any:
    writer = stage.writer({"transactional.id": stage.name("tx")})
    return bool(stage.refused(writer.begin))


@program
def offsets_are_committed_with_the_transaction(stage: Stage) -> Any:
    topic, group, writer = stage.filled(3), stage.name("g"), _transactional(stage, stage.name("tx"))
    reader = stage.member(topic, group)
    read(reader, 3)
    seen = []
    for offset, ends in ((2, writer.abort), (3, writer.commit)):
        writer.begin()
        writer.send_offsets({(topic, 0): offset}, reader)
        ends()
        seen.append(reader.committed((topic, 0)))
    return seen


# --- consuming ---------------------------------------------------------------------------------------------------


@program
def earliest_reads_what_is_there(stage: Stage) -> Any:
    return values(read(stage.member(stage.filled(3), stage.name("g")), 3))


@program
def latest_reads_what_comes(stage: Stage) -> Any:
    topic = stage.filled(3)
    reader = stage.member(topic, stage.name("g"), {"auto.offset.reset": "latest"})
    until(lambda: bool(reader.assignment()), reader)
    until(lambda: reader.position((topic, 0)) == 3, reader, timeout_s=3)
    reader.poll(1.0)
    stage.put(topic, b"new")
    return values(read(reader, 1))


@program
def no_position_and_no_reset_is_an_error(stage: Stage) -> Any:
    reset = "error" if "confluent" in stage.name() else "none"
    reader = stage.member(stage.filled(1), stage.name("g"), {"auto.offset.reset": reset})
    return stage.refused(lambda: read(reader, 1, 10))


@program
def a_seek_goes_anywhere(stage: Stage) -> Any:
    topic = stage.filled(10)
    reader = stage.at((topic, 0))
    read(reader, 10)
    reader.seek((topic, 0), 7)
    return values(read(reader, 3))


@program
def a_seek_behind_the_end_begins_again(stage: Stage) -> Any:
    topic = stage.filled(3)
    reader = stage.at((topic, 0))
    read(reader, 1)
    reader.seek((topic, 0), 100)
    return values(read(reader, 3))


@program
def the_position_is_behind_what_was_returned(stage: Stage) -> Any:
    topic = stage.filled(5)
    reader = stage.at((topic, 0))
    (first,) = until_one(reader)
    return [first.offset, reader.position((topic, 0))]


def until_one(reader: Any) -> Any:
    """Poll for single records until one comes."""
    deadline_s = time.monotonic() + 20
    found: Any = []
    while not found and time.monotonic() < deadline_s:
        found = reader.poll(0.5, 1)
    return found


@program
def a_paused_partition_gives_nothing(stage: Stage) -> Any:
    topic = stage.filled(3)
    reader = stage.at((topic, 0))
    until_one(reader)
    reader.pause((topic, 0))
    while reader.poll(0.5):
        pass  # what was fetched before may still come
    stage.put(topic, b"meanwhile")
    during = values(reader.poll(1.5))
    reader.resume((topic, 0))
    reader.seek((topic, 0), 3)
    return [during, values(read(reader, 1))]


@program
def the_edges_of_a_partition(stage: Stage) -> Any:
    topic = stage.filled(5)
    removed = stage.operator.delete_before((topic, 0), 2)
    reader = stage.at((topic, 0))
    return [removed, list(reader.edges((topic, 0))), values(read(reader, 3))]


@program
def a_time_is_looked_up(stage: Stage) -> Any:
    topic = stage.topic()
    for number in range(4):
        stage.put(topic, b"%d" % number, timestamp_ms=NOON_MS + 1_000 * number)
    reader = stage.at((topic, 0))
    return [reader.offset_at((topic, 0), NOON_MS + extra) for extra in (-5_000, 0, 1, 3_000)]


@program
def a_time_behind_the_last_record(stage: Stage) -> Any:
    topic = stage.topic()
    stage.put(topic, b"x", timestamp_ms=NOON_MS)
    return stage.at((topic, 0)).offset_at((topic, 0), NOON_MS + 1)


@program
def most_records_of_a_poll(stage: Stage) -> Any:
    topic = stage.filled(10)
    reader = stage.at((topic, 0))
    sizes = [len(until_one(reader))]
    return [sizes[0], len(reader.poll(2.0, 4)) <= 4]


@program
def a_closed_consumer_reads_nothing(stage: Stage) -> Any:
    reader = stage.at((stage.filled(1), 0))
    reader.close()
    return bool(stage.refused(lambda: reader.poll(0.5)))


@program
def a_topic_is_read_on_when_it_grows(stage: Stage) -> Any:
    topic = stage.filled(1)
    reader = stage.member(topic, stage.name("g"), {"metadata.max.age.ms": 1_000})
    read(reader, 1)
    stage.operator.grow(topic, 3)
    found = until(lambda: reader.assignment() == {(topic, number) for number in range(3)}, reader, timeout_s=30)
    return [found, stage.refused(lambda: stage.operator.grow(topic, 2))]


# --- groups ------------------------------------------------------------------------------------------------------


@program
def a_group_goes_on_behind_its_commit(stage: Stage) -> Any:
    topic, group = stage.filled(5), stage.name("g")
    first = stage.member(topic, group)
    read(first, 5)
    first.commit({(topic, 0): 3})
    first.close()
    return values(read(stage.member(topic, group), 2))


@program
def nothing_is_committed_before_a_commit(stage: Stage) -> Any:
    topic = stage.filled(2)
    reader = stage.member(topic, stage.name("g"))
    read(reader, 2)
    before = reader.committed((topic, 0))
    reader.commit()
    return [before, reader.committed((topic, 0))]


@program
def a_close_commits_when_commits_are_automatic(stage: Stage) -> Any:
    topic, group = stage.filled(3), stage.name("g")
    first = stage.member(topic, group, {"enable.auto.commit": True, "auto.commit.interval.ms": 600_000})
    read(first, 3)
    first.close()
    return stage.member(topic, group).committed((topic, 0))


@program
def two_members_share_and_one_takes_over(stage: Stage) -> Any:
    topic, group = stage.topic(4), stage.name("g")
    options = {"heartbeat.interval.ms": 500, "session.timeout.ms": 6_000}
    first, second = stage.member(topic, group, options), stage.member(topic, group, options)
    share = until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second, timeout_s=40)
    apart = not first.assignment() & second.assignment()
    second.close()
    return [share, apart, until(lambda: len(first.assignment()) == 4, first, timeout_s=40)]


@program
def a_pattern_takes_in_later_topics(stage: Stage) -> Any:
    prefix = stage.name("p")
    stage.operator.create_topic(f"{prefix}-1")
    options: dict[str, str | int | bool] = {"group.id": stage.name("g"), "auto.offset.reset": "earliest"}
    options["metadata.max.age.ms"] = 1_000
    if "confluent" in prefix:
        options["topic.metadata.refresh.interval.ms"] = 1_000
    reader = stage.reader(options)
    reader.subscribe_pattern(f"^{prefix}-.*")
    first = until(lambda: len(reader.assignment()) == 1, reader, timeout_s=30)
    stage.operator.create_topic(f"{prefix}-2")
    stage.put(f"{prefix}-2", b"early")
    return [first, values(read(reader, 1, 40))]


@program
def without_a_subscription_nothing_is_read(stage: Stage) -> Any:
    reader = stage.member(stage.filled(2), stage.name("g"))
    read(reader, 2)
    reader.unsubscribe()
    return len(reader.assignment())


@program
def a_commit_outside_of_the_assignment(stage: Stage) -> Any:
    topic, other, group = stage.filled(2), stage.filled(2), stage.name("g")
    reader = stage.member(topic, group)
    read(reader, 2)
    reader.commit({(other, 0): 1})
    return reader.committed((other, 0))


@program
def a_group_s_state_and_end(stage: Stage) -> Any:
    topic, group, operator = stage.filled(1), stage.name("g"), stage.operator
    reader = stage.member(topic, group)
    read(reader, 1)
    reader.commit()
    states: list[object] = [operator.group_state(group), stage.refused(lambda: operator.delete_group(group))]
    reader.close()
    states += [operator.group_state(group), group in operator.groups()]
    operator.delete_group(group)
    return [*states, group in operator.groups()]


# --- administration ----------------------------------------------------------------------------------------------


@program
def a_topic_twice(stage: Stage) -> Any:
    return stage.refused(lambda: stage.operator.create_topic(stage.topic()))


@program
def deleting_a_topic_that_does_not_exist(stage: Stage) -> Any:
    return stage.refused(lambda: stage.operator.delete_topic(stage.name("missing")))


@program
def names_that_no_topic_may_have(stage: Stage) -> Any:
    return [stage.refused(partial(stage.operator.create_topic, name)) for name in ("a b", "..", "x" * 250)]


@program
def a_setting_with_an_illegal_value(stage: Stage) -> Any:
    topic = stage.topic()
    return [
        stage.refused(lambda: stage.operator.alter(topic, {"retention.ms": "soon"})),
        stage.refused(lambda: stage.operator.alter(topic, {"cleanup.policy": "burn"})),
        stage.refused(lambda: stage.operator.alter(topic, {"no.such.key": "1"})),
    ]


@program
def the_default_settings_of_a_topic(stage: Stage) -> Any:
    found = stage.operator.config_of(stage.topic())
    wanted = [
        "cleanup.policy", "compression.type", "delete.retention.ms", "index.interval.bytes", "max.compaction.lag.ms",
        "max.message.bytes", "message.timestamp.after.max.ms", "message.timestamp.type", "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms", "retention.bytes", "retention.ms", "segment.bytes", "segment.ms",
        "unclean.leader.election.enable",
    ]  # fmt: skip
    return {key: found.get(key) for key in wanted}


@program
def an_acknowledgement_means_that_the_record_is_on_disk(stage: Stage) -> Any:
    return stage.operator.config_of(stage.topic()).get("flush.messages")


@program
def a_topic_created_again_is_empty(stage: Stage) -> Any:
    topic = stage.filled(3)
    stage.operator.delete_topic(topic)
    deadline_s = time.monotonic() + 20
    while stage.refused(lambda: stage.operator.create_topic(topic)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    (sent,) = stage.put(topic, b"new")
    return [sent.offset, values(read(stage.at((topic, 0)), 1))]


@program
def a_compacted_topic_wants_keys(stage: Stage) -> Any:
    topic = stage.topic(1, {"cleanup.policy": "compact"})
    return [stage.refused(lambda: stage.put(topic, b"x")), stage.put(topic, b"x", key=b"k")[0].offset]
