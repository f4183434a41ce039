"""`python -m tests.readers --seed 1 --trials 50`: run trials on a real Ray, Raylog and Spark, and print each.

`--virtual` runs them in one process, against a cluster in memory. Exit code 1 where a reader had fewer rows without an
error, other rows, an error that no fault explains, or did not end.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from dataclasses import replace

from tests.readers.trials import READERS, draw, for_a_cluster


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.readers", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no further trial after so long; 0 = no limit")
    parser.add_argument("--reader", choices=READERS, action="append", help="only these readers")
    parser.add_argument("--rows-max", type=int, default=100_000, help="of each partition, for a machine that is busy")
    parser.add_argument("--virtual", action="store_true", help="in one process, against a cluster in memory")
    options = parser.parse_args()
    wanted = options.reader or READERS
    seeds = [seed for seed in range(options.seed, options.seed + options.trials) if draw(seed).reader in wanted]
    return _virtual(seeds, options.seconds) if options.virtual else _real(seeds, options.seconds, options.rows_max)


def _virtual(seeds: list[int], seconds: float) -> int:
    from tests.readers.virtual import World, small_steps
    from tests.unit.client.toy_server import ToyCluster

    logging.disable(logging.CRITICAL)
    words: Counter[str] = Counter()
    problems: list[str] = []
    began_s = time.monotonic()
    with small_steps(), ToyCluster(brokers=3) as cluster:
        world = World(cluster)
        with world.guarded():
            for seed in seeds:
                if seconds and time.monotonic() - began_s > seconds:
                    break
                outcome = world.run(draw(seed))
                words[outcome.word] += 1
                if outcome.problem:
                    problems.append(f"{draw(seed)}: {outcome.word}: {outcome.problem}")
                    print(problems[-1], flush=True)
    print(f"{sum(words.values())} trials in {time.monotonic() - began_s:.1f} s: {dict(words)}")
    return 1 if problems else 0


def _real(seeds: list[int], seconds: float, rows_max: int) -> int:
    from tests.readers.lab import lab

    warnings.simplefilter("ignore")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    words: Counter[str] = Counter()
    problems: list[str] = []
    began_s = time.monotonic()
    last = 0
    with lab() as running:
        for seed in seeds:
            if seconds and time.monotonic() - began_s > seconds:
                break
            last = seed
            trial = for_a_cluster(draw(seed))
            trial = replace(trial, rows=min(trial.rows, rows_max))
            result = running.run(trial)
            outcome = result.outcome
            words[outcome.word] += 1
            print(
                f"{trial}: {outcome.word}, {result.rows} rows, {result.killed} workers killed, {result.seconds:.1f} s",
                flush=True,
            )
            if outcome.problem:
                problems.append(f"seed {seed}: {outcome.problem}")
                print(f"    WRONG: {outcome.problem}", flush=True)
            if outcome.word == "hangs":
                break
    print(f"{sum(words.values())} trials up to seed {last} in {time.monotonic() - began_s:.0f} s: {dict(words)}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
