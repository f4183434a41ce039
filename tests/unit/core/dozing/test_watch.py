"""The protocol between a resting replica and its broker, in every order of its steps: no wake-up is ever lost.

The model has one replica, one broker, the kernel that delivers signals late, one request that arrives at any time, and
a broker that may be killed at any time. In each state where nothing can happen but the passage of time, the process
runs unless nothing has come in and its broker lives. Each planted bug is one that breaks this.
"""

from dataclasses import dataclass, replace

import pytest

from raylog.core.dozing.watch import Act, ProcessWatch

UNTIL_MS = 1_000


@dataclass(frozen=True)
class World:
    """One state of everything; messages are counted, because each kind is the same."""

    is_resting: bool = False
    offers: int = 0
    words: int = 0
    """Messages of the replica that it reads again, behind its offers."""
    overs: int = 0
    arrived: bool = False
    has_read: bool = False
    is_stopping: bool = False
    """SIGSTOP was sent and has not taken effect."""
    is_stopped: bool = False
    is_watching: bool = False
    has_looked: str = ""
    """Empty, "due", or the acts that are left to do, joined."""
    until_ms: int | None = None
    offered_ms: int | None = None
    holds: int = 0
    calls: int = 0
    """A call to the process that must be answered: 1 = begun."""
    was_ended: bool = False
    """The broker has ended a rest for its own reasons."""
    broker_lives: bool = True
    keeper_acted: bool = False
    rests: int = 0


class Model:
    """The steps that are possible in a state. A planted bug overrides one of them."""

    machine: type[ProcessWatch] = ProcessWatch
    sends_word = True
    has_keeper = True

    def steps(self, w: World) -> list[World]:
        found: list[World] = []
        runs = not w.is_stopped
        if w.is_stopping:
            found.append(replace(w, is_stopping=False, is_stopped=True))
        if not w.arrived:
            found.append(replace(w, arrived=True))
        if runs:
            found += self.replica(w)
        if w.broker_lives:
            found += self.broker(w)
            found.append(replace(w, broker_lives=False))
        elif self.has_keeper and not w.keeper_acted:
            found.append(replace(w, keeper_acted=True, is_stopping=False, is_stopped=False))
        return found

    def replica(self, w: World) -> list[World]:
        unread = w.arrived and not w.has_read
        if w.is_resting:
            if unread or w.overs or not w.broker_lives:
                word = int(self.sends_word and w.broker_lives)
                return [replace(w, is_resting=False, words=w.words + word)]
            return []
        found = []
        if unread:
            found.append(replace(w, has_read=True))
        elif w.rests < 2 and w.broker_lives:
            found.append(replace(w, is_resting=True, offers=w.offers + 1, overs=0, rests=w.rests + 1))
        return found

    def broker(self, w: World) -> list[World]:
        found = []
        if w.has_looked:
            return [self.act(w)]
        if w.offers and not (w.words and w.offers == 1 and w.is_resting):
            found.append(self.feed(replace(w, offers=w.offers - 1), "offered"))
        elif w.words:
            found.append(self.feed(replace(w, words=w.words - 1), "awoken"))
        visible = w.arrived and not w.has_read and w.is_watching
        if visible:
            found.append(self.feed(w, "readable"))
        if w.until_ms is not None:
            found.append(self.feed(w, "ticked"))
        if w.calls == 0:
            found.append(self.feed(replace(w, calls=1), "hold"))
        if not w.was_ended:
            found.append(self.feed(replace(w, was_ended=True), "end"))
        return found

    def feed(self, w: World, event: str) -> World:
        watch = self.machine()
        watch.until_ms, watch._offered_until_ms, watch._holds = w.until_ms, w.offered_ms, w.holds
        if event == "offered":
            acts = watch.offered(UNTIL_MS)
        elif event == "ticked":
            acts = watch.ticked(UNTIL_MS)
        elif event == "looked":
            visible = w.arrived and not w.has_read
            acts = watch.looked(readable=visible or bool(w.words), now_ms=0)
        else:
            acts = getattr(watch, event)()
        names = ",".join(act.value for act in acts)
        rest = w.has_looked.partition(",")[2] if event == "looked" else ""
        todo = ",".join(part for part in (names, rest) if part)
        offered_ms, holds = watch._offered_until_ms, watch._holds
        return replace(w, until_ms=watch.until_ms, offered_ms=offered_ms, holds=holds, has_looked=todo)

    def act(self, w: World) -> World:
        name, _, rest = w.has_looked.partition(",")
        act = Act(name)
        if act is Act.LOOK:
            return self.feed(w, "looked")
        w = replace(w, has_looked=rest)
        match act:
            case Act.WATCH:
                return replace(w, is_watching=True)
            case Act.UNWATCH:
                return replace(w, is_watching=False)
            case Act.STOP:
                return replace(w, is_stopping=True)
            case Act.CONTINUE:
                return replace(w, is_stopping=False, is_stopped=False)
            case _:
                return replace(w, overs=w.overs + 1)


