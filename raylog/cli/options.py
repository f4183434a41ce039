"""Shared by commands: options for the cluster, `key=value` lists, properties files.

Used by every command. Imports only click; Ray is imported when a command looks for its cluster through Ray.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from raylog.cli.own_cluster import ENV_BOOTSTRAP, require_an_answer, require_own

if TYPE_CHECKING:
    from raylog.client.admin.admin import Admin

ENV_SECRET = "RAYLOG_SECRET"  # the name of a variable, not a secret
ENV_TOKEN = "RAYLOG_TOKEN"  # the same
ENV_SECRET_FILE = "RAYLOG_SECRET_FILE"
ENV_TOKEN_FILE = "RAYLOG_TOKEN_FILE"
DEFAULT_DATA_DIR = "raylog-data"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster a command uses: named by its brokers' addresses, or found through Ray."""

    bootstrap: str | None
    secret_file: Path | None
    address: str | None
    data_dir: Path
    token_file: Path | None = None

    def client_arguments(self, config: dict[str, Any] | None = None) -> dict[str, Any]:
        """Keyword arguments for a client; joins Ray when no bootstrap address is known.

        `config` has further keys as the user gave them; its `bootstrap.servers` wins over --bootstrap.
        """
        config = dict(config or {})
        bootstrap = config.pop("bootstrap.servers", None) or self.bootstrap
        if not bootstrap:
            self.join_ray()
            return {"config": config, **({} if self.token_file is None else self._proved())}
        proved = self._proved()
        require_an_answer(str(bootstrap), self.data_dir)
        return {"bootstrap": bootstrap, **proved, "config": config}

    def admin(self) -> Admin:
        """Return an admin client; the caller closes it."""
        from raylog.client.admin.admin import Admin

        return Admin(**self.client_arguments())

    def require_own(self) -> None:
        """Raise UsageError unless the user named this cluster: for commands that cannot be undone."""
        if not self.bootstrap:
            self.join_ray()
            require_own(self.address, self.data_dir)

    def join_ray(self) -> str:
        """Join the Ray cluster that these options mean, and return its address. Raises NoClusterFound."""
        from raylog.cli.ray_node import join

        return join(self.address, self.data_dir)

    def _proved(self) -> dict[str, str]:
        """The secret or the token, as an argument of a client; options win over variables.

        A command may run for long, so its client gets the path of a regular file, and reads it again when it changes.
        Anything else, such as a pipe, is read once here.
        """
        if self.secret_file is not None and self.token_file is not None:
            raise click.UsageError("--secret-file and --token-file are both given; leave one out")
        if self.token_file is not None:
            return _file_or_text("token", self.token_file, self.token_file.read_text(encoding="utf-8"))
        if self.secret_file is not None:
            return _file_or_text("secret", self.secret_file, _secret_in(self.secret_file))
        names = {
            ENV_SECRET: "secret",
            ENV_TOKEN: "token",
            ENV_SECRET_FILE: "secret_file",
            ENV_TOKEN_FILE: "token_file",
        }
        found = [name for name in names if os.environ.get(name)]
        if len(found) > 1:
            raise click.UsageError(f"{found[0]} and {found[1]} are both set; unset one of them")
        if not found:
            raise click.UsageError(
                f"--bootstrap needs the cluster's secret: give --secret-file, or set {ENV_SECRET}; it is the file "
                f"`client-secret` in the cluster's data directory. Or a token: give --token-file, or set {ENV_TOKEN}"
            )
        return {names[found[0]]: os.environ[found[0]]}


def _file_or_text(kind: str, path: Path, text: str) -> dict[str, str]:
    return {f"{kind}_file": str(path)} if path.is_file() else {kind: text}


def _secret_in(path: Path) -> str:
    secret = (path.read_text(encoding="utf-8").split() or [""])[0]  # the newest value
    try:
        bytes.fromhex(secret)
    except ValueError:
        secret = ""
    if not secret:
        raise click.UsageError(
            f"{path} holds no secret in hexadecimal digits; it is the file `client-secret` in the cluster's data "
            "directory"
        )
    return secret


