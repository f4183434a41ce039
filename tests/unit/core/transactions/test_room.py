"""How many transactional ids there may be, and how much those of a token's prefix may hold."""

from typing import Any

from raylog.base.errors import InvalidRequest, LimitReached
from raylog.core.transactions.room import GIVE_WAY_MAX, ID_CHARACTERS_MAX, PREFIXES_MAX, UNUSED_MS
from raylog.core.transactions.settings import TxnSettings
from raylog.protocol.transactions import TxnPartition
from tests.unit.core.transactions.context import ORDERS, Transactions


def made(txns: Transactions, name: str, prefix: str = "") -> int:
    """A producer of an id, made by the holder of a token with this prefix; its request."""
    return txns.init(name=name, prefix=prefix)


def listed(txns: Transactions) -> set[str]:
    rows: Any = txns.list()
    return {row[0] for row in rows}


def refused(txns: Transactions, request: int) -> bool:
    return isinstance(txns.refusals.get(request), LimitReached)


def test_a_coordinator_keeps_so_many_ids() -> None:
    txns = Transactions(TxnSettings(ids_max=3))
    for number in range(3):
        assert txns.reply(made(txns, f"id-{number}"))
    full = made(txns, "id-3")
    assert "transactional.id.max" in str(txns.refusals[full])
    assert txns.reply(made(txns, "id-0")), "one that is there may have another producer"
    txns.machine.validate()


def test_the_longest_unused_ids_give_way_to_new_ones() -> None:
    txns = Transactions(TxnSettings(ids_max=2 * GIVE_WAY_MAX))
    open_one = txns.begun(ORDERS, name="open")
    for number in range(2 * GIVE_WAY_MAX - 1):
        made(txns, f"id-{number:03}")
        txns.now_ms += 1
    txns.now_ms += UNUSED_MS - 2 * GIVE_WAY_MAX
    assert refused(txns, made(txns, "early"))
    txns.now_ms += 2 * GIVE_WAY_MAX
    made(txns, "id-000")
    assert txns.reply(made(txns, "new"))
    names = listed(txns)
    assert len(names) == GIVE_WAY_MAX + 1
    assert {"open", "new", "id-000"} <= names, "neither what is open nor what was used since"
    assert not {f"id-{number:03}" for number in range(1, GIVE_WAY_MAX + 1)} & names
    assert txns.reply(txns.end(open_one, name="open"))
    assert names == listed(txns.restarted())


def test_a_prefix_of_a_token_has_a_share() -> None:
    txns = Transactions(TxnSettings(ids_max=10, prefix_ids_max=2))
    made(txns, "mine-before")
    assert txns.reply(made(txns, "mine-1", "mine-"))
    full = made(txns, "mine-2", "mine-")
    assert "transactional.id.prefix.max" in str(txns.refusals[full])
    assert txns.reply(made(txns, "mine-1", "mine-"))
    assert txns.reply(made(txns, "yours-1", "yours-"))
    assert txns.reply(made(txns, "mine-2")), "a secret has the room of the coordinator"
    again = txns.restarted()
    assert refused(again, made(again, "mine-3", "mine-"))
    again.now_ms += again.settings.id_expiration_ms + again.settings.expiration_check_ms
    again.tick()
    assert again.reply(made(again, "mine-3", "mine-")), "unused ones have expired"
    again.machine.validate()


def test_open_transactions_of_a_prefix_have_so_many_participants() -> None:
    txns = Transactions(TxnSettings(prefix_participants_max=5))
    places = [TxnPartition("o" * 32, "orders", number) for number in range(6)]
    first, second = txns.producer("mine-1"), txns.producer("mine-2")
    assert txns.reply(txns.add(first, *places[:3], name="mine-1", prefix="mine-")) == []
    assert txns.reply(txns.add(first, *places[:3], name="mine-1", prefix="mine-")) == []
    full = txns.add(second, *places[:3], name="mine-2", prefix="mine-")
    assert "transactional.id.prefix.partitions.max" in str(txns.refusals[full])
    assert txns.reply(txns.add(second, *places[:2], name="mine-2", prefix="mine-")) == []
    txns.end(first, name="mine-1")
    txns.write_markers()
    assert txns.reply(txns.add(second, *places[:5], name="mine-2", prefix="mine-")) == []
    other = txns.producer("other")
    assert txns.reply(txns.add(other, *places, name="other", prefix="")) == []
    txns.machine.validate()


def test_an_absurd_id_is_refused(txns: Transactions) -> None:
    long = made(txns, "x" * (ID_CHARACTERS_MAX + 1))
    assert isinstance(txns.refusals[long], InvalidRequest)
    assert txns.reply(made(txns, "x" * ID_CHARACTERS_MAX))


def test_prefixes_are_followed_up_to_a_limit() -> None:
    txns = Transactions(TxnSettings(prefix_ids_max=1))
    for number in range(2 * PREFIXES_MAX):
        assert txns.reply(made(txns, f"{number}-a", f"{number}-"))
    for number in range(2 * PREFIXES_MAX):
        assert refused(txns, made(txns, f"{number}-b", f"{number}-"))
    txns.machine.validate()
