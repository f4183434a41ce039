"""What a token covers, request by request, at the guard in front of every handler."""

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.actors.naming import TRANSACTIONS_TOPIC
from raylog.actors.permissions import NO_TOPIC, Named, NamedTopic, lacks_schedule, permissions, sees_offset
from raylog.base.errors import ClusterAuthorizationFailed, UnknownTopicId
from raylog.core.queues.origins import retry_topic
from raylog.protocol.broker import BROKER
from raylog.protocol.documents.registry import ENDPOINTS, methods
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.protocol.method import Endpoint
from raylog.protocol.replica import REPLICA
from raylog.protocol.transactions import TRANSACTION_COORDINATOR
from raylog.rpc import Grant, Permissions, Request, RequestConnection, Role, TopicGrant
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from raylog.storage.batch.header import LASTING_PRODUCERS, TRANSACTIONAL_BIT, claims_of
from raylog.storage.batch.records import BatchMeta, encode_batch
from tests.unit.protocol.samples import of_this_release

READING = Grant(2**33, (TopicGrant("id", "t", (range(1), range(2, 4))),))
WRITING = Grant(
    2**33,
    (TopicGrant("id", "t", ALL_PARTITIONS), TopicGrant("out", "sunk", writes=True)),
    transactional_id_prefix="sink-",
    group="readers",
)
NOTHING = Grant(2**33)


class Answers:
    """The far end of requests that were refused: the sentences it got."""

    refusals = None

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def send_error(self, correlation_id: int, description: list[Any], request_bytes: int) -> None:
        assert description[0] == ClusterAuthorizationFailed.code
        self.sentences.append(description[1])

    def abandoned(self, correlation_id: int, method: str, request_bytes: int) -> None:
        """The handler got the request; here it drops it."""


def lacks(
    endpoint: Endpoint, method: str, args: Any, grant: Grant, *, is_internal: bool = False, payload: bytes = b""
) -> str:
    """The sentence of the refusal; empty when the handler got the request."""
    found = permissions(endpoint, is_internal=is_internal, claims_of=claims_of)
    return handed_over(found, Answers(), method, args, grant, payload)


def handed_over(found: Permissions, answers: Answers, method: str, args: Any, grant: Grant, payload: bytes) -> str:
    """The same at an endpoint that knows topics."""
    handled = list[Request]()
    encoded = msgspec.Raw(msgspec.msgpack.encode(args))
    request = Request(cast("RequestConnection", answers), 1, method, encoded, memoryview(payload), False)
    allowed, handler = found.admit(Role.TOKEN, grant, handled.append)
    if allowed is not None and method not in allowed:
        return "role"
    handler(request)
    assert len(handled) + len(answers.sentences) == 1
    return "".join(answers.sentences)


def fetch(topic_id: object, partition: object) -> list[object]:
    return [topic_id, partition, 0, 0, 1, 1, 0, 0]


def test_a_token_reads_the_partitions_that_it_names() -> None:
    for partition, covered in ((0, True), (1, False), (2, True), (3, True), (4, False)):
        for method, args in (("fetch", fetch("id", partition)), ("list_offsets", ["id", partition, 0, -1])):
            assert (lacks(REPLICA, method, args, READING) == "") is covered, (method, partition)
    assert "lacks the right to read partition 1 of 't'" in lacks(REPLICA, "fetch", fetch("id", 1), READING)
    assert "created again needs a new token" in lacks(REPLICA, "fetch", fetch("another id", 0), READING)
    assert "lacks the right to read 'sunk'" in lacks(REPLICA, "fetch", fetch("out", 0), WRITING)
    assert lacks(REPLICA, "fetch", fetch("id", 2**31 - 1), WRITING) == "", "also partitions that come later"
    assert lacks(BROKER, "metadata", [["t"]], READING) == lacks(BROKER, "metadata", [[]], READING) == ""
    assert "see the topic 'u'" in lacks(BROKER, "metadata", [["t", "u"]], READING)
    assert "see all topics" in lacks(BROKER, "metadata", [None], READING)


