"""The tool that times a restart after a kill, in miniature: what was synced long ago is not read again."""

from pathlib import Path

from raylog.storage.log.segment import HINT_BYTES
from tools.restart_time import measure


def test_a_restart_after_a_kill_scans_only_what_was_written_last(tmp_path: Path) -> None:
    found = measure(tmp_path, partitions=1, log_bytes=2 * HINT_BYTES + (8 << 20), segment_bytes=1 << 30, cold=True)
    assert found.bytes_kept >= 2 * HINT_BYTES
    assert found.bytes_scanned <= 40 << 20
    assert list(tmp_path.iterdir()) == []
