"""A member of a group with a worker pool, for the tests of this folder: writes what it handles to a file, until killed.

Each line is written with one call before the handler returns, so a line is there for each record that may be committed.
"""

import json
import os
import sys
import time

import raylog


def main() -> None:
    options = json.loads(sys.argv[1])
    out = os.open(options.pop("journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    pause_s = options.pop("pause_s")

    def handle(record: raylog.Record) -> None:
        began_ns = time.monotonic_ns()  # one clock for all processes of this machine
        time.sleep(pause_s)
        ended_ns = time.monotonic_ns()
        os.write(out, b"%d %s %d %d %d\n" % (record.partition, record.key, record.offset, began_ns, ended_ns))

    with raylog.Consumer(options.pop("topic"), **options) as consumer:
        raylog.WorkerPool(consumer, handle, workers=6, max_in_flight=200).run()


main()
