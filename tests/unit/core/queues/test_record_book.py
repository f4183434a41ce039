"""What a book of records answers about the records in it."""

from raylog.core.queues.book import RecordBook
from raylog.core.queues.states import ACQUIRED, ARCHIVING, DEAD, Cell


def test_the_first_record_in_a_state_is_found_from_any_offset() -> None:
    book = RecordBook(10)
    assert book.first_in(ARCHIVING, 0) is None
    book.put(10, 30, Cell(ACQUIRED, 1))
    book.put(15, 18, Cell(ARCHIVING, 1))
    book.put(25, 26, Cell(ARCHIVING, 1))
    assert [book.first_in(ARCHIVING, first) for first in (0, 10, 16, 18, 25)] == [15, 15, 16, 25, 25]
    assert book.first_in(ARCHIVING, 26) is None
    book.put(15, 18, DEAD)
    assert book.first_in(ARCHIVING, 0) == 25
