"""How the pages state methods and endpoints. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import msgspec

from raylog.base.access import Role
from raylog.base.errors import InvalidRequest, UnknownServerError
from raylog.base.features import FIRST_LEVEL
from raylog.protocol.message import Message, read, read_encoded
from raylog.protocol.unknown_methods import unknown_method

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT")

TOKEN: Final = Role.TOKEN
CLIENT: Final = Role.CLIENT
CLUSTER: Final = Role.CLUSTER


class TokenScope(Enum):
    """What a token has to grant before its holder may make a request, in the words of docs/protocol.md."""

    NOTHING = "nothing"
    """No token covers the method."""
    TOPICS = "names the topics"
    """Any right on every topic in the request's field ``topics``."""
    READ = "reads the partition"
    """Reading the partition in the request's first two fields, ``topic_id`` and ``partition``."""
    OFFSETS = "reads the partition, or has a prefix of transactional ids if it is of `__transaction_state`"
    """The same; or any prefix, for the topic of the transaction coordinators."""
    WRITE = "writes to the topic, and names the transactional id for batches of transactions"
    """Writing to the topic of the partition in these two fields; and the field ``transactional_id``, if a batch in the
    payload is of a transaction."""
    SCHEDULE = "writes to the topics to which the records go, and names the group of half messages"
    """Writing to any topic, for `__scheduled`; what the records say is checked where they are opened."""
    SCHEDULER = "writes to a topic, for `__scheduled`"
    """Writing to any topic; the request is about `__scheduled`, by ``topic_id`` or by ``topic``."""
    HALVES = "writes to a topic, and names the group"
    """That, and the field ``group``."""
    QUEUE = "names the group, and reads the partition or the topic of which it is the group's retry topic"
    """The field ``group_id``, and reading the partition in the first two fields; or reading all of the topic whose
    records come there for a late retry of this group."""
    QUEUE_SETTINGS = "the same, and writes to the dead-letter topic that it sets"
    """That, and writing to the topic that is named among the field ``settings``."""
    PRODUCER = "writes to a topic"
    """Writing to any topic."""
    COORDINATOR = "names the group or transactional id"
    """The group or the transactional id in the fields ``key_type`` and ``key``."""
    TRANSACTION = "names the transactional id"
    """The field ``transactional_id``."""
    TRANSACTION_PARTITIONS = "names the transactional id and writes to the topics"
    """That, and writing to all topics in the field ``partitions``."""
    TRANSACTION_OFFSETS = "names the transactional id and the group"
    """That, and the field ``group_id``."""
    TRANSACTION_COMMIT = "names the transactional id and the group, and reads the partitions"
    """That, and what GROUP_OFFSETS requires."""
    PREFIX = "names the transactional ids"
    """All transactional ids with the prefix in the field ``transactional_id_prefix``."""
    GROUP = "names the group"
    """The field ``group_id``."""
    GROUP_VIEW = "names the group; offsets are shown of partitions that it reads"
    """That; the answer leaves out what GROUP_OFFSETS would refuse."""
    GROUP_OFFSETS = "names the group, and reads the partitions"
    """That, and reading every partition whose offset is named; a sink's own group has its notes besides."""
    SUBSCRIPTION = "names the group, and reads the topics"
    """That, and reading a partition of each topic in ``subscribed_topics``."""


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ReplyT]):
    """One method of one endpoint."""

    name: str
    request: type[RequestT]
    reply: type[ReplyT]
    role: Role
    """The lowest role that may call it."""
    token: TokenScope = TokenScope.NOTHING
    internal_role: Role | None = None
    """The lowest role where the partition is of an internal topic; None = ``role``."""
    forwarded: bool = False
    """Whether a broker passes it on to the controller, which answers."""
    notification: bool = False
    """Whether there is no reply."""
    unanswered: bool = False
    """Whether it may also come as a notification, from senders that want no answer (``acks`` 0)."""
    waits: bool = False
    """Whether the answer may wait for an event, such as records to read or the other members of a group."""
    since: int = FIRST_LEVEL
    """The feature level that brought it."""
    _replies_with_bytes: bool = field(init=False, repr=False, compare=False)
    _reads: Callable[[Any], Any] = field(init=False, repr=False, compare=False)
    _reads_reply: Callable[[Any], Any] | None = field(init=False, repr=False, compare=False, default=None)
    """Decoder of encoded replies, made on first use: few methods get their replies encoded."""

    def __post_init__(self) -> None:
        """Look at the types once."""
        object.__setattr__(self, "_replies_with_bytes", getattr(self.reply, "has_bytes", False))
        object.__setattr__(self, "_reads", msgspec.msgpack.Decoder(self.request).decode)

    @property
    def meaning(self) -> str:
        """What the method does: the first line of its request's documentation."""
        return (self.request.__doc__ or "").partition("\n")[0].strip()

    def read_request(self, args: object) -> RequestT:
        """Return the request in encoded or decoded msgpack; raises :class:`InvalidRequest`."""
        if type(args) is msgspec.Raw:
            return read_encoded(self._reads, self.request, args, self.name)
        return read(self.request, args, self.name)

    def read_reply(self, args: object) -> ReplyT:
        """Return the reply in encoded or decoded msgpack; raises :class:`UnknownServerError` for a malformed one."""
        if type(args) is msgspec.Raw:
            reads = self._reads_reply or self._new_reply_reader()
            try:
                return reads(args)  # type: ignore[no-any-return]  # of a decoder of this type
            except Exception:  # bytes of a peer, of any kind: `read_encoded` explains them
                return self._explained(reads, args)
        if not self._replies_with_bytes:
            try:
                return msgspec.convert(args, self.reply)  # as `read`, without its call: every batch passes here
            except msgspec.ValidationError:
                pass  # `read` explains it
        try:
            return read(self.reply, args, f"The reply to {self.name}")
        except InvalidRequest as wrong:
            raise UnknownServerError(wrong.message) from None

    def _new_reply_reader(self) -> Callable[[Any], Any]:
        reads = msgspec.msgpack.Decoder(self.reply).decode
        object.__setattr__(self, "_reads_reply", reads)
        return reads

    def _explained(self, reads: Callable[[Any], ReplyT], args: msgspec.Raw) -> ReplyT:
        reply: Any = self.reply
        try:
            found: ReplyT = read_encoded(reads, reply, args, f"The reply to {self.name}")
        except InvalidRequest as wrong:
            raise UnknownServerError(wrong.message) from None
        return found


