"""A replica on a broken disk restarts less and less often; one failure costs no pause."""

from pathlib import Path

import pytest

from raylog.actors.processes.restart_notes import RestartNotes
from raylog.core.restart_pause import CALM_MS, LONGEST_PAUSE_MS, RestartHistory, after_failure, pause_ms


def test_the_pause_doubles_with_each_failure_up_to_a_limit() -> None:
    history, now, pauses = RestartHistory(), 5_000, []
    for _ in range(40):
        history = after_failure(history, now)
        pauses.append(pause_ms(history, now))
        now += pauses[-1] + 100
    assert pauses[:7] == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000]
    assert set(pauses[7:]) == {LONGEST_PAUSE_MS}
    assert LONGEST_PAUSE_MS < CALM_MS


def test_after_a_calm_time_or_a_reboot_a_failure_is_the_first_again() -> None:
    history = RestartHistory(failures=9, failed_ms=1_000_000)
    assert pause_ms(history, 1_000_000 + CALM_MS) == 0
    assert after_failure(history, 1_000_000 + CALM_MS).failures == 1
    assert pause_ms(history, 5_000) == 0
    assert after_failure(history, 5_000).failures == 1


def test_notes_are_kept_by_name_and_survive_the_process(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    for _ in range(3):
        RestartNotes("replica:t-0", folder).note_failure()
    assert RestartNotes("replica:t-0", folder).pause_s() == 2
    assert RestartNotes("replica:t-1", folder).pause_s() == 0


@pytest.mark.parametrize("content", ["", "x y", "1", "9 9 9"])
def test_a_note_that_cannot_be_read_costs_nothing(tmp_path: Path, content: str) -> None:
    notes = RestartNotes("replica:t-0", tmp_path / "notes")
    notes.note_failure()
    next((tmp_path / "notes").iterdir()).write_text(content)
    assert notes.pause_s() == 0
    RestartNotes("replica:t-0", tmp_path / "none" / "there").note_failure()


def test_a_folder_that_others_may_write_to_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    for _ in range(3):
        RestartNotes("replica:t-0", folder).note_failure()
    folder.chmod(0o777)
    assert RestartNotes("replica:t-0", folder).pause_s() == 0
