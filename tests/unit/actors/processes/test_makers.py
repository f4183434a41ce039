"""Which process makes actors: a broker or the controller at first, then one maker after the other; no call is lost."""

import asyncio
from typing import Any

import pytest

from raylog.actors.processes.made_actors import REPLICA, ActorRaised, ActorTrouble, NoSuchActor, Recipe
from raylog.actors.processes.makers import STARTS, STARTS_VARIABLE, MakerLost, Makers, starts_per_maker
from raylog.actors.processes.ray_maker import DONE, TROUBLES, outcome_of
from tests.waiting import eventually

RECIPE = Recipe(kind=REPLICA, arguments=())


class Hands:
    """Does what makers do, and notes it; a call of one name waits, or fails, if it is to."""

    def __init__(self, title: str, done: list[tuple[str, str]]) -> None:
        self.title = title
        self.done = done
        self.held: dict[str, asyncio.Event] = {}
        self.error: Exception | None = None
        self.dismissals = 0

    async def _do(self, name: str) -> None:
        if name in self.held:
            await self.held[name].wait()
        if self.error is not None:
            raise self.error
        self.done.append((self.title, name))

    async def start(self, name: str, recipe: Recipe) -> None:
        await self._do(name)

    async def exists(self, name: str) -> bool:
        await self._do(name)
        return True

    async def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> Any:
        await self._do(name)
        return method, arguments, timeout_s

    async def end(self, name: str, *, is_stopped_first: bool) -> None:
        await self._do(name)

    async def dismiss(self) -> None:
        self.dismissals += 1


class Office:
    """Makers with a broker that makes two replicas itself, and what they have done."""

    def __init__(self, starts: int = 2, idle_s: float = 21_600.0) -> None:
        self.done: list[tuple[str, str]] = []
        self.own = Hands("broker", self.done)
        self.hired: list[Hands] = []
        self.refusal: Exception | None = None
        self.makers = Makers(self.own, self.hire, starts, idle_s)

    async def hire(self) -> Hands:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.hired.append(Hands(f"maker {len(self.hired) + 1}", self.done))
        return self.hired[-1]

    async def start(self, *names: str) -> None:
        for name in names:
            await self.makers.start(name, RECIPE)

    async def settled(self) -> None:
        await eventually(lambda: self.makers._hiring is None and not self.makers._leaving)


@pytest.fixture
def office() -> Office:
    return Office()


async def test_the_broker_makes_the_first_ones_itself_and_has_no_other_process(office: Office) -> None:
    await office.start("a", "b")
    await office.settled()
    assert office.done == [("broker", "a"), ("broker", "b")]
    assert office.hired == []


async def test_a_start_does_not_wait_for_the_maker_that_it_is_the_reason_for(office: Office) -> None:
    await office.start("a", "b", "c")
    assert office.done[-1] == ("broker", "c")
    await office.settled()
    await office.start("d")
    assert office.done[-1] == ("maker 1", "d")


async def test_everything_about_actors_goes_to_the_maker(office: Office) -> None:
    await office.start("a", "b", "c")
    await office.settled()
    assert await office.makers.exists("a")
    assert await office.makers.call("a", "reconfigure", 7, timeout_s=3) == ("reconfigure", (7,), 3)
    await office.makers.end("a", is_stopped_first=True)
    assert office.done[-3:] == [("maker 1", "a")] * 3


async def test_makers_follow_each_other_and_those_before_end(office: Office) -> None:
    for number in range(30):
        await office.start(str(number))
        await office.settled()
    assert len(office.hired) == 10, "each third start is the reason for another one"
    assert [hands.dismissals for hands in office.hired] == [1] * 9 + [0]
    assert len({name for _, name in office.done}) == len(office.done) == 30


async def test_a_maker_ends_after_its_last_call(office: Office) -> None:
    await office.start("a", "b", "c")
    await office.settled()
    first = office.hired[0]
    first.held["long"] = asyncio.Event()
    long = asyncio.create_task(office.makers.start("long", RECIPE))
    await asyncio.sleep(0)
    await office.start("d", "e")
    await eventually(lambda: len(office.hired) == 2)
    await asyncio.sleep(0)
    assert first.dismissals == 0
    first.held["long"].set()
    await long
    await office.settled()
    assert first.dismissals == 1
    assert office.done[-1] == ("maker 1", "long")


