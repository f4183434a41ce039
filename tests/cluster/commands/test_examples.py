"""Each example that shows one feature runs as its first line shows; the others are in `test_first_examples.py`."""

import json
import re

import pytest

from tests.cluster.commands.documents_support import Reader, example
from tests.cluster.commands.test_first_examples import user

__all__ = ["user"]

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(300)]


def test_words_are_counted_once_by_workers_that_die(user: Reader) -> None:
    printed = user.python(example("exactly_once_word_count.py"), "--address", "local")
    # Ray's own lines may come in the middle of a line of the program.
    assert re.findall(r"a worker died inside transaction (\d+)", printed) == ["3", "5"]
    counts = re.findall(r"\w+: (\d+), expected (\d+)", printed)
    assert len(counts) == 5
    assert all(found == expected for found, expected in counts)


def test_transfers_survive_killed_relays_and_readers(user: Reader) -> None:
    printed = user.python(
        example("transfer.py"), "--address", "local", "--transfers", "70", "--kills", "3"
    ).splitlines()
    assert printed[-3:] == [
        "60 transfers committed, 3 relays and readers killed",
        "events: {'FINISHED': 60}",
        "bank 9400 + fund 600 = 10000 of 10000",
    ]


def test_a_cleaned_topic_gives_the_same_table_from_fewer_records(user: Reader) -> None:
    before, after = user.python(example("compacted_table.py"), "--address", "local").splitlines()
    assert before.startswith("19 accounts from ")
    assert after.startswith("19 accounts from ")
    assert after.endswith(", once the log was cleaned")
    assert int(after.split()[3]) < 10_000


def test_workers_handle_the_orders_of_a_customer_in_order_and_each_once(user: Reader) -> None:
    for _ in range(2):
        printed = user.python(example("worker_pool.py"), "--address", "local")
        assert "400 orders of 40 customers handled, those of each in order: True" in printed


def test_every_member_gets_every_partition_by_an_assignor_of_ones_own(user: Reader) -> None:
    printed = user.python(example("broadcast_assignor.py"), "--address", "local").splitlines()
    assert printed == ["3 workers hold [4, 4, 4] of 4 partitions, and know [40, 40, 40] prices"]


def test_interceptors_sign_and_check(user: Reader) -> None:
    printed = user.python(example("interceptors.py"), "--address", "local").splitlines()
    assert printed == ["refused b'a million euros' at offset 10", "10 stored, 10 read, 1 refused"]


def test_orders_are_closed_unless_they_are_paid_in_time(user: Reader) -> None:
    printed = user.python(example("unpaid_orders.py"), "--address", "local", "--minutes", "0.05").splitlines()
    assert printed == [
        "the book is paid in time: True",
        "the other orders close in 0.05 minutes (--minutes)",
        "closed: chair, lamp",
        "the lamp is paid in time: False",
    ]


def test_half_messages_are_decided_by_their_checker(user: Reader) -> None:
    printed = user.python(example("half_messages.py"), "--address", "local").splitlines()
    assert printed[-2:] == ["committed: rent lunch", "without decision: 0"]


def test_orders_of_a_queue_keep_their_order_and_a_bad_one_is_dead(user: Reader) -> None:
    *customers, letter = user.python(example("work_queue.py"), "--address", "local").splitlines()
    handled = [json.loads(line.partition(": ")[2]) for line in customers]
    assert len(handled) == 6
    assert all(numbers == sorted(numbers) for numbers in handled)
    assert sorted(number for numbers in handled for number in numbers) == [
        number for number in range(60) if number != 13
    ]
    assert letter == "dead letter: order 13: order 13 has no address"


def test_a_mail_is_tried_again_becomes_a_dead_letter_and_comes_back(user: Reader) -> None:
    printed = user.python(example("redrive.py"), "--address", "local").splitlines()
    sent, tried, letter, again = (line for line in printed if not line.startswith("<QueueMessage"))  # warnings
    assert sent == "sent: anna@example.org, carl@example.org"
    assert tried.startswith("tried 4 times, in ")
    assert float(tried.split()[-2]) >= 0.7  # the three pauses
    assert letter == "dead letter: bob@example,org, delivery_limit after 4 hand-outs"
    assert again == "sent: anna@example.org, bob@example,org, carl@example.org"
