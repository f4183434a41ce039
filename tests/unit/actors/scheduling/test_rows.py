"""Rows of the scheduler are stored in these bytes: a log that was written before is read after."""

import pytest

from raylog.actors.scheduling.rows import decode_key, encode_key
from raylog.core.scheduling.keys import TOMBSTONE, key_of
from raylog.core.scheduling.rows import (
    Acked,
    Batch,
    Frontier,
    HalfDecision,
    HalvesDecided,
    Keys,
    Moved,
    NameColumn,
    Parked,
    Refused,
    Round,
    Row,
    RunWritten,
    Verdict,
)

KEYS = Keys([key_of(1_000, 5), key_of(1_001, 4)])
PARKED = Parked("a", "x", -1, KEYS, NameColumn([0, 258]))
STORED: dict[str, Row] = {
    "94019196a46a6f6273a1740307289292cd03e8cd03e99205049195a161a178ff9292cd03e8cd03e9920504c4200000000000000000000000"
    "0000000000020100000000000000000000000000009194a174030728": Round(
        (Batch("jobs", "t", 3, 7, 40, KEYS),), (PARKED,), (Acked("t", 3, 7, 40),)
    ),
    "94039291cd03e8910591cd07d0c41002010000000000000000000000000000": Moved(
        Keys([key_of(1_000, 5)]), (2_000,), NameColumn([258])
    ),
    "960aa17403030908": Refused("t", 3, 3, 9, 8),
    "98060409c200ff4dc40401020304": RunWritten(4, 9, False, 0, -1, 77, b"\1\2\3\4"),
    "93089195a167a174a7554e4b4e4f574e02cd01f463": HalvesDecided((HalfDecision("g", "t", Verdict.UNKNOWN, 2, 500),), 99),
}


@pytest.mark.parametrize(("stored", "row"), STORED.items(), ids=[type(row).__name__ for row in STORED.values()])
def test_a_row_is_stored_in_these_bytes(stored: str, row: Row) -> None:
    assert encode_key(row).hex() == stored
    assert decode_key(bytes.fromhex(stored)) == row


@pytest.mark.parametrize("frontier", [Frontier(), Frontier([key_of(7, 3)]), Frontier([key_of(7, 3) | TOMBSTONE])])
def test_a_frontier_keeps_its_tombstone(frontier: Frontier) -> None:
    assert Frontier.from_wire(frontier.to_wire()) == frontier


def test_columns_of_keys_are_equally_long() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Keys.from_wire([[1, 2], [3]])
