"""How far something long has come: reported about once a second, and not at all when it is soon done."""

from raylog.client.progress import EVERY_S, QUIET_S, Progress


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_soon_done_is_not_reported() -> None:
    clock, reported = Clock(), list[str]()
    progress = Progress(reported.append, clock)
    for _ in range(10):
        progress.at(1, 2, "replicas ready")
        clock.now_s += QUIET_S / 11
    assert not reported


def test_a_line_comes_once_a_second() -> None:
    clock, reported = Clock(), list[str]()
    progress = Progress(reported.append, clock)
    for number in range(300):
        clock.now_s = 100.0 + QUIET_S + number * EVERY_S / 100
        progress.at(1_000 + number, 10_000, "partitions asleep")
    assert reported == [
        "1,000 of 10,000 partitions asleep",
        "1,100 of 10,000 partitions asleep",
        "1,200 of 10,000 partitions asleep",
    ]


def test_a_line_is_not_repeated() -> None:
    clock, reported = Clock(), list[str]()
    progress = Progress(reported.append, clock)
    for _ in range(5):
        clock.now_s += QUIET_S + EVERY_S
        progress.at(1, 2, "replicas ready")
    clock.now_s += EVERY_S
    progress.at(0, 0, "replicas ready")
    assert reported == ["1 of 2 replicas ready"]


def test_without_a_listener_nothing_is_reported() -> None:
    clock = Clock()
    progress = Progress(None, clock)
    clock.now_s += QUIET_S
    progress.at(1, 2, "replicas ready")
