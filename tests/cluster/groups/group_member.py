"""A member of a group, for the tests of this folder: writes what it reads to a file, until killed.

Each record has one line, written with one call before the next poll, so a line is there for each record that may be
committed. An assignment has a line too.
"""

import json
import os
import sys
import time

import raylog


def main() -> None:
    options = json.loads(sys.argv[1])
    out = os.open(options.pop("journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    with raylog.Consumer(options.pop("topic"), **options) as consumer:
        held: list[int] = []
        while True:
            polled = consumer.poll(20)
            now_ns = time.monotonic_ns()  # one clock for all processes of this machine
            rows = [b"%d %d %d" % (at.partition, record.offset, now_ns) for at in polled for record in polled[at]]
            now_held = sorted(each.partition for each in consumer.assignment())
            if now_held != held:
                held = now_held
                rows.append(b"held %d %s" % (now_ns, b",".join(b"%d" % number for number in held) or b"-"))
            if rows:
                os.write(out, b"\n".join(rows) + b"\n")


main()
