"""Recovery of a voter from a snapshot and a log on disk."""

from raylog.core.quorum import LogHistory, Span, put_together


def log(*epochs: int, start: int = 0) -> LogHistory:
    """History of a log of one-record batches, without the record before its start."""
    history = LogHistory(end=start, start=start)
    history.append([Span(start + place, start + place + 1, epoch) for place, epoch in enumerate(epochs)])
    return history


def test_without_a_snapshot_the_log_has_to_begin_at_the_beginning() -> None:
    assert put_together(log(1, 2), None).lost == ""
    assert "its log begins at 3" in put_together(log(1, start=3), None).lost


def test_a_log_that_begins_behind_its_snapshot_has_a_gap() -> None:
    assert "its snapshot ends at 2" in put_together(log(1, start=3), (2, 1)).lost


def test_a_log_that_goes_on_from_the_snapshot_knows_the_epoch_before() -> None:
    found = put_together(log(2, 4, start=3), (3, 2))
    assert (found.history.epochs, found.history.start, found.history.end) == ([(2, 2), (4, 4)], 3, 5)
    assert (found.lost, found.drop_before, found.restart_at) == ("", None, None)


def test_what_the_snapshot_stands_for_goes() -> None:
    found = put_together(log(1, 2, 2), (2, 2))
    assert (found.drop_before, found.restart_at) == (2, None)
    assert (found.history.epochs, found.history.start, found.history.end) == ([(2, 1)], 2, 3)


def test_a_shorter_or_different_log_begins_again_behind_the_snapshot() -> None:
    for other in (log(1, 2), log(1, 2, 2, 2), log(3, start=1)):
        found = put_together(other, (3, 5))
        assert (found.restart_at, found.drop_before, found.lost) == (3, None, "")
        assert (found.history.epochs, found.history.start, found.history.end) == ([(5, 2)], 3, 3)