def lost(model: Model) -> World | None:
    """Return a state in which a wake-up is lost; None = there is none. Visits every reachable state."""
    seen = {World()}
    todo = [World()]
    while todo:
        world = todo.pop()
        followers = model.steps(world)
        if is_stuck(world, model):
            return world
        for follower in followers:
            if follower not in seen:
                seen.add(follower)
                todo.append(follower)
    return None


def is_stuck(w: World, model: Model) -> bool:
    """Whether the process is stopped for good, or half of a request is in it, although it has something to do."""
    if not w.is_stopped:
        return False
    if not w.broker_lives:
        return not model.has_keeper or (w.keeper_acted and not w.is_stopping)
    if w.has_looked or w.offers or w.words:
        return False
    if not w.is_resting or w.until_ms is None or w.holds:
        return True
    return w.arrived and not w.has_read and not w.is_watching


def test_no_order_of_steps_loses_a_wake_up() -> None:
    assert lost(Model()) is None


class ForgetsTheHold(ProcessWatch):
    def hold(self) -> list[Act]:
        self._holds += 1
        return []


class ForgetsWord(ProcessWatch):
    def awoken(self) -> list[Act]:
        return [Act.UNWATCH]


class ForgetsItHasStopped(ProcessWatch):
    def looked(self, *, readable: bool, now_ms: int) -> list[Act]:
        acts = super().looked(readable=readable, now_ms=now_ms)
        self.until_ms = None
        return acts


class IgnoresWhatCame(ProcessWatch):
    def readable(self) -> list[Act]:
        return [Act.UNWATCH]


class WakesWithoutASignal(ProcessWatch):
    def _wake(self) -> list[Act]:
        return [act for act in super()._wake() if act is not Act.CONTINUE]


class StopsBeforeItWatches(ProcessWatch):
    def offered(self, until_ms: int) -> list[Act]:
        return [act for act in super().offered(until_ms) if act is not Act.WATCH]


def planted(name: str) -> Model:
    model = Model()
    machines: dict[str, type[ProcessWatch]] = {
        "a hold continues nothing": ForgetsTheHold,
        "the replica's word continues nothing": ForgetsWord,
        "the stop is not remembered": ForgetsItHasStopped,
        "what came is ignored": IgnoresWhatCame,
        "a wake sends no signal": WakesWithoutASignal,
        "nothing is watched": StopsBeforeItWatches,
    }
    if name in machines:
        model.machine = machines[name]
    elif name == "no keeper":
        model.has_keeper = False
    else:
        model.sends_word = False
    return model


@pytest.mark.parametrize(
    "name",
    [
        "a hold continues nothing",
        "the replica's word continues nothing",
        "the stop is not remembered",
        "what came is ignored",
        "a wake sends no signal",
        "nothing is watched",
        "no keeper",
        "the replica sends no word",
    ],
)
def test_each_planted_bug_is_found(name: str) -> None:
    assert lost(planted(name)) is not None
