"""The file with the high watermark: what it promises through crashes, cuts and damage."""

from pathlib import Path

import pytest

from raylog.storage import filesystem
from raylog.storage.errors import DiskFull
from raylog.storage.log import kept_watermark
from raylog.storage.log.kept_watermark import HIGH_WATERMARK, KeptWatermark


def kept(folder: Path, end: int = 1000) -> int:
    return KeptWatermark(folder, end).offset


def keep(folder: Path, offset: int) -> KeptWatermark:
    file = KeptWatermark(folder, 1000)
    assert file.want(offset)
    file.keep()
    return file


def test_what_was_kept_is_there_for_the_next_life(tmp_path: Path) -> None:
    assert kept(tmp_path) == 0
    keep(tmp_path, 120)
    assert kept(tmp_path) == 120


@pytest.mark.parametrize(
    "content",
    [b"", b"120", b"120 00000000\n", b"\xff\xfe", b"-5 00000000\n", b"9" * 40 + b" 0\n", b"120 4b2c1a0", b" \n"],
)
def test_a_damaged_file_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / HIGH_WATERMARK).write_bytes(content)
    assert kept(tmp_path) == 0


@pytest.mark.parametrize("bit", range(0, 13 * 8, 5))
def test_a_flipped_bit_never_makes_another_watermark(tmp_path: Path, bit: int) -> None:
    keep(tmp_path, 120)
    path = tmp_path / HIGH_WATERMARK
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)
    assert kept(tmp_path) == 0


def test_a_log_that_lost_its_end_bounds_the_watermark_for_good(tmp_path: Path) -> None:
    keep(tmp_path, 120)
    assert kept(tmp_path, end=80) == 80
    assert kept(tmp_path, end=1000) == 80, "what is appended at 80 later is not what stood there"


def test_a_cut_lowers_it_at_once_and_a_pending_write_does_not_raise_it(tmp_path: Path) -> None:
    file = keep(tmp_path, 120)
    file.want(150)
    file.lower(100)
    file.keep()
    assert kept(tmp_path) == 100
    file.lower(110)
    assert kept(tmp_path) == 100


def test_a_full_disk_lowers_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = keep(tmp_path, 120)

    def full(path: Path, *_: object, **__: object) -> None:
        raise DiskFull(f"write {path}", OSError(28, "No space left on device"))

    monkeypatch.setattr(kept_watermark, "write_atomically", full)
    file.lower(100)
    assert (file.offset, kept(tmp_path)) == (0, 0)


def test_a_closed_file_is_left_to_its_next_owner(tmp_path: Path) -> None:
    file = keep(tmp_path, 120)
    file.want(150)
    file.close()
    file.keep()
    file.want(160)
    file.keep()
    assert kept(tmp_path) == 120


def test_a_write_is_one_new_file_put_in_the_place_of_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("open", "pwrite", "fsync", "replace", "close"):
        real = getattr(filesystem, name)

        def counted(*args: object, _name: str = name, _real: object = real, **options: object) -> object:
            calls.append(_name)
            return _real(*args, **options)  # type: ignore[operator]  # one of the functions above

        monkeypatch.setattr(filesystem, name, counted)
    file = KeptWatermark(tmp_path, 1000)
    calls.clear()
    file.want(120)
    file.keep()
    assert calls == ["open", "pwrite", "close", "replace"]
    file.want(120)
    file.keep()
    assert len(calls) == 4, "nothing is written when nothing has moved"


def test_a_watermark_that_was_written_is_written_again_to_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, 120)
    file = KeptWatermark(tmp_path, 1000)
    synced: list[int] = []
    monkeypatch.setattr(filesystem, "fsync", synced.append)
    file.keep(durable=True)
    assert len(synced) == 2, "the file and its folder"
    file.keep(durable=True)
    assert len(synced) == 2