def test_a_token_writes_to_the_topics_that_it_names() -> None:
    assert lacks(REPLICA, "produce", ["out", 7, 0, 1, 1], WRITING) == ""
    assert lacks(BROKER, "produce", ["out", 7, 0, 1, 1], WRITING) == "", "a partition that sleeps"
    assert lacks(REPLICA, "produce", ["out", 7, 0, 1, 1], WRITING, is_internal=True) == "role"
    assert "lacks the right to write to 't'" in lacks(REPLICA, "produce", ["id", 0, 0, 1, 1], WRITING)
    assert "it is for 't'," in lacks(REPLICA, "produce", ["other", 0, 0, 1, 1], READING)
    assert lacks(BROKER, "init_producer_id", [], WRITING) == ""
    assert "write to any topic" in lacks(BROKER, "init_producer_id", [], READING)
    for method in ("delete_records", "write_txn_markers", "describe_producers", "replica_status"):
        assert lacks(REPLICA, method, ["out", 0, 0, 0, 0], WRITING) == "role"


def test_a_group_is_described_with_the_offsets_that_the_token_may_see() -> None:
    cases: tuple[tuple[str, Any, bool], ...] = (
        ("readers", ["id", "t", 0], True),
        ("readers", ["id", "t", 2**31 - 1], True),
        ("readers", ["other", "t", 0], False),
        ("readers", ["id", "u", 0], False),
        ("readers", ["out", "sunk", 0], False),
        ("readers", ["any id", TRANSACTIONS_TOPIC, 0], False),
        ("sink-", ["any id", TRANSACTIONS_TOPIC, 0], True),
    )
    for group, row, is_seen in cases:
        assert sees_offset(WRITING, group, *row) is is_seen, (group, row)


def batch(attributes: int = 0) -> bytes:
    return encode_batch(None, [b"v"], [1], meta=BatchMeta(7, 0, 0, attributes=attributes))


def test_a_batch_of_a_transaction_needs_a_prefix_of_transactional_ids() -> None:
    inside = batch(TRANSACTIONAL_BIT)
    writing = Grant(2**33, (TopicGrant("out", "sunk", writes=True),), group="readers")
    for endpoint in (REPLICA, BROKER):
        for payload in (inside, batch() + inside, batch() + inside + b"torn"):
            sentence = lacks(endpoint, "produce", ["out", 7, 0, 1, 1], writing, payload=payload)
            assert "lacks a prefix of transactional ids" in sentence
            assert lacks(endpoint, "produce", ["out", 7, 0, 1, 1, "sink-1"], WRITING, payload=payload) == ""
            for name in ("", "sink", "mine"):
                sentence = lacks(endpoint, "produce", ["out", 7, 0, 1, 1, name], WRITING, payload=payload)
                assert f"lacks the transactional id {name!r}" in sentence
        assert lacks(endpoint, "produce", ["out", 7, 0, 1, 1], writing, payload=batch() + batch()) == ""
        # What is malformed is refused by the leader, as a whole.
        assert lacks(endpoint, "produce", ["out", 7, 0, 1, 1], writing, payload=b"x" * 70 + inside) == ""
    args = msgspec.Raw(msgspec.msgpack.encode(["out", 7, 0, 1, 1]))
    assert permissions(REPLICA).payloads(writing)["produce"](args, memoryview(batch())), "it is closed by default"


def test_what_partitions_never_forget_takes_a_secret() -> None:
    """Room for lasting producers is what brokers and relays need for their own batches; tokens could use it up."""
    lasting = encode_batch(None, [b"v"], [1], meta=BatchMeta(LASTING_PRODUCERS, 0, 0))
    below = encode_batch(None, [b"v"], [1], meta=BatchMeta(LASTING_PRODUCERS - 1, 0, 0))
    for endpoint, method, args in (
        (REPLICA, "produce", ["out", 7, 0, 1, 1]),
        (BROKER, "produce", ["out", 7, 0, 1, 1]),
        (REPLICA, "schedule", ["s", 0, 0, -1, 1_000]),
    ):
        for payload in (lasting, below + lasting, batch() + lasting + b"torn"):
            assert "lacks a secret" in lacks(endpoint, method, args, WRITING, payload=payload), (method, payload)
        assert "never forget" not in lacks(endpoint, method, args, WRITING, payload=below + below)
    assert "lacks a secret" in lacks(BROKER, "init_producer_id", [True], WRITING)
    assert lacks(BROKER, "init_producer_id", [False], WRITING) == ""


@pytest.mark.parametrize("method", ["init_transactions", "end_txn", "describe_transaction"])
def test_transactions_are_those_with_the_prefix(method: str) -> None:
    request = TRANSACTION_COORDINATOR.methods[method].request

    def called(transactional_id: str, grant: Grant = WRITING) -> str:
        return lacks(TRANSACTION_COORDINATOR, method, [transactional_id, *of_this_release(request)[1:]], grant)

    assert called("sink-3-0") == called("sink-") == ""
    for strange in ("sink", "Sink-3", " sink-3", "other-sink-3", ""):
        assert f"the transactional id {strange!r}" in called(strange)
        assert called(strange, READING)
        assert called(strange, Grant(2**33, transactional_id_prefix="")), "an empty prefix grants nothing"


