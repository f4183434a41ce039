"""Runs the tests, and once more those files of which a test failed that uses real processes, sockets or threads.

Such a test may fail because the machine had no time for it: its deadlines are long, and a machine that others use can
be longer. So a file that failed beside others runs again alone. What fails twice has failed. What passes alone is
printed as unstable: it wants a look, and does not hide what else the change did. Tests of pure code have no second run,
and neither has a run in which more than a few files failed.

Called by `make test`, with the arguments of pytest. May touch: the folder `build/test-cache`.
"""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PURE = (
    "tests/property/",
    "tests/simulation/",
    "tests/unit/core/",
    "tests/unit/docs/",
    "tests/unit/protocol/",
    "tests/unit/storage/",
    "tests/unit/style/",
)
"""Folders whose tests depend on nothing but the code: a failure there is one on every machine."""
FILES_MAX = 3
"""Files that run again at most; where more failed, it was not for lack of time."""
CACHE = Path("build/test-cache")
TESTS_FAILED = 1
"""Exit code of pytest when all tests ran and some failed; the others mean that the run itself failed."""


def files_to_repeat(failed: Iterable[str]) -> list[str]:
    """Return the files to run again, in order, of the failed tests' ids; none if one of them may not run again."""
    files = sorted({test.partition("::")[0] for test in failed})
    if len(files) > FILES_MAX or any(file.startswith(PURE) for file in files):
        return []
    return files


def run(arguments: list[str]) -> int:
    """Run pytest and return its exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def failed_tests(cache: Path) -> list[str]:
    """Return the ids of the tests that failed in the run with this cache."""
    file = cache / "v/cache/lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def selection_in(arguments: list[str]) -> list[str]:
    """Return the options that choose tests by marker: what the first run left out, the second one leaves out."""
    return [each for pair in itertools.pairwise(arguments) if pair[0] == "-m" for each in pair]


def main(arguments: list[str]) -> int:
    """Run the tests, some of them again, and return the exit code of the whole."""
    shutil.rmtree(CACHE, ignore_errors=True)
    code = run(["-o", f"cache_dir={CACHE}", *arguments])
    failed = failed_tests(CACHE)
    files = files_to_repeat(failed)
    if code != TESTS_FAILED or not files:
        return code
    print(f"\nThese tests failed: {', '.join(failed)}.\nTheir files run again, alone: {', '.join(files)}.", flush=True)
    again = run(["-o", f"cache_dir={CACHE}", *selection_in(arguments), *files])
    if again == 0:
        print(f"Unstable: {', '.join(failed)} failed beside other tests, and passed alone.", flush=True)
    return again


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
