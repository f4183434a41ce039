"""Every message of every method: which requests an endpoint accepts, and compatibility between releases."""

import re
import types
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.actors.permissions import permissions
from raylog.base.errors import ConnectionFailed, InvalidRequest, UnknownServerError
from raylog.protocol.broker import MetadataRequest
from raylog.protocol.documents.registry import ENDPOINTS, methods
from raylog.protocol.groups import JOIN_GROUP, OFFSET_COMMIT
from raylog.protocol.message import NAMES_MAX, ROWS_MAX, Message, read
from raylog.protocol.method import AnyMethod, Endpoint
from raylog.protocol.replica import FETCH, REPLICA, WRITE_TXN_MARKERS
from raylog.rpc import Role
from tests.unit.protocol.samples import inner, of_a_later_release, of_the_first_release, of_this_release

METHODS = list(methods())
NAMES = [f"{endpoint.name}: {method.name}" for endpoint, method in METHODS]
every_method = pytest.mark.parametrize(("endpoint", "method"), METHODS, ids=NAMES)

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
WIRE = st.recursive(
    SCALARS | st.text(max_size=5) | st.binary(max_size=5),
    lambda held: st.lists(held, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), held, max_size=3),
    max_leaves=12,
)
"""Any value that msgpack can carry."""
ODD: list[Any] = [None, True, -1, 2**63, 2**64 - 1, 1.5, float("nan"), "x", b"", b"\xff", [], [[]], [None], {}, {1: 2},
                  {"a": None}, [1, [2]]]  # fmt: skip


@every_method
def test_a_message_is_read_as_it_was_written(endpoint: Endpoint, method: AnyMethod) -> None:
    for kind in (method.request, method.reply):
        wire = of_this_release(kind)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(read(kind, wire, "it"))) == wire


@every_method
def test_fields_of_a_later_release_are_ignored_at_every_depth(endpoint: Endpoint, method: AnyMethod) -> None:
    for kind in (method.request, method.reply):
        assert read(kind, of_a_later_release(kind), "it") == read(kind, of_this_release(kind), "it")


@every_method
def test_fields_an_earlier_release_does_not_send_have_defaults(endpoint: Endpoint, method: AnyMethod) -> None:
    for kind in (method.request, method.reply):
        read(kind, of_the_first_release(kind), "it")


@every_method
def test_a_field_of_the_wrong_type_is_refused_by_its_name(endpoint: Endpoint, method: AnyMethod) -> None:
    right = of_this_release(method.request)
    for place, field in enumerate(msgspec.structs.fields(method.request)):
        wrong = 5 if inner(field.type) in (str, bytes, bool) else "text"
        with pytest.raises(InvalidRequest, match=f"the field '{field.name}"):
            endpoint.read_request(method.name, [*right[:place], wrong, *right[place + 1 :]])
    required = [field for field in msgspec.structs.fields(method.request) if field.required]
    for count, field in enumerate(required):
        with pytest.raises(InvalidRequest, match=f"'{field.name}' is missing"):
            endpoint.read_request(method.name, right[:count])


@every_method
def test_odd_values_in_any_place_become_the_stated_types_or_are_refused(endpoint: Endpoint, method: AnyMethod) -> None:
    right = of_this_release(method.request)
    for place in range(len(right)):
        for odd in ODD:
            args = [*right[:place], odd, *right[place + 1 :]]
            try:
                request = endpoint.read_request(method.name, args)
            except InvalidRequest:
                continue
            assert type(request) is method.request
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(request)) == args, "nothing was converted"


@settings(max_examples=300, deadline=None)
@given(where=st.sampled_from(METHODS), args=WIRE | st.lists(WIRE, max_size=9))
def test_any_arguments_are_read_or_refused(where: tuple[Endpoint, AnyMethod], args: Any) -> None:
    endpoint, method = where
    try:
        request = endpoint.read_request(method.name, args)
    except InvalidRequest:
        return
    assert isinstance(request, Message)


def test_no_arguments_at_all_are_an_empty_list() -> None:
    for endpoint, method in METHODS:
        if not any(field.required for field in msgspec.structs.fields(method.request)):
            assert endpoint.read_request(method.name, None) == method.request()
    with pytest.raises(InvalidRequest, match=r"fetch: expected 8 fields or more, got 0: 'topic_id' is missing\."):
        REPLICA.read_request("fetch", None)


def test_a_refusal_names_the_field_in_its_row() -> None:
    commit: list[Any] = ["g", 1, "m", [["id", "t", 0, 5, 1, ""], ["id", "t", "0", 5, 1, ""]]]
    with pytest.raises(InvalidRequest, match=r"offset_commit: the field 'offsets\[1\]\.partition' is wrong, expected"):
        OFFSET_COMMIT.read_request(commit)
    join: list[Any] = ["g", "", None, "c", 1, 1, "consumer", [["range", "QUJD"]]]
    with pytest.raises(InvalidRequest, match=r"'protocols\[0\]\.metadata' is wrong, expected bytes, got str"):
        JOIN_GROUP.read_request(join)


def test_a_method_that_is_not_stated_is_refused() -> None:
    for endpoint in ENDPOINTS:
        for name in ("", "no such method"):
            with pytest.raises(InvalidRequest, match=f"A {endpoint.name} knows no method '{name}'"):
                endpoint.read_request(name, [])


def test_a_whole_number_has_64_bits() -> None:
    right = of_this_release(FETCH.request)
    for value in (2**63 - 1, -(2**63)):
        assert FETCH.read_request([*right[:3], value, *right[4:]]).fetch_offset == value
    for value in (2**63, -(2**63) - 1, 2**64 - 1):
        with pytest.raises(InvalidRequest, match="'fetch_offset' is wrong, expected int"):
            FETCH.read_request([*right[:3], value, *right[4:]])