def test_a_transaction_takes_in_topics_that_the_token_writes() -> None:
    def added(*rows: list[object], name: str = "sink-1") -> str:
        return lacks(TRANSACTION_COORDINATOR, "add_partitions_to_txn", [name, 1, 0, rows], WRITING)

    assert added(["out", "sunk", 0], ["out", "sunk", 9]) == ""
    assert "write to 't'" in added(["out", "sunk", 0], ["id", "t", 0])
    # The coordinator writes markers where the name leads, so both have to be right.
    assert "write to 't'" in added(["out", "t", 0])
    assert "write to 'sunk'" in added(["id", "sunk", 0])
    assert "the transactional id 'mine'" in added(["out", "sunk", 0], name="mine")


def test_offsets_are_those_of_the_group() -> None:
    for group, covered in (("readers", True), ("sink-", True), ("sink-1", False), ("reader", False), ("", False)):
        for name in ("join_group", "heartbeat", "describe_group", "leave_group"):
            sample = of_this_release(GROUP_COORDINATOR.methods[name].request)
            assert (lacks(GROUP_COORDINATOR, name, [group, *sample[1:]], WRITING) == "") is covered, (name, group)
        for kind, key, right in (("group", group, covered), ("transaction", group, group.startswith("sink-"))):
            assert (lacks(BROKER, "find_coordinator", [kind, key], WRITING) == "") is right, (kind, key)
        assert (lacks(TRANSACTION_COORDINATOR, "add_offsets_to_txn", ["sink-1", 1, 0, group], WRITING) == "") is covered
        for method, args in (("offset_commit", [group, 1, "me", [OWN]]), ("offset_fetch", [group, [OWN[:3]]])):
            assert (lacks(GROUP_COORDINATOR, method, args, WRITING) == "") is covered
        txn_commit = [group, -1, "", None, "other", 1, 0, []]
        assert lacks(GROUP_COORDINATOR, "txn_offset_commit", txn_commit, WRITING)
    for name in ("delete_group", "offset_delete", "list_groups"):
        assert lacks(GROUP_COORDINATOR, name, ["readers", []], WRITING) == "role"


OWN = ["id", "t", 0, 7, -1, ""]
"""A committed offset of a partition that may be read."""
NOTE = ["any id", TRANSACTIONS_TOPIC, 0, 7, -1, "a sink's"]


def test_offsets_are_those_of_partitions_that_the_token_reads() -> None:
    def lacking(group: str, rows: list[list[Any]] | None, grant: Grant = WRITING) -> set[str]:
        calls: list[tuple[str, list[Any]]] = [("offset_fetch", [group, rows and [row[:3] for row in rows]])]
        if rows is not None:
            calls.append(("offset_commit", [group, 1, "me", rows]))
            calls.append(("txn_offset_commit", [group, 1, "me", None, "sink-1", 7, 0, rows]))
        return {lacks(GROUP_COORDINATOR, name, args, grant).partition("it lacks ")[2] for name, args in calls}

    assert lacking("readers", [OWN]) == lacking("sink-", [OWN]) == lacking("readers", []) == {""}
    for strange in (
        ["other", "u", 0, 7, -1, ""],
        ["id", "u", 0, 7, -1, ""],
        ["other", "t", 0, 7, -1, ""],
        ["out", "sunk", 0, 7, -1, ""],
        ["id", "t", -1, 7, -1, ""],
        NOTE,
    ):
        assert lacking("readers", [OWN, strange]) == {f"the right to read partition {strange[2]} of {strange[1]!r}."}
    some = Grant(2**33, READING.topics, "sink-", "readers")
    assert lacking("readers", [["id", "t", 1, 7, -1, ""]], some) == {"the right to read partition 1 of 't'."}
    assert lacking("sink-", [NOTE]) == lacking("sink-", None) == {""}, "its notes, and what it has stored"
    assert "see the offsets of all topics" in lacking("readers", None).pop()


def test_a_member_subscribes_to_topics_that_the_token_reads() -> None:
    def lacking(group: str, topics: list[str] | None) -> str:
        args = [group, "me", 0, None, 1, "c", 1, 1, 1, topics, None, []]
        return lacks(GROUP_COORDINATOR, "consumer_group_heartbeat", args, WRITING)

    assert lacking("readers", ["t"]) == lacking("readers", None) == ""
    assert "the right to read 'sunk'" in lacking("readers", ["t", "sunk"])
    assert "the group 'others'" in lacking("others", ["t"])


