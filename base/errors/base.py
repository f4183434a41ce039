"""Roots of the error tree, and the flags by which clients decide. Pure."""

from __future__ import annotations

from typing import Any, ClassVar


class RaylogError(Exception):
    """Root of every error that Raylog raises on purpose."""

    code: int = -1
    """Kafka's error number; -1 = unknown server error; numbers from 1000 on are Raylog's own."""
    retriable: ClassVar[bool] = False
    """True when the same request may succeed later without the caller changing anything."""
    refresh_metadata: ClassVar[bool] = False
    """True when the sender's view of the cluster is out of date."""
    is_remote: bool = False
    """True for an error that another process sent; False for one raised locally, such as a deadline that passed."""

    def __init__(self, message: str = "", /, **details: object) -> None:
        """Keep the message and the facts behind it; the default message is the first line of the class's docstring."""
        self.message = message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        self.details: dict[str, object] = details
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the constructor: a subclass's constructor may take facts and build the message from them."""
        return _unpickled, (type(self), self.message), self.__dict__


def _unpickled(kind: type[RaylogError], message: str) -> RaylogError:
    return kind.__new__(kind, message)


class UnknownServerError(RaylogError):
    """The server failed in a way it did not expect; its log has the details."""


class RetriableError(RaylogError):
    """Root of the errors after which the same request may succeed."""

    retriable = True


class StaleMetadataError(RetriableError):
    """Root of the errors after which a client fetches metadata and tries again."""

    refresh_metadata = True
