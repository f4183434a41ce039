"""Permissions of an endpoint's methods, as :class:`raylog.rpc.Permissions` made from its page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from raylog.base.errors import InvalidRequest
from raylog.core.queues.origins import retry_topic
from raylog.core.queues.policy import DEAD_LETTERS
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.documents.registry import methods
from raylog.protocol.method import AnyMethod, Endpoint, TokenScope
from raylog.protocol.unknown_methods import know, unknown_method
from raylog.rpc import Grant, Permissions, TopicGrant
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from raylog.rpc.permissions import Missing, PayloadLacks, Places

know(method.name for _, method in methods())
_READING = (TokenScope.READ, TokenScope.OFFSETS)
TRANSACTIONS_TOPIC = "__transaction_state"
"""The internal topic that has a partition for each transaction coordinator."""
ClaimsOf: TypeAlias = Callable[[memoryview], tuple[bool, bool]]
"""Returns whether a batch of a payload belongs to a transaction, and whether one has a lasting producer id."""
LASTING: Final = "a secret, which producer ids need that partitions never forget"
"""Partitions have room for few such ids, under which brokers and relays send: holders of tokens must not use it up."""
COORDINATOR_OF_TRANSACTIONS = "transaction"
"""The key type of a request for the coordinator of a transactional id."""


class NamedTopic(NamedTuple):
    """What an endpoint knows of a topic; empty = nothing."""

    topic_id: str
    retry_of: str
    """The topic whose records come here for a late retry of a group; empty = it is no retry topic."""


NO_TOPIC: Final = NamedTopic("", "")
Named: TypeAlias = Callable[[str], NamedTopic]
"""Returns what is known now of the topic with a name; an endpoint of one partition knows its own topic only."""


def permissions(
    endpoint: Endpoint,
    *,
    is_internal: bool = False,
    named: Named = lambda _: NO_TOPIC,
    claims_of: ClaimsOf = lambda _: (True, True),
) -> Permissions:
    """Return the lowest role for each method, and what a token covers.

    ``is_internal``: the endpoint serves a partition of an internal topic, whose rows are state of the cluster.
    ``named`` returns what is known now of the topic with a name. ``claims_of`` returns what the batches of a payload
    claim for which the right to write does not suffice; by default every payload claims both.
    """
    roles = {
        method.name: method.internal_role if is_internal and method.internal_role is not None else method.role
        for method in endpoint.methods.values()
    }
    name = f"{endpoint.name} of an internal topic" if is_internal else endpoint.name
    return Permissions(
        name,
        roles,
        _missing(endpoint, named),
        _places(endpoint),
        payloads=_payloads(endpoint, claims_of),
        unknown=unknown_method,
        notifications=frozenset(
            method.name for method in endpoint.methods.values() if method.notification or method.unanswered
        ),
    )


def _places(endpoint: Endpoint) -> Callable[[Grant], Mapping[str, Places]]:
    reading = [method.name for method in endpoint.methods.values() if method.token in _READING]
    writing = [method.name for method in endpoint.methods.values() if method.token is TokenScope.WRITE]

    def places(grant: Grant) -> Mapping[str, Places]:
        reads: Places = {topic.topic_id: _together(topic.reads) for topic in grant.topics}
        writes: Places = {topic.topic_id: ALL_PARTITIONS[0] for topic in grant.topics if topic.writes}
        return dict.fromkeys(reading, reads) | dict.fromkeys(writing, writes)

    return places


def _payloads(endpoint: Endpoint, claims_of: ClaimsOf) -> Callable[[Grant], Mapping[str, PayloadLacks]]:
    writing = [
        method for method in endpoint.methods.values() if method.token in {TokenScope.WRITE, TokenScope.SCHEDULE}
    ]

    def lacks(method: AnyMethod, grant: Grant, args: Any, payload: memoryview) -> str:
        is_transactional, is_lasting = claims_of(payload)
        if is_lasting:
            return LASTING
        if method.token is not TokenScope.WRITE or not is_transactional:  # the scheduler refuses those itself
            return ""
        # An open transaction holds back every reader of committed records, which is more than a writer may do.
        if not grant.transactional_id_prefix:
            return "a prefix of transactional ids, for a batch of a transaction"
        # The leader queries the coordinator of the id that is named, whether the transaction is open.
        return _lacks_id(method.read_request(args).transactional_id, grant)

    def payloads(grant: Grant) -> Mapping[str, PayloadLacks]:
        return {method.name: partial(lacks, method, grant) for method in writing}

    return payloads


def _together(ranges: tuple[range, ...]) -> Container[int]:
    return ranges[0] if len(ranges) == 1 else _Ranges(ranges)


class _Ranges:
    """Partitions in several ranges."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: tuple[range, ...]) -> None:
        self._ranges = ranges

    def __contains__(self, partition: object) -> bool:
        return any(partition in each for each in self._ranges)


