"""Where a due record goes: what a cache says makes nothing undeliverable, and nothing goes to internal topics."""

from __future__ import annotations

from typing import Any, cast

from raylog.actors.scheduling.decoded_batches import Body
from raylog.actors.scheduling.delivering import TURN_BYTES, TURN_KEYS, Deliveries
from raylog.actors.scheduling.placing import Facts, Placing
from raylog.base.errors import ConnectionFailed
from raylog.core.scheduling.envelope import BY_KEY, Envelope
from raylog.core.scheduling.events import Resolved
from raylog.core.scheduling.keys import key_of
from raylog.protocol.broker import MetadataPartition, MetadataReply, MetadataTopic

DEAD = "__undeliverable"


class Host:
    """A controller that knows some topics, and counts its requests."""

    partition = "__scheduled-0"

    def __init__(self) -> None:
        self.topics: dict[str, tuple[str, int]] = {}
        self.is_away = False
        self.requested: list[list[str]] = []
        self.tasks: list[Any] = []

    def now_ms(self) -> int:
        return 1_000

    async def metadata(self, names: list[str]) -> MetadataReply:
        self.requested.append(names)
        if self.is_away:
            raise ConnectionFailed("away")
        return MetadataReply("c", 0, [], [self.row(name) for name in names])

    def row(self, name: str) -> MetadataTopic:
        found = self.topics.get(name)
        if found is None:
            return MetadataTopic(3, "", name, False, [], {})
        row = MetadataPartition(0, 1, 0, "h", 1, [1], [1], [])
        return MetadataTopic(0, found[0], name, False, [row] * found[1], {"max.message.bytes": "5000"})

    async def ensure_topic(self, name: str) -> Any:
        return type("Made", (), {"topic_id": "uuuu", "partitions": 1})()

    def spawn(self, work: Any, name: str) -> None:
        self.tasks.append(work)


class Owner:
    """The role, with records that the test made up."""

    def __init__(self, records: dict[int, Body]) -> None:
        self.host: Any = Host()
        self.placing = Placing(cast(Any, self.host), DEAD)
        self.machine: Any = type("Machine", (), {"undeliverable": set(), "unresolved": set()})()
        self.bodies: Any = type("Bodies", (), {"read": staticmethod(records.__getitem__)})()
        self.lateness: Any = None
        self.fed: list[Any] = []
        self.deliveries = Deliveries(self)

    def now_ms(self) -> int:
        return 1_000

    def feed(self, event: Any) -> None:
        self.fed.append(event)

    def failed(self, error: BaseException) -> None:
        raise error

    async def resolved(self, *keys: int) -> Resolved:
        self.fed.clear()
        self.deliveries.resolve(keys)
        while self.host.tasks:
            await self.host.tasks.pop()
        (event,) = self.fed
        assert isinstance(event, Resolved)
        return event


def body(offset: int, topic: str, topic_id: str, partition: int = BY_KEY, size: int = 10) -> Body:
    return Body(offset, b"k", b"v" * size, [Envelope(topic, topic_id, partition, 0).header()])


KEY = key_of(1_000, 1)


async def test_a_record_is_undeliverable_only_after_a_fresh_look() -> None:
    owner = Owner({1: body(1, "t", "new", 2)})
    owner.host.topics["t"] = ("old", 1)
    await owner.placing.look_up(["t"])
    owner.host.topics["t"] = ("new", 3)
    assert [target.lane for target in (await owner.resolved(KEY)).targets] == [("new", 2)]
    owner.host.topics["t"] = ("newest", 3)
    owner.host.requested.clear()
    await owner.placing.look_up(["t"])
    assert [target.topic for target in (await owner.resolved(KEY)).targets] == [DEAD]
    assert ["t"] in owner.host.requested[1:], "it was looked up again before the record was dead"


async def test_one_turn_reads_a_bounded_number_of_bytes() -> None:
    """All bodies of a round at once were half a gigabyte, at every new leader again."""
    for size, most in ((512 * 1024, TURN_KEYS), (16 * 1024, TURN_BYTES // (16 * 1024) + 1), (10, 1_000)):
        value = b"v" * size
        owner = Owner({offset: body(offset, "t", "id")._replace(value=value) for offset in range(1, 1_001)})
        owner.host.topics["t"] = ("id", 1)
        await owner.placing.look_up(["t"])
        event = await owner.resolved(*(key_of(1_000, offset) for offset in range(1, 1_001)))
        assert most // 2 < len(event.targets) <= most, f"of {size} bytes each"


async def test_a_record_waits_while_it_is_not_sure_that_its_topic_is_deleted() -> None:
    owner = Owner({1: body(1, "t", "new")})
    owner.host.topics["t"] = ("old", 1)
    await owner.placing.look_up(["t"])
    owner.host.is_away = True
    (target,) = (await owner.resolved(KEY)).targets
    assert (target.topic, target.lane) == ("t", ("new", -1))


async def test_nothing_goes_to_an_internal_topic() -> None:
    owner = Owner({1: body(1, "__consumer_offsets", "ooo")})
    owner.host.topics["__consumer_offsets"] = ("ooo", 50)
    (target,) = (await owner.resolved(KEY)).targets
    assert target.topic == DEAD
    assert "own" in owner.placing.causes[1]
    owner.placing.delivered(DEAD, [KEY])
    assert not owner.placing.causes, "a cause is forgotten when the record is stored with it"


async def test_one_turn_reads_a_part_of_large_records() -> None:
    records = {offset: body(offset, "t", "i", 0, 1_000_000) for offset in range(1, 200)}
    owner = Owner(records)
    owner.host.topics["t"] = ("i", 1)
    keys = [key_of(1_000, offset) for offset in records]
    targets = (await owner.resolved(*keys)).targets
    assert [target.key for target in targets] == keys[: len(targets)]
    assert len(targets) == 64
    assert targets[0].limit_bytes == 5_000
    assert len((await owner.resolved(keys[0])).targets) == 1


def test_a_record_that_cannot_be_opened_is_undeliverable() -> None:
    host: Any = Host()
    placing = Placing(host, DEAD)
    facts = Facts.of(KEY, Body(1, None, None, None, "no columns"))
    assert placing.target(facts, is_refused=False).topic == DEAD
    assert "no columns" in placing.causes[1]


async def test_a_record_without_id_of_its_topic_is_undeliverable() -> None:
    owner = Owner({1: body(1, "none", ""), 2: body(2, "t", "")})
    owner.host.topics["t"] = ("i", 1)
    targets = (await owner.resolved(KEY, key_of(1_000, 2))).targets
    assert [target.topic for target in targets] == [DEAD, DEAD]
