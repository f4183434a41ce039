"""The kinds of commands: groups that suggest the nearest command, and commands whose help has sections.

Used by every command. Imports only click.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from raylog.base.errors import did_you_mean

CLUSTER_OPTIONS = ("bootstrap", "secret_file", "token_file", "address", "data_dir")
"""The options that name the cluster. Every command has them, so help shows them in a section of their own."""
SHORT_HELP_MAX = 200
"""Most characters of a command's first sentence in a list: enough to show it whole."""


class Imported(MutableMapping[str, click.Command]):
    """Commands by name. Looking one up imports it from its module, where it has the same name."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        """`homes`: the module of each command."""
        self._homes = dict(homes)
        self._found: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._found:
            self._found[name] = getattr(import_module(self._homes[name]), name)
        return self._found[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._homes[name], self._found[name] = "", command

    def __delitem__(self, name: str) -> None:
        del self._homes[name]
        self._found.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


class PlainCommand(click.Command):
    """A command whose help shows its own options first, then those that name the cluster."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both sections."""
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], "Which cluster": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if row is not None:
                is_common = parameter.name in CLUSTER_OPTIONS and len(self.params) > len(CLUSTER_OPTIONS)
                rows["Which cluster" if is_common else "Options"].append(row)
        for title, found in rows.items():
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


class Commands(click.Group):
    """A group that suggests the nearest command for an unknown one, and lists the first sentences of commands whole."""

    command_class = PlainCommand
    sections: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Titles, and the commands below each; commands without a section come last, as `Commands`."""
    elsewhere: Mapping[str, str] = MappingProxyType({})
    """Names that are not commands of this group, with what to type instead."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; raises UsageError with a suggestion."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(self._unknown(ctx, args[0]), ctx)
        return super().resolve_command(ctx, args)

    def _unknown(self, ctx: click.Context, name: str) -> str:
        if name in self.elsewhere:
            return f"Unknown command {name!r}: {self.elsewhere[name]}"
        deeper = [path for path in self._paths(ctx.command_path) if path.split()[-1] == name]
        if deeper:
            return f"Unknown command {name!r}; did you mean {' or '.join(f'`{path}`' for path in deeper[:4])}?"
        return did_you_mean("command", name, self.list_commands(ctx))

    def _paths(self, path: str) -> Iterator[str]:
        for name, command in self.commands.items():
            if isinstance(command, Commands):
                yield from (f"{path} {name} {below}" for below in command.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by section."""
        left = dict.fromkeys(self.list_commands(ctx))
        for title, names in (*self.sections, ("Commands", tuple(left))):
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                if name in left and command is not None and not command.hidden:
                    rows.append((name, command.get_short_help_str(SHORT_HELP_MAX)))
                left.pop(name, None)
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class ManyValues(PlainCommand):
    """A command whose `key=value` options take several values, as in Kafka's tools: `--config a=1 b=2`."""

    many: tuple[str, ...] = ("--config", "--add-config", "--producer-props", "--consumer-props")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each further value, which is the form that click parses."""
        spread: list[str] = []
        current: str | None = None
        one_is_first = True
        for arg in args:
            if arg.startswith("-"):
                current, one_is_first = (arg if arg in self.many else None), True
                if current is None:
                    spread.append(arg)
            elif current is not None and (one_is_first or "=" in arg):
                spread += [current, arg]
                one_is_first = False
            else:
                spread.append(arg)
        if args and args[-1] in self.many:
            spread.append(args[-1])  # without a value: click reports it
        return super().parse_args(ctx, spread)


def hint(error: click.UsageError) -> str:
    """A sentence on what to write instead of an option of Kafka's tools; empty for other errors."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    name, path = error.option_name, error.ctx.command_path
    arguments: list[Any] = [each for each in error.ctx.command.params if isinstance(each, click.Argument)]
    wanted = {"--topic": ("name", "names", "topic"), "--group": ("name", "names", "group")}.get(name, ())
    if any(each.name in wanted for each in arguments):
        return f"The {name[2:]} is an argument: `{path} {name[2:].upper()}`."
    known = {option for each in error.ctx.command.params for option in each.opts}
    instead = {
        "--property": ("--producer-props", "--consumer-props", "--config"),
        "--producer-property": ("--producer-props",),
        "--consumer-property": ("--consumer-props",),
        "--command-config": ("--secret-file",),
        "--zookeeper": ("--bootstrap",),
    }.get(name, ())
    found = [option for option in instead if option in known]
    return f"Give {' or '.join(f'`{option}`' for option in found)} instead." if found else ""
