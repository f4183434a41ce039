"""Requests that wait for their answers."""

from raylog.actors.request_table import RequestTable
from raylog.base.errors import NotCoordinator
from raylog.rpc.framing import NO_PAYLOAD, Buffers


class Waiting:
    """A request that remembers how it was answered."""

    def __init__(self) -> None:
        self.is_deserted = False
        self.answers: list[object] = []

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        self.answers.append(args)

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)


def test_a_request_is_taken_once() -> None:
    table: RequestTable[Waiting] = RequestTable()
    request = Waiting()
    number = table.remember(request)
    assert table[number] is request
    assert table.pop(number, None) is request
    assert table.pop(number, None) is None


def test_numbers_are_not_used_again() -> None:
    table: RequestTable[Waiting] = RequestTable()
    first = table.remember(Waiting())
    table.pop(first)
    assert table.remember(Waiting()) != first


def test_requests_of_closed_connections_are_forgotten_unanswered() -> None:
    table: RequestTable[Waiting] = RequestTable()
    deserted, there = Waiting(), Waiting()
    number = table.remember(deserted)
    table.remember(there)
    deserted.is_deserted = True
    assert table.take_deserted() == [number]
    assert len(table) == 1
    assert deserted.answers == []


def test_every_open_request_can_be_refused_at_once() -> None:
    table: RequestTable[Waiting] = RequestTable()
    waiting = [Waiting(), Waiting()]
    for request in waiting:
        table.remember(request)
    error = NotCoordinator("loading")
    table.fail_all(error)
    assert [request.answers for request in waiting] == [[error], [error]]
    assert len(table) == 0
