"""The error tree: numbers are one class each, and errors travel by number and by pickle."""

import pickle

from raylog.base import errors
from raylog.base.errors import ConnectionFailed, LogTruncation, OffsetOutOfRange, RaylogError, UnknownServerError
from raylog.rpc import FrameTooLarge
from raylog.storage.errors import CorruptBatch, from_os_error


def test_each_number_belongs_to_one_class() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    numbered = [kind for kind in kinds if "code" in vars(kind) and kind is not RaylogError]
    assert len({kind.code for kind in numbered}) == len(numbered)
    assert all(type(errors.from_code(kind.code)) is kind for kind in numbered)


def test_subclasses_of_a_layer_travel_as_the_error_that_clients_know() -> None:
    for error in (CorruptBatch("cut"), FrameTooLarge("large"), from_os_error("append", OSError(28, "full"))):
        sent = errors.from_code(error.code, error.message, error.details)
        assert isinstance(error, type(sent))
        assert type(sent).__name__ in errors.__all__


def test_an_error_from_a_code_is_remote_and_keeps_message_and_details() -> None:
    error = errors.from_code(OffsetOutOfRange.code, "too far", {"start": 3})
    assert (error.message, error.details, error.is_remote) == ("too far", {"start": 3}, True)
    assert not ConnectionFailed().is_remote


def test_a_number_of_a_later_release_is_kept() -> None:
    error = errors.from_code(4711, "later")
    assert isinstance(error, UnknownServerError)
    assert (error.code, UnknownServerError.code) == (4711, -1)


def test_errors_survive_pickling_whatever_their_constructor_takes() -> None:
    disk = pickle.loads(pickle.dumps(CorruptBatch("its CRC is wrong", position=7)))
    assert (type(disk), disk.reason, disk.position) == (CorruptBatch, "its CRC is wrong", 7)
    remote = pickle.loads(pickle.dumps(errors.from_code(LogTruncation.code, "cut", {"position": 5})))
    assert (type(remote), str(remote), remote.details, remote.is_remote) == (
        LogTruncation,
        "cut",
        {"position": 5},
        True,
    )