async def test_a_maker_without_calls_ends_until_the_next_start() -> None:
    office = Office(idle_s=0.01)
    await office.start("a", "b", "c")
    await eventually(lambda: [hands.dismissals for hands in office.hired] == [1])
    await office.start("d")
    assert office.done[-1] == ("broker", "d")
    await eventually(lambda: len(office.hired) == 2)


async def test_a_maker_with_a_call_is_not_idle(office: Office) -> None:
    await office.start("a", "b", "c")
    await office.settled()
    maker, hired = office.hired[0], office.makers._hired
    assert hired is not None
    maker.held["long"] = asyncio.Event()
    long = asyncio.create_task(office.makers.start("long", RECIPE))
    await asyncio.sleep(0)
    assert hired.ending is not None
    assert hired.ending.cancelled()
    office.makers._idle_s = 0.01
    maker.held["long"].set()
    await long
    assert office.done[-1] == ("maker 1", "long")
    await eventually(lambda: maker.dismissals == 1)


async def test_what_a_lost_maker_was_to_do_is_done_by_the_broker(office: Office) -> None:
    await office.start("a", "b", "c")
    await office.settled()
    lost = office.hired[0]
    lost.held = {"d": asyncio.Event(), "e": asyncio.Event()}
    both = [asyncio.create_task(office.makers.start(name, RECIPE)) for name in ("d", "e")]
    await asyncio.sleep(0)
    lost.error = MakerLost("killed")
    for event in lost.held.values():
        event.set()
    await asyncio.gather(*both)
    assert office.done[-2:] == [("broker", "d"), ("broker", "e")]
    await office.settled()
    assert lost.dismissals == 1, "one that hangs must not go on"
    await office.start("f", "g")
    await office.settled()
    await office.start("h")
    assert office.done[-1] == ("maker 2", "h")


async def test_an_actors_error_is_no_loss_of_its_maker(office: Office) -> None:
    await office.start("a", "b", "c")
    await office.settled()
    office.hired[0].error = ActorRaised("no room")
    with pytest.raises(ActorRaised, match="no room"):
        await office.start("d")
    assert office.hired[0].dismissals == 0


async def test_without_room_for_a_maker_it_is_tried_again_later(office: Office) -> None:
    office.refusal = OSError("no more processes")
    await office.start("a", "b", "c")
    await office.settled()
    office.refusal = None
    await office.start("d", "e")
    await office.settled()
    assert office.hired == []
    await office.start("f")
    await office.settled()
    assert len(office.hired) == 1
    assert [title for title, _ in office.done] == ["broker"] * 6


async def test_a_broker_that_stops_ends_its_maker_and_has_no_other(office: Office) -> None:
    await office.start("a", "b", "c")
    await office.settled()
    await office.makers.stop()
    assert office.hired[0].dismissals == 1
    await office.start("d", "e", "f", "g")
    await office.settled()
    assert office.done[-1] == ("broker", "g")
    assert len(office.hired) == 1


async def test_zero_is_no_maker() -> None:
    office = Office(starts=0)
    await office.start(*map(str, range(20)))
    await office.settled()
    assert office.hired == []


@pytest.mark.parametrize(("given", "starts"), [("", STARTS), ("50", 50), ("0", 0), ("-3", STARTS), ("many", STARTS)])
def test_the_number_is_set_where_ray_is_started(given: str, starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTS_VARIABLE, given)
    assert starts_per_maker() == starts


@pytest.mark.parametrize("kind", [ActorTrouble, NoSuchActor, ActorRaised])
async def test_a_makers_answer_says_what_went_wrong(kind: type[ActorTrouble]) -> None:
    hands = Hands("maker", [])
    hands.error = kind("the reason")
    outcome = await outcome_of(hands, "call", ("name", "role"), {"timeout_s": 1.0})
    assert TROUBLES[outcome[0]] is kind
    assert outcome[1] == "the reason"


async def test_a_makers_answer_has_the_result() -> None:
    hands = Hands("maker", [])
    assert await outcome_of(hands, "exists", ("name",), {}) == (DONE, True)
