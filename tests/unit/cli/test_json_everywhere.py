"""Every command that prints has `--json`; and lines of `raylog consume --json` are read back as what they were."""

import json
from collections.abc import Iterator

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.cli.app import cli
from raylog.cli.output import show_each
from raylog.cli.records.json_lines import Line, read_line, write_line
from raylog.client.types import Record
from tests.unit.cli.support import raylog, refusal
from tests.unit.cli.test_usage import ALL


def command(words: tuple[str, ...]) -> click.Command:
    found: click.Command = cli
    for word in words:
        assert isinstance(found, click.Group)
        found = found.commands[word]
    return found


LEAVES = [words for words in ALL if not isinstance(command(words), click.Group)]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_json(words: tuple[str, ...]) -> None:
    (option,) = [each for each in command(words).params if "--json" in each.opts]
    assert isinstance(option, click.Option)
    assert option.is_flag
    assert option.help


def test_an_error_is_one_line_beside_no_document() -> None:
    outcome = raylog("topic", "list", "--json", "--bootstrap", "127.0.0.1:1", RAYLOG_SECRET="00")
    assert refusal(outcome, 1)
    assert outcome.out == ""


def test_what_was_done_before_an_error_is_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    def steps() -> Iterator[tuple[dict[str, object], str]]:
        yield {"topic": "a"}, "a is done"
        raise ValueError("b is not")

    with pytest.raises(ValueError, match="b is not"):
        show_each(True, steps())
    assert json.loads(capsys.readouterr().out) == [{"topic": "a"}]
    with pytest.raises(ValueError, match="b is not"):
        show_each(False, steps())
    assert capsys.readouterr().out == "a is done\n"


BYTES = st.none() | st.binary() | st.text().map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=4), BYTES))
RECORDS = st.builds(
    Record,
    st.text(min_size=1, max_size=9),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    BYTES,
    BYTES,
    HEADERS.map(tuple),
)


@given(RECORDS)
def test_any_record_is_read_back_from_its_line(record: Record) -> None:
    text = write_line(record)
    assert len(text.decode().splitlines()) == 1
    assert read_line(text) == Line(
        record.value, record.key, record.headers or None, record.partition, record.timestamp_ms, record.topic
    )
