"""Draws the machines of docs/time-and-queues.md: `python -m tools.machine_pictures` writes docs/img/machine-*.svg.

A picture is boxes on a grid and arrows between them. tests/unit/docs fails when a picture is not what this draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "img"
WIDE, HIGH = 200, 62
"""Of a box."""
STEP_X, STEP_Y = 330, 128
LEFT, TOP = 30, 58
LINE: Final = 17
COLOURS: Final = {"log": "#fff4e6", "state": "#ffffff", "end": "#e6f4ea", "outside": "#f1f5f9"}
"""Fill of a box: a log or a table, a state or an actor, a final state, something that is not the machine's."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box at a column and a row of the grid, which may be fractions; the first line is its name."""

    column: float
    row: float
    lines: tuple[str, ...]
    kind: str = "state"

    @property
    def centre(self) -> tuple[float, float]:
        """In pixels."""
        return LEFT + self.column * STEP_X + WIDE / 2, TOP + self.row * STEP_Y + HIGH / 2

    def edge(self, towards: tuple[float, float]) -> tuple[float, float]:
        """Where a line from the centre leaves the box."""
        x, y = self.centre
        dx, dy = towards[0] - x, towards[1] - y
        part = min(WIDE / 2 / abs(dx) if dx else 9e9, HIGH / 2 / abs(dy) if dy else 9e9)
        return x + dx * part, y + dy * part


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one box to another, with words beside it; `shift` moves it sideways, where another runs back."""

    begin: str
    end: str
    words: tuple[str, ...] = ()
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """One machine."""

    title: str
    about: str
    boxes: dict[str, Box]
    arrows: tuple[Arrow, ...]


DELAYS = Picture(
    "Delayed messages",
    "A producer appends to __scheduled; its leader sorts due times into runs, commits a round, sends it to the target "
    "with the sequences of the round, and notes that it is done.",
    {
        "producer": Box(0, 0, ("producer", "send(delay=, deliver_at=)"), "outside"),
        "log": Box(1, 0, ("__scheduled", "records, runs, rounds,", "checkpoints"), "log"),
        "heap": Box(2, 0, ("entries in memory", "(due, offset), to 100,000")),
        "runs": Box(2, 1, ("runs", "sorted, in the log;", "a cursor each in memory"), "log"),
        "round": Box(1, 1, ("round", "partition, base sequence,", "offsets: committed first")),
        "target": Box(0, 1, ("target topic", "an ordinary record"), "end"),
        "gone": Box(2, 2, ("cancelled", "both entries vanish"), "end"),
        "noted": Box(0, 2, ("noted", "in the next round;", "at most 5 are open")),
        "letter": Box(1, 2, ("__undeliverable", "the target was deleted"), "end"),
    },
    (
        Arrow("producer", "log", ("acks=all",)),
        Arrow("log", "heap", ("leader reads",)),
        Arrow("heap", "runs", ("sealed",)),
        Arrow("runs", "round", ("due",)),
        Arrow("round", "target", ("same sequences,", "sent again if unknown")),
        Arrow("runs", "gone", ("meets its tombstone",)),
        Arrow("target", "noted", ("acknowledged",)),
        Arrow("noted", "round", ("next round",)),
        Arrow("round", "letter", ("no such topic",)),
    ),
)

DEAD_LETTERS = Picture(
    "Time to live and dead letters",
    "A forwarder reads expired records of a source and sends each batch on with sequences that follow from its "
    "offsets; records with a time of their own are filed in __scheduled; a redrive sends dead letters back.",
    {
        "source": Box(0, 0, ("source topic", "ttl.ms, raylog-ttl"), "log"),
        "forwarder": Box(1, 0, ("forwarder", "at the source's leader;", "sequence = offset - start")),
        "position": Box(2, 0, ("__forwarding", "how far it is"), "log"),
        "scheduled": Box(0, 1, ("__scheduled", "due when it expires"), "log"),
        "letters": Box(2, 1, ("dead letter topic", "with the cause in headers"), "end"),
        "queue": Box(0, 2, ("queue group", "rejected, limit reached"), "outside"),
        "undeliverable": Box(2, 2, ("__undeliverable", "no such topic, or", "16 hops"), "end"),
        "redrive": Box(3, 1, ("redrive", "filter, rate;", "a forwarder as well")),
        "origin": Box(3, 2, ("origin", "or a topic of your choice"), "end"),
    },
    (
        Arrow("source", "forwarder", ("log order =", "order of expiry")),
        Arrow("forwarder", "letters", ("a batch per batch,", "the first alone")),
        Arrow("forwarder", "position", ("acknowledged",)),
        Arrow("source", "scheduled", ("a time of its own",)),
        Arrow("scheduled", "letters", ("a round",)),
        Arrow("queue", "letters", ("archiving",)),
        Arrow("letters", "undeliverable", ("refused",)),
        Arrow("letters", "redrive", ("redrive()",)),
        Arrow("redrive", "origin"),
    ),
)

QUEUES = Picture(
    "A record in a queue",
    "Available, acquired under a lock, then acknowledged, available again, waiting for a retry, or archiving until its "
    "dead letter is stored.",
    {
        "available": Box(0, 0, ("AVAILABLE", "by key: the first of", "a key without a lock")),
        "acquired": Box(1, 0, ("ACQUIRED", "a member, until when;", "in memory only")),
        "acknowledged": Box(2, 0, ("ACKNOWLEDGED", "stored, then answered"), "end"),
        "waiting": Box(0.5, 1.15, ("WAITING", "until its pause is over")),
        "archiving": Box(1.5, 1.15, ("ARCHIVING", "cause and sequence", "are stored")),
        "archived": Box(2.5, 1.15, ("ARCHIVED", "its letter is stored"), "end"),
        "state": Box(1, 2, ("__share_state", "all but locks, as ranges"), "log"),
    },
    (
        Arrow("available", "acquired", ("fetch",), -14),
        Arrow("acquired", "available", ("released, lock over,", "member left"), -14),
        Arrow("acquired", "acknowledged", ("ack",)),
        Arrow("acquired", "waiting", ("retry",)),
        Arrow("waiting", "available", ("time over",)),
        Arrow("acquired", "archiving", ("reject, or limit",)),
        Arrow("archiving", "archived", ("appended",)),
        Arrow("waiting", "state"),
        Arrow("archiving", "state"),
    ),
)

OUTBOX = Picture(
    "Outbox and inbox",
    "A row commits with the user's change; a relay numbers rows, sends them under a resumed producer id, and marks "
    "them; at the other end the txid is inserted in the handler's own transaction.",
    {
        "change": Box(0, 0, ("your transaction", "change and outbox.add"), "outside"),
        "unfinished": Box(1, 0, ("UNFINISHED", "a row of raylog_outbox"), "log"),
        "numbered": Box(2, 0, ("numbered", "partition, batch, sequence", "written into the row")),
        "topic": Box(2, 1, ("topic", "once: a repetition is", "answered with its offset"), "log"),
        "finished": Box(1, 1, ("FINISHED", "offset in the row"), "end"),
        "failed": Box(0, 1, ("FAILED", "its key's later rows wait"), "end"),
        "inbox": Box(1, 2, ("inbox", "insert (consumer, txid)")),
        "effect": Box(2, 2, ("your effect", "in the same transaction"), "end"),
        "skipped": Box(0, 2, ("skipped", "the txid is there"), "end"),
    },
    (
        Arrow("change", "unfinished", ("commit",)),
        Arrow("unfinished", "numbered", ("lease, fence",)),
        Arrow("numbered", "topic", ("resumed producer",)),
        Arrow("topic", "finished", ("acknowledged,", "fence holds")),
        Arrow("unfinished", "failed", ("refused for good",)),
        Arrow("topic", "inbox", ("consumer",)),
        Arrow("inbox", "effect", ("new",)),
        Arrow("inbox", "skipped", ("came again",)),
    ),
)

HALF_MESSAGES = Picture(
    "Half messages",
    "prepare stores invisible records; commit releases them in one round, rollback removes them, and what stays "
    "undecided is checked with a live member of the group.",
    {
        "prepare": Box(0, 0, ("prepare", "txid, group"), "outside"),
        "held": Box(1, 0, ("held in __scheduled", "due = next check"), "log"),
        "local": Box(0, 1, ("local transaction", "of the sender"), "outside"),
        "ask": Box(1, 1, ("check", "checker of a live member;", "only UNKNOWN counts")),
        "released": Box(2, 0, ("COMMIT", "all of a txid in one round"), "end"),
        "gone": Box(2, 1, ("ROLLBACK", "tombstones"), "end"),
        "unresolved": Box(1, 2, ("unresolved", "after 15 checks: held, alarm"), "state"),
        "operator": Box(2, 2, ("raylog half", "list, commit, rollback"), "outside"),
    },
    (
        Arrow("prepare", "held", ("acks=all",)),
        Arrow("prepare", "local"),
        Arrow("local", "held", ("commit() or", "rollback()")),
        Arrow("held", "released", ("COMMIT",)),
        Arrow("held", "ask", ("no answer in time",), -12),
        Arrow("ask", "held", ("UNKNOWN",), -12),
        Arrow("ask", "gone", ("ROLLBACK",)),
        Arrow("ask", "unresolved"),
        Arrow("unresolved", "operator"),
    ),
)

PICTURES: Final = {
    "machine-delays": DELAYS,
    "machine-dead-letters": DEAD_LETTERS,
    "machine-queues": QUEUES,
    "machine-outbox": OUTBOX,
    "machine-half-messages": HALF_MESSAGES,
}


def drawn(picture: Picture) -> str:
    """The picture as SVG."""
    wide = round(max(box.centre[0] for box in picture.boxes.values()) + WIDE / 2 + LEFT)
    high = round(max(box.centre[1] for box in picture.boxes.values()) + HIGH / 2 + 28)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'role="img" font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" font-size="13" fill="#1f2933">\n'
        f"  <title>{escape(picture.title)}</title>\n  <desc>{escape(picture.about)}</desc>\n"
        '  <defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#9a3412"/></marker></defs>\n'
        f'  <rect x="1" y="1" width="{wide - 2}" height="{high - 2}" rx="10" fill="#fbfaf7" stroke="#9aa5b1"/>\n'
        f'  <text x="{LEFT}" y="32" font-size="16" font-weight="bold">{escape(picture.title)}</text>\n'
    )
    arrows = [_arrow(arrow, picture.boxes) for arrow in picture.arrows]
    boxes = [_box(box) for box in picture.boxes.values()]
    words = [_words(arrow, picture.boxes) for arrow in picture.arrows if arrow.words]
    return head + "".join([*arrows, *boxes, *words]) + "</svg>\n"


def _line(arrow: Arrow, boxes: dict[str, Box]) -> tuple[float, float, float, float]:
    begin, end = boxes[arrow.begin], boxes[arrow.end]
    x1, y1 = begin.edge(end.centre)
    x2, y2 = end.edge(begin.centre)
    length = max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
    across_x, across_y = -(y2 - y1) / length * arrow.shift, (x2 - x1) / length * arrow.shift
    return x1 + across_x, y1 + across_y, x2 + across_x, y2 + across_y


def _arrow(arrow: Arrow, boxes: dict[str, Box]) -> str:
    x1, y1, x2, y2 = _line(arrow, boxes)
    return (
        f'  <path d="M{x1:.0f} {y1:.0f} L{x2:.0f} {y2:.0f}" fill="none" stroke="#c2410c" stroke-width="1.6" '
        'marker-end="url(#tip)"/>\n'
    )


def _words(arrow: Arrow, boxes: dict[str, Box]) -> str:
    """Above a flat line, beside a steep one; behind them a border that keeps lines away."""
    x1, y1, x2, y2 = _line(arrow, boxes)
    middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2
    is_flat = abs(y2 - y1) < abs(x2 - x1) / 3
    below = is_flat and arrow.shift and x2 < x1
    top = middle_y + (18 if below else -8 - LINE * (len(arrow.words) - 1)) if is_flat else middle_y + 4
    side = 0 if is_flat or not arrow.shift else (1 if (y2 - y1) * arrow.shift < 0 else -1)
    anchor = ("end", "middle", "start")[side + 1]
    middle_x += 7 * side
    return "".join(
        f'  <text x="{middle_x:.0f}" y="{top + LINE * number:.0f}" text-anchor="{anchor}" font-size="11.5" '
        f'fill="#9a3412" stroke="#fbfaf7" stroke-width="4" paint-order="stroke">{escape(words)}</text>\n'
        for number, words in enumerate(arrow.words)
    )


def _box(box: Box) -> str:
    x, y = box.centre
    dashes = ' stroke-dasharray="6 4"' if box.kind == "outside" else ""
    rows = [
        f'  <rect x="{x - WIDE / 2:.0f}" y="{y - HIGH / 2:.0f}" width="{WIDE}" height="{HIGH}" rx="6" '
        f'fill="{COLOURS[box.kind]}" stroke="#52606d"{dashes}/>\n'
    ]
    top = y + 5 - LINE * (len(box.lines) - 1) / 2
    for number, words in enumerate(box.lines):
        weight = ' font-weight="bold"' if number == 0 else ' font-size="12"'
        rows.append(
            f'  <text x="{x:.0f}" y="{top + LINE * number:.0f}" text-anchor="middle"{weight}>{escape(words)}</text>\n'
        )
    return "".join(rows)


def main() -> None:
    """Write all pictures."""
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(drawn(picture), encoding="utf-8")


if __name__ == "__main__":
    main()
