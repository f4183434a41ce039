"""Run the command line in this process, as a user would type it."""

import os
from dataclasses import dataclass

from click.testing import CliRunner

from raylog.cli.app import cli

FORGOTTEN = (
    *("RAYLOG_BOOTSTRAP", "RAYLOG_SECRET", "RAYLOG_TOKEN", "RAYLOG_SECRET_FILE", "RAYLOG_TOKEN_FILE"),
    "RAY_ADDRESS",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


def raylog(*arguments: str, stdin: str | bytes = "", **variables: str) -> Outcome:
    """Run one command; `variables` are set in its environment."""
    environment: dict[str, str | None] = {name: None for name in FORGOTTEN if name in os.environ}
    result = CliRunner().invoke(cli, list(arguments), input=stdin, env={**environment, **variables}, prog_name="raylog")
    return Outcome(result.exit_code, result.stdout, result.stderr)


def refusal(outcome: Outcome, code: int) -> str:
    """The one line with which a command was refused: no traceback, nothing on standard output."""
    assert outcome.code == code, outcome
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome
    assert lines[0].startswith("raylog: "), outcome
    assert "Traceback" not in outcome.err
    return lines[0]
