"""The order of events and effects, which every shell and every simulated process takes from the runner."""

from collections.abc import Callable

import pytest

from raylog.actors.runner import Runner
from raylog.core.outbox import Outbox


class Disk:
    """A log of which only the positions are real."""

    def __init__(self) -> None:
        self.written = self.durable = self.kicks = 0

    def end(self) -> int:
        return self.written

    def durable_end(self) -> int:
        return self.durable

    def kick(self) -> None:
        self.kicks += 1


class Machine:
    """Takes strings: ``write x`` writes and answers x behind the disk, anything else comes out at once."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.performed: list[str] = []
        self.defects: list[str] = []
        self.on_effect: Callable[[str], str | None] = lambda _: None
        self.runner: Runner[str, str] = Runner(
            self.step, {str: self.carry_out}, self.disk, on_defect=self.defects.append
        )

    def step(self, event: str) -> Outbox[str]:
        if event == "defect":
            raise ValueError("a defect")
        out: Outbox[str] = Outbox()
        word, _, rest = event.partition(" ")
        if word == "write":
            self.disk.written += 1
            out.after_sync.append(rest)
        else:
            out.now.extend(event.split())
        return out

    def carry_out(self, effect: str) -> str | None:
        self.performed.append(effect)
        return self.on_effect(effect)

    def synced(self, end: int) -> None:
        self.disk.durable = end
        self.runner.release()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_effect_waits_until_everything_written_with_it_is_durable(machine: Machine) -> None:
    for event in ("write a", "write b"):
        machine.runner.feed(event)
    assert machine.performed == []
    machine.synced(1)
    assert machine.performed == ["a"]
    machine.synced(2)
    assert machine.performed == ["a", "b"]
    assert machine.disk.kicks == 2


def test_an_effect_of_a_durable_log_waits_for_nothing(machine: Machine) -> None:
    machine.disk.written = machine.disk.durable = 7
    machine.step = lambda event: _after_sync(event)  # type: ignore[method-assign]
    machine.runner = Runner(machine.step, {str: machine.carry_out}, machine.disk, on_defect=machine.defects.append)
    machine.runner.feed("a")
    assert machine.performed == ["a"]


def test_a_waiting_effect_is_not_overtaken_by_a_later_one_that_need_not(machine: Machine) -> None:
    machine.runner.feed("write a")
    machine.disk.durable = machine.disk.written = 1
    machine.runner.perform(_after_sync("b"))
    assert machine.performed == ["a", "b"]


def test_what_an_effect_brings_about_comes_behind_the_rest_of_its_step(machine: Machine) -> None:
    machine.on_effect = lambda effect: machine.runner.feed("inner") if effect == "one" else None
    machine.runner.feed("one two")
    assert machine.performed == ["one", "two", "inner"]


def test_the_outcome_of_an_effect_is_the_next_event(machine: Machine) -> None:
    machine.on_effect = lambda effect: f"after-{effect}" if effect in {"one", "two", "a"} else None
    machine.runner.feed("one two")
    assert machine.performed == ["one", "two", "after-one", "after-two"]
    machine.runner.feed("write a")
    machine.synced(1)
    assert machine.performed[4:] == ["a", "after-a"]


def test_a_process_that_dies_in_an_effect_does_not_take_its_outcome(machine: Machine) -> None:
    def dies(effect: str) -> str:
        machine.runner.end()
        return f"after-{effect}"

    machine.on_effect = dies
    machine.runner.feed("one")
    assert machine.performed == ["one"]
    assert machine.runner.is_over


def test_a_release_inside_an_effect_comes_behind_the_rest_of_its_step(machine: Machine) -> None:
    machine.runner.feed("write a")
    machine.on_effect = lambda effect: machine.synced(1) if effect == "one" else None
    machine.runner.feed("one two")
    assert machine.performed == ["one", "two", "a"]


def test_an_effect_can_have_what_waits_carried_out_before_itself(machine: Machine) -> None:
    machine.runner.feed("write a")

    def settle(effect: str) -> None:
        if effect == "one":
            machine.disk.durable = 1
            machine.runner.settle()
            machine.performed.append("cut")

    machine.on_effect = settle
    machine.runner.feed("one two")
    assert machine.performed == ["one", "a", "cut", "two"]


def test_a_truncation_leaves_nothing_to_wait_for(machine: Machine) -> None:
    machine.disk.written = 4
    machine.runner.feed("write a")
    machine.disk.written = 2
    machine.synced(2)
    assert machine.performed == ["a"]


def test_after_a_defect_nothing_is_taken_or_carried_out_any_more(machine: Machine) -> None:
    machine.runner.feed("write a")
    with pytest.raises(ValueError, match="a defect"):
        machine.runner.feed("defect")
    assert machine.defects == ["'defect' could not be carried out: ValueError('a defect')"]
    machine.runner.feed("b")
    machine.synced(9)
    assert machine.performed == []
    assert machine.runner.is_over


def test_a_process_that_dies_between_two_effects_omits_the_second(machine: Machine) -> None:
    machine.on_effect = lambda _: machine.runner.end()
    machine.runner.feed("one two")
    assert machine.performed == ["one"]


def _after_sync(effect: str) -> Outbox[str]:
    out: Outbox[str] = Outbox()
    out.after_sync.append(effect)
    return out
