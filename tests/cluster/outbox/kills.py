"""A process that makes relays and kills each at a given step.

`python -m tests.cluster.outbox.kills URL BOOTSTRAP SECRET` reads lines "STEP COUNT" and answers each with the relay's
end: "killed" or "ended". A relay is a fork of this process, which has imported everything, and dies of SIGKILL when it
reaches the step for the COUNT-th time. Steps:

- ``lease``: the lease is taken (a);  ``written``: batches are written and nothing is sent (b);
- ``unwritten``: batches are about to be committed;  ``sent``: a batch is on its way (c);
- ``stored``: it is acknowledged and not marked;  ``marked``: it is marked (d);
- ``verified``: a leader has answered what it knows;  ``never``: it ends by itself when nothing is left to relay.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from sqlalchemy.exc import SQLAlchemyError

from raylog.client.producer.resumed import ResumedProducer
from raylog.outbox.administration import status
from raylog.outbox.engines import make_engine
from raylog.outbox.model import Changes, Limits
from raylog.outbox.relay import OutboxRelay
from raylog.outbox.store import OutboxStore

STEPS = ("lease", "verified", "unwritten", "written", "sent", "stored", "marked")
LEASE_MS = 200
IDLE_S = 20.0


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL does not return")


class _Countdown:
    """Kills this process when a step is reached for the last of so many times."""

    def __init__(self, step: str, count: int) -> None:
        self._step, self._left = step, count

    def reached(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left <= 0:
                _die()


def _plant(countdown: _Countdown) -> None:
    """Have the shipped classes report their steps."""
    store, producer = OutboxStore, ResumedProducer
    take, turn, encoded, mark = store.take, store.turn, store._encoded, store.mark
    send, known = producer.send, producer.known_sequence

    def taken(self: OutboxStore, shard: int) -> Any:
        found = take(self, shard)
        if found is not None:
            countdown.reached("lease")
        return found

    def turned(self: OutboxStore, held: Any, session: Any, changes: Changes) -> Any:
        done = turn(self, held, session, changes)
        if done.batches:
            countdown.reached("written")
        if changes.finished:
            countdown.reached("marked")
        return done

    def encoding(self: OutboxStore, db: Any, batches: Any) -> Any:
        if batches:
            countdown.reached("unwritten")
        return encoded(self, db, batches)

    def marked(self: OutboxStore, held: Any, changes: Changes) -> None:
        mark(self, held, changes)
        countdown.reached("marked")

    async def sent(self: ResumedProducer, *args: Any) -> int:
        attempt = asyncio.ensure_future(send(self, *args))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        countdown.reached("sent")
        offset = await attempt
        countdown.reached("stored")
        return offset

    async def verified(self: ResumedProducer, *args: Any) -> Any:
        found = await known(self, *args)
        countdown.reached("verified")
        return found

    replaced: dict[str, tuple[type, Callable[..., Any]]] = {
        "take": (store, taken),
        "turn": (store, turned),
        "_encoded": (store, encoding),
        "mark": (store, marked),
        "send": (producer, sent),
        "known_sequence": (producer, verified),
    }
    for name, (owner, function) in replaced.items():
        setattr(owner, name, function)


def relay_until(url: str, bootstrap: str, secret: str, step: str, count: int) -> None:
    """Run a relay until the step, or until nothing is left."""
    _plant(_Countdown(step, count))
    engine = make_engine(url)
    relay = OutboxRelay(
        engine,
        "bank",
        lease_ms=LEASE_MS,
        poll_ms=5,
        poll_max_ms=20,
        limits=Limits(rows=60, batch_rows=7),
        bootstrap=bootstrap,
        secret=secret,
        request_timeout_ms=5_000,
        retry_backoff_ms=20,
    )

    async def run() -> None:
        work = asyncio.ensure_future(relay.run_async())
        loop = asyncio.get_running_loop()
        end_s = loop.time() + IDLE_S
        while not work.done() and loop.time() < end_s:
            await asyncio.sleep(0.05)
            try:
                found = await asyncio.to_thread(status, engine)
            except SQLAlchemyError:
                continue  # the database was killed
            if found.counts.get("UNFINISHED", 0) == 0:
                break
        relay.stop()
        await work

    asyncio.run(run())


def main(url: str, bootstrap: str, secret: str) -> None:
    """Serve the lines that come in."""
    for line in sys.stdin:
        step, count = line.split()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                relay_until(url, bootstrap, secret, step, int(count))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, ended = os.waitpid(pid, 0)
        was_killed = os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL
        outcome = "killed" if was_killed else "ended" if ended == 0 else "failed"
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
