"""Laws of the framing: however a stream is cut, the same frames come out; no bytes can do more than be refused."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.errors import RaylogError
from raylog.rpc.framing import LARGE_FRAME_BYTES, Frame, FrameDecoder, decode_args, decode_header, encode_header

MAX_FRAME_BYTES = 400_000

arguments = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
payloads = st.binary(max_size=300) | st.builds(
    lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(LARGE_FRAME_BYTES - 50, 300_000)
)
messages = st.lists(st.tuples(st.text(max_size=10), arguments, payloads), max_size=6)


def feed(stream: bytes, cuts: list[int]) -> tuple[list[Frame], RaylogError | None, int]:
    """Feed the stream with the first piece sizes as given, the rest as fits; also count the bytes it would not take."""
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    frames: list[Frame] = []
    rest = memoryview(stream)
    sizes = iter(cuts)
    while rest and decoder.failure is None:
        room = decoder.get_buffer()
        assert len(room) > 0
        count = min(len(room), len(rest), next(sizes, len(rest)))
        room[:count] = rest[:count]
        frames += decoder.buffer_updated(count)
        rest = rest[count:]
    return frames, decoder.failure, len(rest)


@settings(max_examples=100, deadline=None)
@given(messages, st.lists(st.integers(1, 100_000) | st.integers(1, 12), max_size=60))
def test_every_split_of_a_stream_gives_the_same_frames(sent: list[tuple[str, object, bytes]], cuts: list[int]) -> None:
    stream = b"".join(
        encode_header(0, number, method, args, len(payload)) + payload
        for number, (method, args, payload) in enumerate(sent)
    )
    frames, failure, _ = feed(stream, cuts)
    assert failure is None
    assert [((*header[1:3], decode_args(header[3])), bytes(payload)) for header, payload in frames] == [
        ((number, method, args), payload) for number, (method, args, payload) in enumerate(sent)
    ]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(1, 20), max_size=20))
def test_random_bytes_give_a_refusal_or_nothing_however_they_are_split(noise: bytes, cuts: list[int]) -> None:
    whole, failure, _ = feed(noise, [])
    split, split_failure, _ = feed(noise, cuts)
    assert [(header[:3], bytes(header[3]), bytes(payload)) for header, payload in whole] == [
        (header[:3], bytes(header[3]), bytes(payload)) for header, payload in split
    ]
    assert type(failure) is type(split_failure)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_frames_before_the_first_bad_one_are_still_delivered(payload: bytes, noise: bytes) -> None:
    good = encode_header(0, 1, "m", [], len(payload)) + payload
    bad = b"\xff\xff\xff\xff" + noise.ljust(4, b"\0")
    frames, failure, _ = feed(good + bad, [])
    assert [bytes(tail) for _, tail in frames] == [payload]
    assert failure is not None


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=100))
def test_a_header_of_random_bytes_raises_nothing_but_our_own_error(noise: bytes) -> None:
    try:
        header = decode_header(noise)
    except RaylogError:
        return
    assert header[0] in (0, 1, 2, 3)
