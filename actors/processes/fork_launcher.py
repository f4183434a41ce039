"""Replaces Python in the command of Ray's workers: it lets the fork server make the worker, or becomes Python itself.

A module of its own, because it is not imported: ``raylog/launch/forking.py`` writes a copy of this file, with
``#!PYTHON -IS`` before it, beside the socket of the fork server, and Ray starts that copy. It runs for each process
that Ray starts. So it imports only what is built into Python, and takes 15 ms. On any failure it continues as the
Python that it replaces.
"""

from __future__ import annotations

import _socket
import posix
import sys

WORKER = "/ray/_private/workers/default_worker.py"
PATIENCE_S = 20.0
"""How long to wait for the fork server, which may still import Ray on a busy machine. A dead one refuses at once."""


def hand_over(address: str) -> bool:
    """Let the fork server make the worker; returns whether it has. It gets this process's standard streams, and reads
    everything else from /proc."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    try:
        connection.connect(address)
        streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
        connection.sendmsg([b"w"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        if connection.recv(1) != b"y":
            return False
        connection.send(b"g")  # the worker waits for it: after a timeout here, it must not run besides this process
    except OSError:
        return False
    finally:
        connection.close()
    return True


def main() -> None:
    """Hand a worker over to the fork server; become Python for everything else."""
    folder = sys.argv[0].rpartition("/")[0]
    if len(sys.argv) > 1 and sys.argv[1].endswith(WORKER) and hand_over(folder + "/socket"):
        posix._exit(0)
    with open(folder + "/python", encoding="utf-8") as note:  # without pathlib, whose import would double the time
        python = note.read()
    posix.execv(python, [python, *sys.argv[1:]])


if __name__ == "__main__":
    main()