def _missing(endpoint: Endpoint, named: Named) -> Missing:
    def missing(name: str, args: Any, grant: Grant) -> str:
        method = endpoint.methods[name]
        try:
            request = method.read_request(args)
        except InvalidRequest:
            return "a request that can be read"
        if (
            method.token is TokenScope.OFFSETS
            and grant.transactional_id_prefix
            and request.topic_id == named(TRANSACTIONS_TOPIC).topic_id != ""
        ):
            return ""  # a list of transactions begins here, so that it wakes only coordinators that have any
        if method.token in _LACKS_HERE:
            return _LACKS_HERE[method.token](request, grant, named)
        return _LACKS[method.token](request, grant)

    return missing


def _lacks_secret(request: Any, grant: Grant) -> str:
    return "a secret: no token covers it"


def _lacks_topics(request: Any, grant: Grant) -> str:
    if request.topics is None:
        return "the right to see all topics; name those that it is for"
    seen = {topic.topic for topic in grant.topics}
    if grant.transactional_id_prefix:
        seen.add(TRANSACTIONS_TOPIC)  # a list of transactions goes to every coordinator
    if any(topic.writes for topic in grant.topics):
        seen.add(SCHEDULED_TOPIC)
    for group in filter(None, (grant.group, grant.transactional_id_prefix)):
        seen.update(retry_topic(group, topic.topic) for topic in grant.topics)
    unknown = [topic for topic in request.topics if topic not in seen]
    return f"the right to see the topic {unknown[0]!r}" if unknown else ""


def _lacks_reading(request: Any, grant: Grant) -> str:
    for topic in grant.topics:
        if topic.topic_id == request.topic_id:
            if request.partition in _Ranges(topic.reads):
                return ""
            which = f"partition {request.partition} of {topic.topic!r}" if topic.reads else repr(topic.topic)
            return f"the right to read {which}"
    return f"the right to read {_stranger(request.topic_id, grant)}"


def _lacks_writing(request: Any, grant: Grant) -> str:
    for topic in grant.topics:
        if topic.topic_id == request.topic_id:
            return "" if topic.writes else f"the right to write to {topic.topic!r}"
    return f"the right to write to {_stranger(request.topic_id, grant)}"


def _stranger(topic_id: str, grant: Grant) -> str:
    names = ", ".join(repr(topic.topic) for topic in grant.topics) or "no topic"
    return f"the topic with id {topic_id!r}; it is for {names}, and a topic that was created again needs a new token"


def _lacks_producer_id(request: Any, grant: Grant) -> str:
    if getattr(request, "lasting", False):
        return LASTING
    return "" if any(topic.writes for topic in grant.topics) else "the right to write to any topic"


def _lacks_scheduler(request: Any, grant: Grant, named: Named) -> str:
    if hasattr(request, "topic"):
        is_there = request.topic == SCHEDULED_TOPIC
    else:
        is_there = request.topic_id == named(SCHEDULED_TOPIC).topic_id != ""
    if not is_there:
        return f"a secret, for another topic than {SCHEDULED_TOPIC}"
    return _lacks_producer_id(request, grant)


def _lacks_halves(request: Any, grant: Grant, named: Named) -> str:
    return _lacks_scheduler(request, grant, named) or _lacks_group_named(request.group, grant)


def _lacks_queue(request: Any, grant: Grant, named: Named) -> str:
    """A queue is a group on a partition: its use needs the right to both, as in Kafka.

    Late retries of a group come back in a topic of its own, which no token can name before it exists.
    """
    lacking = _lacks_group_named(request.group_id, grant) or _lacks_reading(request, grant)
    if not lacking or not grant.has_group(request.group_id):
        return lacking
    for source in (each.topic for each in grant.topics if _reads_all(each)):
        if named(retry_topic(request.group_id, source)) == (request.topic_id, source):
            return ""
    return lacking


def _lacks_queue_settings(request: Any, grant: Grant, named: Named) -> str:
    letters = request.settings.get(DEAD_LETTERS, "").strip()
    if letters and not any(topic.writes and topic.topic == letters for topic in grant.topics):
        return f"the right to write to {letters!r}, to which dead letters are to go"
    return _lacks_queue(request, grant, named)


def lacks_schedule(grant: Grant, targets: Iterable[tuple[str, str]], groups: Iterable[str]) -> str:
    """What a token lacks for delayed records to these topics (name and id), and half messages of these groups."""
    for topic, topic_id in targets:
        if not grant.writes_to(topic_id, topic):
            return f"the right to write to {topic!r}"
    return next(filter(None, (_lacks_group_named(group, grant) for group in groups)), "")


def _lacks_coordinator(request: Any, grant: Grant) -> str:
    if request.key_type == COORDINATOR_OF_TRANSACTIONS:
        return _lacks_id(request.key, grant)
    return _lacks_group_named(request.key, grant)


