"""Formats values for a terminal: tables, times, sizes, bytes as text, JSON. Used by the commands."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

PLAIN_WIDTH = 200
"""Width in characters of a table that goes into a file or a pipe, where no window limits it."""


OTHER_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Escapes for characters that some programs take for the end of a line, and that JSON does not escape."""


def say(line: str) -> None:
    """Print a line about the progress of a command to standard error, so that its standard output stays the same."""
    click.echo(line, err=True)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 topic`, `2 topics`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, marks: Iterable[str] = ()
) -> None:
    """Print a table; `marks` has a style for each row ("red"; "" for none)."""
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
    """Print one JSON document, indented."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def json_line(value: object) -> str:
    """A JSON document in one line."""
    return json.dumps(value, ensure_ascii=False, default=_plain).translate(OTHER_LINE_ENDS)


def show_done(as_json: bool, facts: Mapping[str, object], *sentences: str) -> None:
    """Print what a command has done: as sentences, or the same facts as one JSON document."""
    if as_json:
        show_json(facts)
        return
    for sentence in sentences:
        click.echo(sentence)


def show_each(as_json: bool, done: Iterable[tuple[Mapping[str, object], str]]) -> None:
    """Print the steps of a command: each sentence at once, or all facts as one JSON list at the end.

    If a step raises an error, the list has the steps before it.
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
    """Print the state of a command that continues: a sentence, or the same facts as one line of JSON."""
    click.echo(json_line(facts) if as_json else sentence)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, set | frozenset | tuple):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def text_of(data: bytes | None) -> str:
    """Bytes in readable form: UTF-8 text if they are, otherwise `0x` and hexadecimal digits; `null` for None."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def shown_key(key: bytes | None) -> str:
    """A record's key for a table; `-` without a key."""
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
    """A timestamp as ISO 8601 in UTC with milliseconds; the bare number if it is outside the calendar."""
    if timestamp_ms < 0:
        return str(timestamp_ms)
    try:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(timestamp_ms // 1000))
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{whole}.{timestamp_ms % 1000:03d}Z"


def size(number: int) -> str:
    """A number of bytes with the largest unit up to TiB in which it is at least 1."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
