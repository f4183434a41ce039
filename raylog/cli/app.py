"""The command `raylog`: its subcommands, and the one place where errors become sentences and exit codes.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted. The modules imported here are light: each command
imports Ray, clients and rich itself, so that `raylog --help` answers at once.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import click

from raylog.cli.commands import Commands, Imported
from raylog.cli.error_sentences import explain, usage_complaint

INTERRUPTED = 130
BROKEN_PIPE = 141
"""Exit code that a shell reports for a program that SIGPIPE has ended."""


STANDARD_OUTPUT = "standard output"


class _PipeClosed(Exception):
    """The reader of standard output has closed it."""


@contextlib.contextmanager
def _closed_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _PipeClosed from error


class CommandLine(Commands):
    """The root command: it runs a command, and turns an error into one sentence and an exit code."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *rest: Any, **options: Any
    ) -> NoReturn:
        """Run a command and end the process. click's own error handling is not used, so that all errors look alike."""
        arguments = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in arguments
        # `--debug` is accepted anywhere: users append it to the line that has just failed.
        arguments = [argument for argument in arguments if argument != "--debug"]
        options["standalone_mode"] = False
        _set_up_logging(debug)
        _open_streams()
        sys.exit(self._run(arguments, prog_name or "raylog", debug, options))

    sections = (
        ("Cluster", ("start", "stop", "status", "logs", "features", "balance", "config", "secret", "token", "metrics")),
        ("Topics and records", ("topic", "produce", "consume", "schedule", "half", "dlq", "log", "perf")),
        ("Readers and writers", ("group", "queue", "transaction", "outbox")),
    )

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """As click's, but a closed pipe is passed on as `_PipeClosed`: click would exit with 1."""
        with _closed_pipes():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, with the same exception."""
        with _closed_pipes():
            return super().invoke(ctx)

    def _run(self, arguments: list[str], prog_name: str, debug: bool, options: dict[str, Any]) -> int:
        try:
            code = super().main(arguments, prog_name, **options)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            return 0
        except click.UsageError as error:
            click.echo(usage_complaint(error, prog_name), err=True)
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("Interrupted.", err=True)
            return INTERRUPTED
        except (BrokenPipeError, _PipeClosed):
            _forget_stdout()
            return BROKEN_PIPE
        except Exception as error:  # the last place where an error can still become a sentence
            if debug:
                import traceback

                traceback.print_exc()
            click.echo(f"raylog: {explain(error)}", err=True)
            if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
                _forget_stdout()
            return 1


def _set_up_logging(debug: bool) -> None:
    """Show log messages with `--debug` only; without it an error is one sentence, printed once."""
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    else:
        logging.getLogger("raylog").addHandler(logging.NullHandler())


class _StandardOutput(io.FileIO):
    """Standard output whose errors name it, so that they are not mistaken for errors of the data directory's disk."""

    def write(self, data: Any) -> int:
        """As FileIO, but the error has the name of the stream."""
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from None


def _name_stdout() -> None:
    """Replace sys.stdout by a `_StandardOutput`, unless it is not the process's own standard output."""
    text = sys.stdout
    before: Any = getattr(text, "buffer", None)
    raw = getattr(before, "raw", before)  # Python's own stream has no buffer with PYTHONUNBUFFERED
    if not isinstance(text, io.TextIOWrapper) or type(raw) is not io.FileIO:
        return
    named: Any = _StandardOutput(raw.fileno(), "w", closefd=False)
    is_plain = raw is before
    sys.stdout = io.TextIOWrapper(
        named if is_plain else io.BufferedWriter(named),
        text.encoding,
        text.errors,
        line_buffering=text.line_buffering,
        write_through=is_plain,
    )


def _open_streams() -> None:
    """Make the use of a closed standard stream (`raylog topic list >&-`) an OSError: Python sets the stream to None."""
    _name_stdout()
    for name, opposite, mode in (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, opposite), mode))  # noqa: SIM115 - open until the end


def _forget_stdout() -> None:
    """Redirect a closed standard output (`raylog consume | head`) to /dev/null, so the last flush does not fail."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


COMMANDS = Imported(
    {
        "start": "raylog.cli.cluster.lifecycle",
        "stop": "raylog.cli.cluster.lifecycle",
        "status": "raylog.cli.status",
        "topic": "raylog.cli.reassign",
        "balance": "raylog.cli.reassign",
        "group": "raylog.cli.groups.command",
        "transaction": "raylog.cli.transactions",
        "queue": "raylog.cli.queues",
        "schedule": "raylog.cli.schedules",
        "half": "raylog.cli.half_messages",
        "dlq": "raylog.cli.dead_letters",
        "config": "raylog.cli.configs",
        "features": "raylog.cli.cluster.features",
        "produce": "raylog.cli.records.produce",
        "consume": "raylog.cli.records.consume",
        "log": "raylog.cli.log",
        "logs": "raylog.cli.logs",
        "outbox": "raylog.cli.outbox",
        "metrics": "raylog.cli.cluster.metrics",
        "perf": "raylog.cli.perf.command",
        "secret": "raylog.cli.cluster.secret",
        "token": "raylog.cli.cluster.token",
    }
)
"""The commands and their modules; only the module of the command that runs is imported."""


@click.group(
    cls=CommandLine,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="raylog", prog_name="raylog")
@click.option("--debug", is_flag=True, help="Show the traceback of an error; may stand anywhere on the line.")
def cli(debug: bool) -> None:
    """Raylog, a log broker that lives inside a Ray cluster.

    `raylog start` brings up a cluster on this machine; the other commands find it by themselves. Without Ray, give
    --bootstrap host:port and the cluster's secret (--secret-file, or the variable RAYLOG_SECRET).
    """