def test_a_list_of_transactions_stays_within_the_prefix() -> None:
    for prefix, covered in (("sink-", True), ("sink-1", True), ("sink", False), ("", False)):
        assert (lacks(TRANSACTION_COORDINATOR, "list_transactions", [[], -1, prefix], WRITING) == "") is covered
    assert lacks(TRANSACTION_COORDINATOR, "list_transactions", [], WRITING), "all of them"


def known(of: str = "", /, **ids: str) -> Named:
    """What an endpoint knows of topics by their names; ``of``: of which topic they have the late retries."""
    return lambda name: NamedTopic(ids[name], of) if name in ids else NO_TOPIC


def test_a_list_of_transactions_may_see_which_coordinators_have_any() -> None:
    args = ["a topic", 0, -1, -1]
    of_transactions = permissions(REPLICA, is_internal=True, named=known(**{TRANSACTIONS_TOPIC: "a topic"}))
    at_broker = permissions(BROKER, named=known(**{TRANSACTIONS_TOPIC: "a topic", "__consumer_offsets": "other"}))
    for found in (of_transactions, at_broker):
        assert found.missing("list_offsets", args, WRITING) == ""
        assert found.missing("list_offsets", args, READING)
        assert found.missing("fetch", fetch("a topic", 0), WRITING)
    unknown = permissions(BROKER)
    assert unknown.missing("list_offsets", args, WRITING)
    assert unknown.missing("list_offsets", ["", 0, -1, -1], WRITING)
    elsewhere = permissions(REPLICA, is_internal=True, named=known(__consumer_offsets="a topic"))
    assert elsewhere.missing("list_offsets", args, WRITING)
    assert lacks(BROKER, "metadata", [[TRANSACTIONS_TOPIC]], WRITING) == ""
    assert lacks(BROKER, "metadata", [[TRANSACTIONS_TOPIC]], READING)


def lacking(found: Permissions, method: str, args: list[Any], grant: Grant) -> str:
    return found.missing(method, args, grant)


def test_a_queue_takes_the_group_and_the_partition() -> None:
    found = permissions(REPLICA)
    calls: list[tuple[str, list[Any]]] = [
        ("queue_open", ["me", {}]),
        ("queue_fetch", ["me", 1, 1, 0]),
        ("queue_acknowledge", ["me", []]),
        ("queue_leave", ["me"]),
    ]
    for method, rest in calls:
        assert lacking(found, method, ["id", 0, 0, "readers", *rest], WRITING) == ""
        assert "the group 'others'" in lacking(found, method, ["id", 0, 0, "others", *rest], WRITING)
        assert "the right to read 'sunk'" in lacking(found, method, ["out", 0, 0, "readers", *rest], WRITING)
        assert "the group 'readers'" in lacking(found, method, ["id", 0, 0, "readers", *rest], READING)
    for settings, says in (
        ({"queue.lock.ms": "1000", "errors.deadletterqueue.topic.name": "sunk"}, ""),
        ({"errors.deadletterqueue.topic.name": " t "}, "write to 't', to which dead letters"),
        ({"errors.deadletterqueue.topic.name": "new"}, "write to 'new', to which dead letters"),
    ):
        sentence = lacking(found, "queue_open", ["id", 0, 0, "readers", "me", settings], WRITING)
        assert says in sentence if says else not sentence


def test_a_groups_late_retries_are_read_where_their_topic_is() -> None:
    name = retry_topic("readers", "t")
    args = ["again", 0, 0, "readers", "me"]
    assert lacking(permissions(REPLICA, named=known("t", **{name: "again"})), "queue_leave", args, WRITING) == ""
    assert lacks(BROKER, "metadata", [[name]], WRITING) == ""
    some = Grant(2**33, READING.topics, group="readers")
    for found, grant in (
        (known("u", **{name: "again"}), WRITING),
        (known("", **{name: "again"}), WRITING),
        (known("t", **{name: "another"}), WRITING),
        (known("t", **{retry_topic("others", "t"): "again"}), WRITING),
        (known("t", **{name: "again"}), some),
        (known("t", **{name: "again"}), Grant(2**33, WRITING.topics, group="others")),
    ):
        assert lacking(permissions(REPLICA, named=found), "queue_leave", args, grant)
    assert lacks(BROKER, "metadata", [[retry_topic("others", "t")]], WRITING)


