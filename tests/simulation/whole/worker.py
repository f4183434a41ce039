"""Runs seeds of the whole world, each in a forked process of its own. Started by ``runs.py``.

A world binds the shipped modules to itself and leaves objects of killed processes behind, so its process ends with it.
String hashes must be the same from run to run: this is started with ``PYTHONHASHSEED=0``. Takes a seed, a profile and a
planted bug (or ``-``) per line, options in place of those it draws, and names of features, and answers each with a
line of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.simulation.whole import ports
from tests.simulation.whole.features import plan_of
from tests.simulation.whole.planted.planted import BUGS
from tests.simulation.whole.world import World

SHM: Final = Path("/dev/shm")
RUN_S: Final = 300
"""Processor seconds after which a run is aborted."""


def play(seed: int, profile: str, bug: str, limits: dict[str, Any], features: list[str]) -> dict[str, Any]:
    """Run one seed in this process and return its result; the process cannot be reused."""
    gc.disable()
    root = Path(tempfile.mkdtemp(prefix="raylog-whole-", dir=SHM if SHM.is_dir() else None))
    began_s = time.process_time()
    try:
        os.chdir(root)  # paths are the same in every run, and with them their hashes
        world = World(seed, plan_of(profile, seed, features, limits), Path("nodes"))
        if bug != "-":
            BUGS[bug].plant()
        violation = world.run()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    books = world.books
    last = world.scheduler.story_length if world.plan.is_detailed else 400 if violation else 80
    return {
        "features": world.plan.features,
        "rule": "" if violation is None else violation.rule,
        "claim": "" if violation is None else violation.claim,
        "story": world.scheduler.story(int(os.environ.get("STORY", last))),
        "events": world.scheduler.events,
        "steps": world.scheduler.turns,
        "elections": world.elections,
        "acks": books.acked,
        "committed": books.read,
        "trace": world.scheduler.trace,
        "seconds": time.process_time() - began_s,
    }


def _fork(seed: int, profile: str, bug: str, limits: dict[str, Any], features: list[str]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            _limit_processor(writing)
            found = play(seed, profile, bug, limits, features)
        except BaseException as error:
            found = {"rule": "SIMULATOR", "claim": repr(error), "story": traceback.format_exc().splitlines()}
        with os.fdopen(writing, "w") as out:
            json.dump(found, out)
        os._exit(0)  # the threads of killed processes never end
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if text:
        found = json.loads(text)
        assert isinstance(found, dict)
        return found
    return {"rule": "SIMULATOR", "claim": f"the run ended with status {status}", "story": []}


def _limit_processor(writing: int) -> None:
    """After `RUN_S` answer with where the run is: a coroutine that never waits keeps everything else from going on."""
    import resource

    def stop(_: int, frame: FrameType | None) -> None:
        found = {"rule": "SPINS", "claim": f"it takes more than {RUN_S} s", "story": traceback.format_stack(frame)}
        with os.fdopen(writing, "w") as out:
            json.dump(found, out)
        os._exit(0)

    signal.signal(signal.SIGXCPU, stop)
    resource.setrlimit(resource.RLIMIT_CPU, (RUN_S, RUN_S + 30))


def main() -> None:
    """Answer requests until the input ends."""
    ports.shipped_modules()
    for line in sys.stdin:
        seed, profile, bug, limits, *features = line.rstrip("\n").split("\t")
        print(json.dumps(_fork(int(seed), profile, bug, json.loads(limits), features)), flush=True)


if __name__ == "__main__":
    main()
