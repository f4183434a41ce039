"""`raylog log dump` on folders that the storage engine wrote."""

import json
from pathlib import Path

import pytest

from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import encode_batch
from tests.unit.cli.support import raylog, refusal
from tests.unit.storage.logs import NOW, open_log


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition of two segments and a few batches of two records."""
    place = tmp_path / "data" / "flights-0"
    place.parent.mkdir()
    log = open_log(place, segment_bytes=700)
    for number in range(8):
        keys: list[bytes | None] = [b"UA", None]
        values: list[bytes | None] = [b"value-%d" % number, b"\xff\x00"]
        log.append_as_leader(encode_batch(keys, values, [NOW, NOW + 1], [[("source", b"csv")], None]), 3, NOW)
    log.close()
    assert len(list(place.glob("*.log"))) > 1
    return place


def test_all_segments_of_a_folder_are_shown_batch_by_batch(folder: Path) -> None:
    outcome = raylog("log", "dump", str(folder))
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].startswith(str(folder / "00000000000000000000.log"))
    assert lines[1].startswith("  @0  offsets 0-1  2 records  ")
    assert "  epoch 3  2023-11-14T22:13:20.001Z  crc " in lines[1]
    assert sum("offsets " in line for line in lines) == 8


def test_records_are_shown_as_text_or_as_hexadecimal_digits(folder: Path) -> None:
    outcome = raylog("log", "dump", "--records", str(folder / "00000000000000000000.log"))
    assert "      0  2023-11-14T22:13:20.000Z  key UA  value value-0  headers source=csv" in outcome.out
    assert "      1  2023-11-14T22:13:20.001Z  key null  value 0xff00" in outcome.out


def test_the_dump_begins_with_the_batch_that_holds_the_offset(folder: Path) -> None:
    outcome = raylog("log", "dump", "--offset", "13", str(folder))
    assert [line.split("  ")[2] for line in outcome.out.splitlines() if "offsets " in line] == [
        "offsets 12-13",
        "offsets 14-15",
    ]


def test_a_marker_is_shown_with_what_it_decides(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_marker(TxnMarker(7, 1, 0, committed=False), 3, NOW)
    log.close()
    lines = raylog("log", "dump", str(tmp_path / "t-0")).out.splitlines()
    assert "  producer 7/1 sequence -1  transactional  control  abort  magic 2  " in lines[1]


def test_json_gives_every_row_as_an_object(folder: Path) -> None:
    outcome = raylog("log", "dump", "--json", "--records", str(folder))
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["row"] for row in rows[:3]] == ["batch", "record", "record"]
    assert rows[0]["record_count"] == 2
    assert rows[1] | {"file": ""} == {
        "row": "record",
        "file": "",
        "offset": 0,
        "timestamp": NOW,
        "key": "UA",
        "value": "value-0",
        "headers": [{"name": "source", "value": "csv"}],
    }
    assert rows[2]["value_base64"] == "/wA="


def test_damage_is_shown_with_its_position_and_fails_the_command(folder: Path) -> None:
    path = folder / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    size = 12 + int.from_bytes(data[8:12], "big")
    data[size - 1] ^= 1  # inside the first batch's body
    data[2 * size + 16] = 9  # the third batch's magic
    path.write_bytes(data)
    outcome = raylog("log", "dump", str(path))
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    assert lines[1].startswith("  @0  ")
    assert lines[1].endswith("DAMAGED: the checksum does not match")
    assert any(line.startswith(f"  @{2 * size}  DAMAGED: magic 9") for line in lines)
    assert "damaged" in outcome.err


def test_a_cut_tail_is_damage_and_what_is_before_it_is_shown(folder: Path) -> None:
    path = sorted(folder.glob("*.log"))[-1]
    path.write_bytes(path.read_bytes()[:-5])
    outcome = raylog("log", "dump", str(path))
    assert outcome.code == 1
    assert "cut off" in outcome.out


def test_a_wrong_place_says_what_to_give_instead(folder: Path, tmp_path: Path) -> None:
    assert "does not exist; give a partition's folder" in refusal(raylog("log", "dump", str(tmp_path / "no")), 1)
    assert "choose one of those in it: flights-0" in refusal(raylog("log", "dump", str(folder.parent)), 1)
    other = next(path for path in folder.iterdir() if path.suffix != ".log")
    assert "is not a segment" in refusal(raylog("log", "dump", str(other)), 1)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no .log file" in refusal(raylog("log", "dump", str(empty)), 1)
