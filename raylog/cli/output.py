"""Formats values for a terminal: tables, times, sizes, bytes as text, JSON. Used by the commands."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

PLAIN_WIDTH = 200
"""Columns of a table that goes into a file or a pipe, where no window limits it."""


OTHER_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""What some programs take for the end of a line, and JSON does not escape."""


def say(line: str) -> None:
    """Report on standard error how far a command is, so that what it prints stays what it was."""
    click.echo(line, err=True)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 topic`, `2 topics`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, marks: Iterable[str] = ()
) -> None:
    """Draw a table; `marks` gives one style a row ("red", "" for none)."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    if title:
        click.echo(title)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    styles = iter(marks)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row), style=next(styles, "") or None)
    console.print(table)


def show_json(value: object) -> None:
    """One JSON document, indented."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def json_line(value: object) -> str:
    """One JSON document in one line."""
    return json.dumps(value, ensure_ascii=False, default=_plain).translate(OTHER_LINE_ENDS)


def show_done(as_json: bool, facts: Mapping[str, object], *sentences: str) -> None:
    """What a command has done: its sentences, or the same facts as one JSON document."""
    if as_json:
        show_json(facts)
        return
    for sentence in sentences:
        click.echo(sentence)


def show_each(as_json: bool, done: Iterable[tuple[Mapping[str, object], str]]) -> None:
    """What a command does one after another: each sentence at once, or all facts as one JSON list at the end.

    Where it ends with an error, the list has what was done before.
    """
    rows = []
    try:
        for facts, sentence in done:
            rows.append(facts)
            if not as_json:
                click.echo(sentence)
    except BaseException:
        if as_json and rows:
            show_json(rows)
        raise
    if as_json:
        show_json(rows)


def show_step(as_json: bool, facts: Mapping[str, object], sentence: str) -> None:
    """What a command that goes on has to say now: a sentence, or the same facts as one line of JSON."""
    click.echo(json_line(facts) if as_json else sentence)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, set | frozenset | tuple):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def text_of(data: bytes | None) -> str:
    """Readable form of bytes: text where it is text, else `0x` and hexadecimal digits, `null` for a null."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def shown_key(key: bytes | None) -> str:
    """A record's key in a table: `-` where it has none."""
    return "-" if key is None else text_of(key)


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """A JSON member for bytes: the text under its name, or base64 under `<name>_base64` when it is no text."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def moment(timestamp_ms: int) -> str:
    """A timestamp in UTC with milliseconds; the bare number where it is no time of a calendar."""
    if timestamp_ms < 0:
        return str(timestamp_ms)
    try:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(timestamp_ms // 1000))
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{whole}.{timestamp_ms % 1000:03d}Z"


def size(number: int) -> str:
    """Bytes in the unit that keeps them short."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
