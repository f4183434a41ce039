"""A small process beside a broker that continues the replicas which the broker has stopped, if the broker dies.

The broker starts it with a pipe. While the broker runs, it sends lines on the pipe; each has the number of milliseconds
for which the broker may be silent. When the pipe closes, or nothing comes for so long, the keeper continues every
process in the note. The note is a file in the data directory, with a line of process id and start time for each process
that the broker may stop. The broker uses it too when it starts again. The keeper imports nothing of Raylog, because it
runs as a program of its own. It forks once, so that it is not a child of the broker: Ray would end it with the broker's
worker.
"""

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

NOTE = "doze.note"
SILENT_MS = 1_250
"""Default of the allowed silence, before the broker knows the cluster's: half of the default session timeout."""


def started_at(pid: int) -> str:
    """Return when a process started, in clock ticks since boot. Raises OSError if no process has this id."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def continue_noted(folder: Path) -> list[int]:
    """Continue the processes in a broker's note that still exist; returns their ids."""
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
    """Watch the pipe on standard input, for the data directory in the first argument."""
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
