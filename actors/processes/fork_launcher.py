"""Stands in for Python in the command of Ray's workers: has the fork server make the worker, or becomes Python itself.

Not imported: ``raylog/fork_workers.py`` writes a copy of this file, with ``#!PYTHON -IS`` before it, beside the
socket of the fork server, and Ray starts that copy. It runs for each process that Ray starts, so it imports only what
is built into Python, and takes 15 ms. On any failure it continues as the Python that it stands for.
"""

from __future__ import annotations

import _socket
import posix
import sys

WORKER = "/ray/_private/workers/default_worker.py"
PATIENCE_S = 20.0
"""The fork server may still be importing Ray, on a busy machine. One that has stopped refuses at once."""


def hand_over(address: str) -> bool:
    """Return whether the fork server has made the worker. It takes our streams; all else it reads from /proc."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    try:
        connection.connect(address)
        streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
        connection.sendmsg([b"w"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        if connection.recv(1) != b"y":
            return False
        connection.send(b"g")  # the worker waits for this, so that it never runs beside this process after a timeout
    except OSError:
        return False
    finally:
        connection.close()
    return True


def main() -> None:
    """Hand a worker over; become Python for everything else."""
    folder = sys.argv[0].rpartition("/")[0]
    if len(sys.argv) > 1 and sys.argv[1].endswith(WORKER) and hand_over(folder + "/socket"):
        posix._exit(0)
    with open(folder + "/python", encoding="utf-8") as note:  # importing pathlib takes as long as all else
        python = note.read()
    posix.execv(python, [python, *sys.argv[1:]])


if __name__ == "__main__":
    main()