def test_the_scheduler_is_for_writers() -> None:
    found = permissions(REPLICA, named=known(__scheduled="s"))
    for method, rest in (("schedule", [-1, 1]), ("describe_scheduler", [])):
        assert lacking(found, method, ["s", 0, 0, *rest], WRITING) == ""
        assert "write to any topic" in lacking(found, method, ["s", 0, 0, *rest], READING)
        assert "for another topic" in lacking(found, method, ["id", 0, 0, *rest], WRITING)
        assert "for another topic" in lacking(permissions(REPLICA), method, ["", 0, 0, *rest], WRITING)
    assert lacks(BROKER, "ensure_internal_topic", ["__scheduled"], WRITING) == ""
    assert lacks(BROKER, "ensure_internal_topic", ["__share_state"], WRITING)
    assert lacks(BROKER, "ensure_internal_topic", ["__scheduled"], READING)
    for method, args in (("decide_halves", [["x"], ["COMMIT"], [0]]), ("poll_halves", [0, 1, 1])):
        assert lacking(found, method, ["s", 0, 0, "readers", *args], WRITING) == ""
        assert "the group 'others'" in lacking(found, method, ["s", 0, 0, "others", *args], WRITING)
        only_reads = Grant(2**33, READING.topics, group="readers")
        assert "write to any topic" in lacking(found, method, ["s", 0, 0, "readers", *args], only_reads)


def test_delayed_records_go_to_topics_that_the_token_writes() -> None:
    assert lacks_schedule(WRITING, [("sunk", "out")], ["readers", "sink-"]) == ""
    for target in (("sunk", "id"), ("t", "out"), ("t", "id"), ("sunk", ""), ("__consumer_offsets", "out")):
        assert "the right to write to" in lacks_schedule(WRITING, [("sunk", "out"), target], [])
    assert lacks_schedule(WRITING, [("sunk", "out")], ["readers", "others"]) == "the group 'others'"


def test_an_expired_token_covers_nothing() -> None:
    past = Grant(1, WRITING.topics, WRITING.transactional_id_prefix, WRITING.group)
    for endpoint, method in methods():
        if method.role == Role.TOKEN:
            assert "expired" in lacks(endpoint, method.name, of_this_release(method.request), past)


def test_a_token_without_a_grant_covers_no_method() -> None:
    for endpoint in ENDPOINTS:
        for name, method in endpoint.methods.items():
            assert lacks(endpoint, name, of_this_release(method.request), NOTHING), name


def test_a_request_for_another_partition_is_not_refused_for_its_sender() -> None:
    """The address was another replica's before: the sender is to look again, and may not give the record up."""
    internal = replace(permissions(REPLICA, is_internal=True), place=("internal", 0))
    for elsewhere in (["another", 0, 1, -1, 500], ["internal", 1, 1, -1, 500]):
        assert isinstance(internal.refusal("produce", Role.CLIENT, elsewhere), UnknownTopicId)
        assert isinstance(
            internal.refusal("produce", Role.CLIENT, msgspec.Raw(msgspec.msgpack.encode(elsewhere))), UnknownTopicId
        )
    for here in (["internal", 0, 1, -1, 500], ["internal"], None, 7):
        assert isinstance(internal.refusal("produce", Role.CLIENT, here), ClusterAuthorizationFailed)


@pytest.mark.parametrize("args", [None, [], ["id"], ["id", True], ["id", 0.0], {0: "id", 1: 0}, [["id"], 0], "id", 7])
def test_malformed_arguments_are_covered_by_no_token(args: object) -> None:
    for method in ("fetch", "list_offsets", "produce"):
        both = Grant(2**33, (TopicGrant("id", "t", ALL_PARTITIONS, writes=True),))
        reached = lacks(REPLICA, method, args, both) == ""
        assert not reached or args == {0: "id", 1: 0}, "that one is no list, and refused by the handler"


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3), st.sampled_from(["a", "b"]), st.integers()
)
def test_the_quick_look_and_the_sentence_agree(ranges: list[tuple[int, int]], topic_id: str, partition: int) -> None:
    grant = Grant(2**33, (TopicGrant("a", "t", tuple(range(*each) for each in ranges)),))
    covered = topic_id == "a" and any(low <= partition < high for low, high in ranges)
    found = permissions(REPLICA)
    if -(2**63) <= partition < 2**63:
        assert (lacks(REPLICA, "fetch", fetch(topic_id, partition), grant) == "") is covered
        assert (found.missing("fetch", fetch(topic_id, partition), grant) == "") is covered
