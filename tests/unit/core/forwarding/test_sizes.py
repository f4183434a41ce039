"""A forwarder's progress fits its log, however many places the records that it sends on name."""

from __future__ import annotations

import random

from raylog.core.forwarding import events as ev
from raylog.protocol.message import replace
from tests.unit.core.forwarding.desk import Desk

ROW_BYTES = 1_000_000
"""What `__forwarding` takes, and a little less."""


def add_piece(desk: Desk, names: list[str]) -> None:
    first = desk.log_end
    parts = tuple(((name, 0), (first + index,)) for index, name in enumerate(names))
    desk.pieces.append(ev.Piece(first, first + len(names), 0, parts))


def test_places_without_number_do_not_make_a_note_too_large() -> None:
    desk = Desk()
    names = [f"{number:05}-{'t' * 200}" for number in range(8_000)]
    for name in names:
        desk.add_topic(name)
    for start in range(0, len(names), 500):
        add_piece(desk, names[start : start + 500])
    desk.begin()
    desk.settle(1_000_000)
    assert desk.largest_progress < ROW_BYTES
    assert [desk.holds(name) for name in names] == [[number] for number in range(len(names))]
    assert desk.producers > 7, "all lanes began again under other producer ids"


def test_places_that_do_not_exist_do_not_make_a_note_too_large() -> None:
    desk = Desk()
    for start in range(0, 8_000, 1_000):
        add_piece(desk, [f"{number:05}-{'t' * 200}" for number in range(start, start + 1_000)])
    desk.begin()
    desk.settle(1_000_000)
    assert desk.largest_progress < ROW_BYTES
    assert sorted(desk.holds("dead")) == list(range(8_000))


def test_what_a_place_got_before_is_not_sent_there_again_by_a_successor() -> None:
    chance = random.Random(7)
    desk = Desk()
    names = [f"{number:04}-{'t' * 240}" for number in range(1_500)]
    for name in names:
        desk.add_topic(name)
    for _ in range(16):
        add_piece(desk, chance.sample(names, 400))
    desk.begin()
    while desk.todo:
        if chance.random() < 0.001:
            desk.begin()
        desk.work()
    sent = [offset for name in names for offset in desk.holds(name)]
    assert len(sent) == len(set(sent)) == 16 * 400
    assert desk.producers > 7
    assert desk.largest_progress < ROW_BYTES


def test_a_lane_whose_epochs_end_goes_on_with_another_producer() -> None:
    desk = Desk()
    target = desk.add_topic("orders")
    desk.add_piece(2, "orders")
    desk.begin()
    desk.settle()
    (state,) = desk.progress.routes
    desk.progress = replace(desk.progress, routes=(replace(state, epoch=30_000, next_sequence=0),))
    desk.begin()
    desk.add_piece(2, "orders")
    desk.settle()
    assert target.records == [0, 1, 2, 3]
    assert desk.producers == 8
    assert desk.machine.progress.routes[0].epoch == 0
