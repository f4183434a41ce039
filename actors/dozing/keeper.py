"""A small process beside a broker that continues the replicas which the broker has stopped, when the broker dies.

Started by the broker with a pipe, on which the broker sends lines while it runs: for how many milliseconds it may be
silent. When the pipe ends, or nothing comes for so long, every process of the note is continued. The note is a file
in the data directory, one line of process id and start time for each process that the broker may stop. A new life of
the broker goes by it too. Imports nothing of Raylog: it runs as a program of its own. It forks once, so that it is no
child of the broker, which Ray would end with the broker's worker.
"""

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

NOTE = "doze.note"
SILENT_MS = 1_250
"""Before the broker knows the cluster: half of the default session timeout."""


def started_at(pid: int) -> str:
    """Return when a process started, in ticks since boot; raises OSError when there is none of this id."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def continue_noted(folder: Path) -> list[int]:
    """Continue the processes of a broker's note that still run; returns them."""
    continued = []
    try:
        lines = (folder / NOTE).read_text().splitlines()
    except OSError:
        return []  # no broker has ever stopped a process here
    for line in lines:
        pid, _, started = line.partition(" ")
        with suppress(OSError, ValueError):  # it has ended, or the last line was cut off
            if started_at(int(pid)) == started:
                os.kill(int(pid), signal.SIGCONT)
                continued.append(int(pid))
    return continued


def main() -> None:
    """Keep watch over the data directory of the first argument, on the pipe that is the standard input."""
    folder = Path(sys.argv[1])
    if os.fork():
        os._exit(0)
    os.setsid()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    is_silent, silent_ms = False, SILENT_MS
    while True:
        if not poll.poll(None if is_silent else silent_ms):
            continue_noted(folder)
            is_silent = True
        elif line := os.read(0, 4096):
            is_silent = False
            with suppress(ValueError):  # a line that was cut off
                silent_ms = max(1, int(line.split()[-1]))
        else:
            continue_noted(folder)
            return


if __name__ == "__main__":
    main()
