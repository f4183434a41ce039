"""The examples that a new user runs first run as their first lines show, and every example is run by a test.

`examples/flights` has a test of its own, `tests/spark/test_flights.py`.
"""

import re
from collections.abc import Iterator

import pytest

from tests.cluster.commands.documents_support import Reader, example, reader
from tests.unit.style.sources import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

OTHERS = ROOT / "tests/cluster/commands/test_examples.py"


@pytest.fixture
def user() -> Iterator[Reader]:
    """A reader of the examples in an empty folder."""
    with reader() as one:
        yield one


def test_every_example_is_run_by_a_test() -> None:
    found = {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"}
    sources = [path.read_text(encoding="utf-8") for path in (OTHERS.with_name("test_first_examples.py"), OTHERS)]
    assert found == {name for source in sources for name in re.findall(r'\bexample\("(\w+\.py)"\)', source)}


def test_the_quickstart_runs_twice_and_goes_on_where_it_had_stopped(user: Reader) -> None:
    first = user.python(example("quickstart.py"), "--address", "local")
    assert first.count("stored in greetings-") == first.count("read 'hello ") == 10
    second = user.python(example("quickstart.py"), "--address", "local")
    stored = {line.removeprefix("stored in greetings-") for line in second.splitlines() if line.startswith("stored")}
    read = {line.partition(" from partition ")[2] for line in second.splitlines() if line.startswith("read")}
    assert {item.replace(" at offset ", ", offset ") for item in stored} == read, "the group read the second ten, once"


def test_tasks_produce_and_an_actor_consumes(user: Reader) -> None:
    printed = user.python(example("tasks.py"), "--address", "local")
    assert "1000 records stored" in printed


def test_a_process_without_ray_produces_and_consumes(user: Reader) -> None:
    user.run("raylog", "start", "--address", "local")
    command = f'eval "$(raylog start | grep export)"; exec python {example("without_ray.py")}'
    printed = user.run("bash", "-euo", "pipefail", "-c", command)
    orders = [f"order {number} at offset {number}" for number in range(3)]
    assert printed.splitlines() == [*orders, "Ray was not imported"]
    user.run("raylog", "stop")