class CredentialPath(click.Path):
    """The path of a file with a secret or a token. A secret or token itself is refused, without showing it."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Fails if there is no such file."""
        from raylog.client.cluster.credentials import is_credential

        if is_credential(str(value)) and not Path(value).exists():
            self.fail("it takes the path of a file; what was given reads as its content, and is not shown", param, ctx)
        return super().convert(value, param, ctx)


def cluster_options(function: Function) -> Function:
    """Add the options that name a cluster; the command gets them as one argument `target`."""

    @functools.wraps(function)
    def with_target(
        *args: Any,
        bootstrap: str | None,
        secret_file: Path | None,
        token_file: Path | None,
        address: str | None,
        data_dir: Path,
        **kwargs: Any,
    ) -> Any:
        return function(*args, target=Target(bootstrap, secret_file, address, data_dir, token_file), **kwargs)

    options = [
        click.option(
            *("--bootstrap", "--bootstrap-server", "bootstrap"),
            envvar=ENV_BOOTSTRAP,
            metavar="HOST:PORT[,...]",
            help=f"Brokers to begin with; needs no Ray, but the secret or a token.  [env: {ENV_BOOTSTRAP}]",
        ),
        click.option(
            "--secret-file",
            type=CredentialPath(),
            help=f"File with the cluster's secret; otherwise the variable {ENV_SECRET_FILE}, or {ENV_SECRET}.",
        ),
        click.option(
            "--token-file",
            type=CredentialPath(),
            help=f"File with a token instead; otherwise the variable {ENV_TOKEN_FILE}, or {ENV_TOKEN}.",
        ),
        address_option,
        data_dir_option,
    ]
    wrapped: Any = with_target
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _read_address(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Refuse text that is no Ray address. A value from RAY_ADDRESS is checked only when it is used."""
    if text and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
        from raylog.base.errors import NoClusterFound
        from raylog.client.cluster.ray_session import require_ray_address

        try:
            require_ray_address(text, "--address")
        except NoClusterFound as error:
            raise click.UsageError(error.message, ctx) from None
    return text


address_option = click.option(
    "--address",
    envvar="RAY_ADDRESS",
    callback=_read_address,
    metavar="HOST:PORT",
    help="Ray cluster to use; default: the one `raylog start` made here, else the one on this machine.",
)


def _read_folder(ctx: click.Context, param: click.Parameter, path: Path) -> Path:
    """Refuse a device, a pipe and the like, which click's `file_okay=False` lets through."""
    if path.exists() and not path.is_dir():
        raise click.BadParameter(f"{str(path)!r} is no directory", ctx, param)
    return path


data_dir_option = click.option(
    "--data-dir",
    callback=_read_folder,
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(DEFAULT_DATA_DIR),
    show_default=True,
    help="Data directory of a cluster on this machine.",
)


def json_option(what: str = "As JSON.") -> Callable[[Function], Function]:
    """Add `--json` to a command that prints: the same facts as one JSON document, or as one document a line."""
    return click.option("--json", "as_json", is_flag=True, help=what)


yes_option = click.option("--yes", is_flag=True, help="Skip the confirmation prompt, which a terminal shows.")


def confirm(sentence: str, yes: bool) -> None:
    """Let a person at a terminal confirm what cannot be undone; a script goes on without. Raises click.Abort."""
    if not yes and sys.stdin.isatty():
        click.confirm(sentence, abort=True, err=True)


def pairs(option: str, values: Iterable[str]) -> dict[str, str]:
    """Parse `key=value` arguments. Raises UsageError for an argument of another form."""
    found: dict[str, str] = {}
    for item in values:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{option} takes key=value, and {item!r} is not of that form")
        found[name.strip()] = value.strip()
    return found


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of `key=value` lines and `#` or `!` comments, as Kafka's tools do. Raises UsageError."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"line {number} of {path} is not key=value: {text!r}")
        found[name.strip()] = value.strip()
    return found


def read_moment(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | int | None:
    """Parse a time: milliseconds since 1970, or ISO 8601 with a zone. Raises BadParameter."""
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        example = "2026-03-01T12:00:00+01:00"
        reason = f"{text!r} is no time such as {example}, nor milliseconds since 1970"
        raise click.BadParameter(reason, ctx, param) from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no zone; add one, such as Z or +01:00", ctx, param)
    return found
