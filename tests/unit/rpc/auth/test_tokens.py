"""Grants, their claims, and tokens as text."""

import base64
import pickle
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.rpc.auth.token_text import PREFIX, parse_token, token_text
from raylog.rpc.auth.tokens import (
    ALL_PARTITIONS,
    Form,
    Grant,
    Token,
    TokenError,
    TopicGrant,
    mint,
    ranges_of,
    read_claims,
)

SECRET = b"a secret for tests"
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
ranges = st.sets(st.integers(0, 60), max_size=8).map(ranges_of) | st.just(ALL_PARTITIONS)
ids = st.binary(min_size=16, max_size=16).map(bytes.hex) | names
topics = st.builds(TopicGrant, ids, names, ranges, st.booleans())
grants = st.builds(
    Grant, st.integers(0, 2**40), st.lists(topics, max_size=4).map(tuple), st.none() | names, st.none() | names
)


@given(grants)
def test_a_token_holds_what_was_granted(grant: Grant) -> None:
    token = mint(SECRET, grant)
    assert token.grant == grant
    assert parse_token(token_text(token)) == token
    assert parse_token("\n ".join((token_text(token)[:50], token_text(token)[50:]))) == token, "wrapped when copied"


@given(st.binary(max_size=80), st.sampled_from(Form))
def test_any_claims_are_read_or_refused(claims: bytes, form: Form) -> None:
    try:
        read_claims(claims, form)
    except TokenError:
        pass


def test_what_a_later_release_adds_to_claims_is_read_over() -> None:
    topic = [bytes(16), "t", 3, [], "new"]
    claims = msgspec.msgpack.encode([5, [topic], None, None, "new"])
    assert read_claims(claims, Form.TOPICS) == Grant(5, (TopicGrant("00" * 16, "t", ALL_PARTITIONS, writes=True),))


def test_partitions_alone_are_claimed_as_earlier_releases_read_them() -> None:
    assert mint(SECRET, Grant(1, (TopicGrant("id", "t", ranges_of([0, 2, 3])),))).form == Form.PARTITIONS
    for wide in (TopicGrant("id", "t", ALL_PARTITIONS), TopicGrant("id", "t", writes=True)):
        assert mint(SECRET, Grant(1, (wide,))).form == Form.TOPICS
    assert mint(SECRET, Grant(1, group="g")).form == Form.TOPICS


def test_ten_whole_topics_fit() -> None:
    many = tuple(
        TopicGrant(f"{number:032x}", f"flights.delays.{number:04}", ALL_PARTITIONS, True) for number in range(15)
    )
    assert len(mint(SECRET, Grant(2**33, many, "sink", "g")).claims) <= 640


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "A token begins with 'raylog-token-'"),
        ("00ff" * 16, "A secret is given as secret"),
        (PREFIX, "is incomplete"),
        (PREFIX + "?" * 90, "is incomplete"),
        (PREFIX + "ä" * 90, "is incomplete"),
        (token_text(mint(SECRET, Grant(1)))[:-1], "is incomplete"),
        (token_text(mint(SECRET, Grant(1))) + "A", "is incomplete"),
        (token_text(mint(SECRET, Grant(1))).replace("-token-", "-Token-"), "A token begins with"),
        (token_text(Token(b"no claims", bytes(32))), "cannot be read"),
    ],
)
def test_a_wrong_text_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(TokenError, match=sentence) as refusal:
        parse_token(text)
    assert len(text) < 20 or text not in str(refusal.value)


def test_every_changed_letter_is_noticed() -> None:
    line = token_text(mint(SECRET, Grant(1, (TopicGrant("id", "t", writes=True),))))
    for at in range(len(PREFIX), len(line) - 1):
        with pytest.raises(TokenError):
            parse_token(line[:at] + ("A" if line[at] != "A" else "B") + line[at + 1 :])


def test_a_text_of_a_later_release_says_so() -> None:
    for version, form in ((2, 3), (1, 9)):
        body = bytes([version, form]) + bytes(40)
        checked = body + zlib.crc32(body).to_bytes(4, "big")
        with pytest.raises(TokenError, match="newer release"):
            parse_token(PREFIX + base64.urlsafe_b64encode(checked).decode().rstrip("="))


def test_a_token_shows_neither_key_nor_secret() -> None:
    token = mint(SECRET, Grant(1))
    assert repr(token.key) not in repr(token)
    assert token.key.hex() not in repr(token)
    assert SECRET not in pickle.dumps(token)
    assert SECRET not in base64.urlsafe_b64decode(token_text(token)[len(PREFIX) :] + "==")