AnyMethod = Method[Any, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The methods of one kind of endpoint."""

    name: str
    methods: Mapping[str, AnyMethod]
    _requests: Mapping[str, type[Message]] = field(repr=False)
    _readers: Mapping[str, Callable[[Any], Any]] = field(repr=False)

    @classmethod
    def of(cls, name: str, methods: Iterable[AnyMethod]) -> Endpoint:
        """State an endpoint by its methods; raises ValueError for a name that is there twice."""
        listed = tuple(methods)
        known = {method.name: method for method in listed}
        if len(known) < len(listed):
            raise ValueError(f"A {name} states a method twice.")
        requests = {method.name: method.request for method in known.values()}
        return cls(name, known, requests, {method.name: method._reads for method in known.values()})

    def read_request(self, method: str, args: object) -> Any:
        """Return the request in encoded or decoded msgpack, of the type that the method's page states.

        Raises :class:`InvalidRequest` for malformed fields, and `unknown_method` for one that is not known here.
        """
        kind = self._requests.get(method)
        if kind is None:
            raise unknown_method(self.name, method)
        if type(args) is msgspec.Raw:
            try:
                return self._readers[method](args)  # as `read_encoded`, without its call: every batch passes here
            except Exception:  # bytes of a sender, of any kind: `read_encoded` explains them
                return read_encoded(self._readers[method], kind, args, method)
        if not kind.has_bytes:
            try:
                return msgspec.convert(args, kind)  # as `read`, without its call: every batch passes here
            except msgspec.ValidationError:
                pass  # `read` explains it, and takes no arguments at all for none
        return read(kind, args, method)

    def forwarded(self) -> tuple[AnyMethod, ...]:
        """Return what this endpoint forwards to the controller, as the controller serves it: for the cluster alone."""
        return tuple(
            replace(method, role=CLUSTER, token=TokenScope.NOTHING, forwarded=False)
            for method in self.methods.values()
            if method.forwarded
        )