def test_what_batches_have_fewer_bits_for_has_no_more_in_requests() -> None:
    right = of_this_release(WRITE_TXN_MARKERS.request)
    fields = [field.name for field in msgspec.structs.fields(WRITE_TXN_MARKERS.request)]
    for name, bits in (("producer_epoch", 16), ("coordinator_epoch", 32), ("partition", 32)):
        place = fields.index(name)
        for value in (2 ** (bits - 1) - 1, -(2 ** (bits - 1))):
            assert getattr(WRITE_TXN_MARKERS.read_request([*right[:place], value, *right[place + 1 :]]), name) == value
        for value in (2 ** (bits - 1), -(2 ** (bits - 1)) - 1):
            with pytest.raises(InvalidRequest, match=f"'{name}' is wrong, expected int"):
                WRITE_TXN_MARKERS.read_request([*right[:place], value, *right[place + 1 :]])


@every_method
def test_encoded_arguments_are_read_as_decoded_ones(endpoint: Endpoint, method: AnyMethod) -> None:
    right = of_this_release(method.request)
    for args in (right, of_a_later_release(method.request), right[:-1], [*right[:-1], object], None, 5, {"a": 1}):
        plain = [each if each is not object else ODD for each in args] if isinstance(args, list) else args
        encoded = msgspec.Raw(msgspec.msgpack.encode(plain))
        try:
            found: object = endpoint.read_request(method.name, plain)
        except InvalidRequest as refusal:
            place = refusal.message.partition(", expected")[0]
            with pytest.raises(InvalidRequest, match=re.escape(place)):
                endpoint.read_request(method.name, encoded)
        else:
            for same in (endpoint.read_request(method.name, encoded), method.read_request(encoded)):
                assert msgspec.msgpack.encode(same) == msgspec.msgpack.encode(found)  # NaN is not equal to itself


def test_arguments_that_are_no_msgpack_are_refused() -> None:
    for endpoint, method in METHODS:
        for encoded in (b"\xc1", b"\x91" * 5_000, b"", b"\xdd\xff\xff\xff\xff"):
            with pytest.raises(InvalidRequest):
                endpoint.read_request(method.name, msgspec.Raw(encoded))
        for encoded in (b"\x91\xa1\xff", b"\x91\x81\x80\x00"):  # no UTF-8, a list as a key: fields may be skipped
            try:
                endpoint.read_request(method.name, msgspec.Raw(encoded))
            except InvalidRequest:
                pass


def test_none_requests_everything_where_that_is_stated() -> None:
    assert read(MetadataRequest, [None], "metadata").topics is None


def unbounded(kind: Any, where: str) -> list[str]:
    """The lists and mappings of a request that may have any number of entries, at every depth."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return [found for part in args for found in unbounded(part, where)]
    if origin is Annotated:
        is_bounded = any(getattr(each, "max_length", None) for each in args[1:])
        held = get_args(args[0])
        return unbounded(held[-1], f"{where}[]") if is_bounded and held else unbounded(args[0], where)
    if origin is not None:
        return [where, *unbounded(args[-1], f"{where}[]")]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return [found for field in fields for found in unbounded(field.type, f"{where}.{field.name}")]
    return []


@every_method
def test_a_request_of_a_client_has_no_list_without_a_bound(endpoint: Endpoint, method: AnyMethod) -> None:
    if method.role < Role.CLUSTER:
        assert unbounded(method.request, method.name) == []


def test_a_longer_list_is_refused_with_its_bound() -> None:
    assert read(MetadataRequest, [["t"] * NAMES_MAX], "metadata").topics == ["t"] * NAMES_MAX
    with pytest.raises(InvalidRequest, match=rf"'topics' is wrong, expected array of length <= {NAMES_MAX}"):
        read(MetadataRequest, [["t"] * (NAMES_MAX + 1)], "metadata")
    rows = [["id", "t", 0, 0, -1, ""]] * (ROWS_MAX + 1)
    with pytest.raises(InvalidRequest, match=rf"'offsets' is wrong, expected array of length <= {ROWS_MAX}"):
        read(OFFSET_COMMIT.request, ["g", -1, "", rows], "offset_commit")


def test_a_method_of_another_endpoint_is_a_reason_to_look_again() -> None:
    """The address was another process's: a sender that takes this for a refusal would give up what it sends."""
    for endpoint in ENDPOINTS:
        for _, method in methods():
            if method.name in endpoint.methods:
                continue
            with pytest.raises(ConnectionFailed, match=f"serves no {method.name}") as found:
                endpoint.read_request(method.name, [])
            assert found.value.retriable
            assert found.value.refresh_metadata
            refusal = permissions(endpoint).refusal(method.name, Role.CLIENT)
            assert isinstance(refusal, ConnectionFailed)


def outcome(method: AnyMethod, args: object) -> object:
    """What a reply is read as, or where its refusal begins."""
    try:
        return method.read_reply(args)
    except UnknownServerError as refusal:
        return refusal.message.partition(":")[0]


@every_method
def test_an_encoded_reply_is_read_as_a_decoded_one(endpoint: Endpoint, method: AnyMethod) -> None:
    for value in [of_this_release(method.reply), of_a_later_release(method.reply), *ODD]:
        encoded = msgspec.msgpack.encode(value)
        assert outcome(method, msgspec.Raw(encoded)) == outcome(method, msgspec.msgpack.decode(encoded)), value
    assert outcome(method, msgspec.Raw(b"\xc1")) == f"The reply to {method.name}"  # which msgpack has no meaning for
