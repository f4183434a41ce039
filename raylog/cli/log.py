"""`raylog log dump`: the content of a partition's files as text. It reads the files itself and needs no cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raylog.cli.commands import Commands
from raylog.cli.options import json_option
from raylog.cli.output import json_bytes, json_line, moment, text_of
from raylog.cli.output import size as size_of

if TYPE_CHECKING:
    from raylog.storage.segments.dump import BatchRow, ProblemRow, RecordRow, Row

SEGMENT = ".log"
SEGMENTS = f"{'[0-9]' * 20}{SEGMENT}"
"""Segments are named after their first offset, in 20 digits."""


@click.group(cls=Commands)
def log() -> None:
    """Look into the files of a partition."""


@log.command()
@click.argument("place", metavar="FOLDER_OR_FILE", type=click.Path(path_type=Path))
@click.option("--records", is_flag=True, help="Show the records of each batch.")
@click.option("--offset", type=click.IntRange(min=0), help="Begin with the batch that holds this offset.")
@json_option("One JSON object a row.")
@click.pass_context
def dump(ctx: click.Context, place: Path, records: bool, offset: int | None, as_json: bool) -> None:
    """Show the batches of a segment file, or of all segments in a partition's folder, oldest first.

    It also checks what it reads: the exit code is 1 when a batch, a checksum or an index is wrong, and the place is
    shown.
    """
    damages = 0
    for path in segments_of(place):
        damages += _dump_file(path, records, offset, as_json)
    if damages:
        click.echo(f"raylog: {damages} {'place is' if damages == 1 else 'places are'} damaged.", err=True)
        ctx.exit(1)


def segments_of(place: Path) -> list[Path]:
    """The segment files of a file or folder. Raises ClickException, which says what to give instead."""
    if not place.exists():
        raise click.ClickException(f"{place} does not exist; give a partition's folder or one of its {SEGMENT} files")
    if place.is_file():
        if place.suffix != SEGMENT:
            raise click.ClickException(f"{place} is not a segment; give a {SEGMENT} file, or the folder it is in")
        return [place]
    found = sorted(place.glob(SEGMENTS))
    if found:
        return found
    inside = sorted(str(item.relative_to(place)) for item in {path.parent for path in place.rglob(SEGMENTS)})
    if not inside:
        raise click.ClickException(f"{place} holds no {SEGMENT} file; give a partition's folder, such as <topic>-0")
    shown = ", ".join(inside[:5]) + (", ..." if len(inside) > 5 else "")
    raise click.ClickException(f"{place} is not one partition's folder; choose one of those in it: {shown}")


def _dump_file(path: Path, records: bool, offset: int | None, as_json: bool) -> int:
    """Print one segment; returns the number of damaged places."""
    from raylog.storage.segments.dump import BatchRow, ProblemRow, check_indexes, dump_segment

    if not as_json:
        click.echo(f"{path} ({size_of(path.stat().st_size)})")
    batches = total = damages = 0
    for row in _all_from(dump_segment(path, records=records), offset):
        click.echo(json_row(row) if as_json else line_of(row))
        if isinstance(row, BatchRow):
            batches += 1
            total += row.record_count
            damages += not row.crc_valid
        damages += isinstance(row, ProblemRow)
    for problem in check_indexes(path):
        click.echo(json_row(problem) if as_json else problem_line(problem))
        damages += 1
    if not as_json:
        click.echo(f"  {batches} batches, {total} records")
    return damages


def _all_from(rows: Iterator[Row], offset: int | None) -> Iterator[Row]:
    """The rows from the batch that holds the offset on; problems are never left out."""
    from raylog.storage.segments.dump import BatchRow, ProblemRow

    wanted = offset is None
    for row in rows:
        if not wanted and isinstance(row, BatchRow):
            wanted = row.last_offset >= (offset or 0)
        if wanted or isinstance(row, ProblemRow):
            yield row


def batch_line(row: BatchRow) -> str:
    """One batch in one line."""
    parts = [
        f"  @{row.position}",
        f"offsets {row.base_offset}-{row.last_offset}",
        f"{row.record_count} records",
        size_of(row.size),
        f"epoch {row.leader_epoch}",
        moment(row.max_timestamp),
    ]
    if row.compression != "none":
        parts.append(row.compression)
    if row.producer_id >= 0:
        parts.append(f"producer {row.producer_id}/{row.producer_epoch} sequence {row.base_sequence}")
    parts += [name for name, holds in (("transactional", row.is_transactional), ("control", row.is_control)) if holds]
    if row.marker is not None:
        parts.append(row.marker)
    if row.magic != 77:
        parts.append(f"magic {row.magic}")
    parts.append(f"crc {row.crc:08x}" + ("" if row.crc_valid else " DAMAGED: the checksum does not match"))
    return "  ".join(parts)


def record_line(row: RecordRow) -> str:
    """One record in one line."""
    parts = [f"      {row.offset}", moment(row.timestamp), f"key {text_of(row.key)}", f"value {text_of(row.value)}"]
    if row.headers:
        parts.append("headers " + ", ".join(f"{name}={text_of(value)}" for name, value in row.headers))
    return "  ".join(parts)


def problem_line(row: ProblemRow) -> str:
    """Where a file is damaged, and how."""
    return f"  @{row.position}  DAMAGED: {row.reason} ({row.file})"


def line_of(row: Row) -> str:
    """A row in one line."""
    from raylog.storage.segments.dump import BatchRow, ProblemRow

    if isinstance(row, BatchRow):
        return batch_line(row)
    return problem_line(row) if isinstance(row, ProblemRow) else record_line(row)


def json_row(row: Row) -> str:
    """A row as a JSON line; its member `row` is the kind of row."""
    from raylog.storage.segments.dump import RecordRow

    fields: dict[str, object] = {"row": type(row).__name__.removesuffix("Row").lower(), **dataclasses.asdict(row)}
    if isinstance(row, RecordRow):
        for name in ("key", "value"):
            fields.pop(name)
        fields |= {**json_bytes("key", row.key), **json_bytes("value", row.value)}
        fields["headers"] = [{"name": name, **json_bytes("value", value)} for name, value in row.headers]
    return json_line(fields)
