"""Errors as sentences with the next step. Used by `app`. Pure."""

from __future__ import annotations

import errno
import re

import click

from raylog.base import errors
from raylog.cli.commands import hint

NO_CLUSTER = (
    "No Raylog cluster was found here; run `raylog start`, or give --bootstrap host:port and --secret-file for one "
    "that runs elsewhere."
)
_NEXT_STEP: dict[type[errors.RaylogError], str] = {
    errors.UnknownTopicOrPartition: "`raylog topic list` shows the topics.",
    errors.TopicAlreadyExists: "Choose another name, or add --if-not-exists.",
    errors.GroupIdNotFound: "`raylog group list` shows the groups.",
    errors.TransactionalIdNotFound: "`raylog transaction list` shows the transactional ids.",
    errors.NonEmptyGroup: "Stop its consumers first; `raylog group describe` names them.",
    errors.ConnectionFailed: "`raylog status` shows which brokers are online.",
    errors.RequestTimedOut: "`raylog status` shows what is offline.",
    errors.NotEnoughReplicas: "`raylog status` shows which replicas are out of sync.",
    errors.LeaderNotAvailable: "`raylog status` shows what is offline.",
    errors.DeliveryTimedOut: "`raylog status` shows what is offline.",
    errors.AuthenticationFailed: "The secret is in the file `client-secret` of the cluster's data directory; "
    "give it with --secret-file.",
    errors.ClusterAuthorizationFailed: "The cluster's own secret is in the file `secret` of its data directory; "
    "`raylog token show` shows what a token grants.",
    errors.OffsetOutOfRange: "Give an offset inside that range, or `earliest` or `latest`.",
}


def _number_wanted(found: re.Match[str]) -> str:
    return "is no whole number." if found[1] == "integer" else "is no number."


def usage_complaint(error: click.UsageError, prog_name: str) -> str:
    """What is wrong with the arguments, and which help lists the right ones, in one line."""
    path = error.ctx.command_path if error.ctx is not None else prog_name
    more = hint(error)
    text = re.sub(r"is not a valid (integer|float)( range)?\.?$", _number_wanted, error.format_message())
    return f"raylog: {_sentence(text)}{f' {more}' if more else ''} See `{path} --help`."


def explain(error: Exception) -> str:
    """The sentence for an error: what happened, and what to do next."""
    if isinstance(error, click.ClickException):
        return _sentence(error.format_message())
    if isinstance(error, errors.NoClusterFound):
        message = str(error)
        return NO_CLUSTER if message == errors.NoClusterFound().message else message
    if isinstance(error, errors.RaylogError):
        message = _sentence(error.message)
        if isinstance(error, errors.GroupIdNotFound | errors.TransactionalIdNotFound):
            message = _sentence(message.partition(";")[0])  # the rest describes the Python call that lists them
        step = next((step for kind, step in _NEXT_STEP.items() if isinstance(error, kind)), "")
        return message if not step or "`" in message else f"{message} {step}"
    if isinstance(error, TimeoutError) and not error.filename:
        return f"{_sentence(str(error) or 'The cluster did not answer in time')} `raylog status` shows what is offline."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = error.filename or "the disk of the data directory, or of the folder for temporary files"
        return f"{where}: No space left on device. Free some space, and try again."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    module = type(error).__module__
    if module.startswith("raylog."):
        return _sentence(str(error))
    if module.split(".")[0] == "sqlalchemy":
        reason = str(getattr(error, "orig", None) or error)
        return _sentence(f"The database reports: {reason.splitlines()[0] if reason else type(error).__name__}")
    first_line = next((line for line in str(error).splitlines() if line.strip()), "no details")
    origin = "Ray reports" if module.split(".")[0] == "ray" else "This should not happen"
    return f"{origin}: {type(error).__name__}: {first_line.strip()} - run it again with --debug to see where."


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."