def _lacks_transactional_id(request: Any, grant: Grant) -> str:
    return _lacks_id(request.transactional_id, grant)


def _lacks_partitions_of_transaction(request: Any, grant: Grant) -> str:
    # The markers go where the names say: an id that is granted must not bring another topic's name in.
    strange = [row.topic for row in request.partitions if not grant.writes_to(row.topic_id, row.topic)]
    return f"the right to write to {strange[0]!r}" if strange else _lacks_id(request.transactional_id, grant)


def _lacks_offsets_of_transaction(request: Any, grant: Grant) -> str:
    return _lacks_id(request.transactional_id, grant) or _lacks_group_named(request.group_id, grant)


def _lacks_commit_of_transaction(request: Any, grant: Grant) -> str:
    return _lacks_id(request.transactional_id, grant) or _lacks_offsets(request, grant)


def _lacks_offsets(request: Any, grant: Grant) -> str:
    return _lacks_group_named(request.group_id, grant) or _lacks_topics_of_offsets(request, grant)


def _lacks_topics_of_offsets(request: Any, grant: Grant) -> str:
    """A group's offsets are offsets in topics: to commit or see one needs the right to read there, as in Kafka.

    A sink may use the group that is named as its prefix: it keeps notes there, under the topic of the transactions.
    """
    is_sink = request.group_id == grant.transactional_id_prefix
    rows = request.offsets if hasattr(request, "offsets") else request.partitions
    if rows is None:
        return "" if is_sink else "the right to see the offsets of all topics; name the partitions"
    for row in rows:
        if not sees_offset(grant, request.group_id, row.topic_id, row.topic, row.partition):
            return f"the right to read partition {row.partition} of {row.topic!r}"
    return ""


def sees_offset(grant: Grant, group: str, topic_id: str, topic: str, partition: int) -> bool:
    """Whether a token covers what a group has committed for this partition: it is read, or a note of a sink's own."""
    if topic == TRANSACTIONS_TOPIC and group == grant.transactional_id_prefix:
        return True
    return any(
        (each.topic_id, each.topic) == (topic_id, topic) and partition in _Ranges(each.reads) for each in grant.topics
    )


def _lacks_subscription(request: Any, grant: Grant) -> str:
    read = {topic.topic for topic in grant.topics if topic.reads}
    strange = [topic for topic in request.subscribed_topics or () if topic not in read]
    return f"the right to read {strange[0]!r}" if strange else _lacks_group_named(request.group_id, grant)


def _lacks_prefix(request: Any, grant: Grant) -> str:
    prefix = request.transactional_id_prefix
    return "" if grant.has_transactional_id(prefix) else f"the transactional ids that begin with {prefix!r}"


def _lacks_group(request: Any, grant: Grant) -> str:
    return _lacks_group_named(request.group_id, grant)


def _lacks_id(transactional_id: str, grant: Grant) -> str:
    return "" if grant.has_transactional_id(transactional_id) else f"the transactional id {transactional_id!r}"


def _lacks_group_named(group: str, grant: Grant) -> str:
    return "" if grant.has_group(group) else f"the group {group!r}"


def _reads_all(topic: TopicGrant) -> bool:
    return topic.reads == ALL_PARTITIONS


_LACKS_HERE: Final[Mapping[TokenScope, Callable[[Any, Grant, Named], str]]] = {
    TokenScope.SCHEDULE: _lacks_scheduler,  # its targets are checked by the scheduler, which opens its batches
    TokenScope.SCHEDULER: _lacks_scheduler,
    TokenScope.HALVES: _lacks_halves,
    TokenScope.QUEUE: _lacks_queue,
    TokenScope.QUEUE_SETTINGS: _lacks_queue_settings,
}
"""The checks that depend on which topic has an id now."""
_LACKS: Final[Mapping[TokenScope, Callable[[Any, Grant], str]]] = {
    TokenScope.NOTHING: _lacks_secret,
    TokenScope.TOPICS: _lacks_topics,
    TokenScope.READ: _lacks_reading,
    TokenScope.OFFSETS: _lacks_reading,
    TokenScope.WRITE: _lacks_writing,
    TokenScope.PRODUCER: _lacks_producer_id,
    TokenScope.COORDINATOR: _lacks_coordinator,
    TokenScope.TRANSACTION: _lacks_transactional_id,
    TokenScope.TRANSACTION_PARTITIONS: _lacks_partitions_of_transaction,
    TokenScope.TRANSACTION_OFFSETS: _lacks_offsets_of_transaction,
    TokenScope.TRANSACTION_COMMIT: _lacks_commit_of_transaction,
    TokenScope.PREFIX: _lacks_prefix,
    TokenScope.GROUP: _lacks_group,
    TokenScope.GROUP_VIEW: _lacks_group,
    TokenScope.GROUP_OFFSETS: _lacks_offsets,
    TokenScope.SUBSCRIPTION: _lacks_subscription,
}
