"""The README's commands and programs work as documented: each block is run, in order, in an empty folder.

`make` and `pip` are not run here, because they are what runs this test; their targets and extras are looked up.
"""

import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

from tests.cluster.commands.documents_support import Reader, reader
from tests.unit.docs.documents import Block, blocks
from tests.unit.style.sources import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks(README)
SPARK_TIMEOUT_S = 400.0


def is_about_installing(block: Block) -> bool:
    """Whether every command of a block is one that installs."""
    return all(line.split()[0] in ("make", "pip") for line in block.text.splitlines() if line.strip())


TOUR = [block for block in BLOCKS if not (block.language == "bash" and is_about_installing(block))]


def test_the_first_command_is_the_demo_and_the_second_the_tests() -> None:
    commands = [block.text for block in BLOCKS if block.language == "bash"]
    assert commands[:2] == ["make demo\n", "make test\n"]


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", "".join(block.text for block in BLOCKS)))
    assert named
    assert named <= targets


def test_every_extra_that_is_installed_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [item for block in BLOCKS for item in re.findall(r"^pip install .*'(.+)'", block.text, re.MULTILINE)]
    assert named
    for item in named:
        required = Requirement(item.replace(".", project["name"], 1))
        assert required.extras <= set(project["optional-dependencies"])


def test_every_block_is_in_a_language_that_is_run_here() -> None:
    assert {block.language for block in BLOCKS} == {"bash", "python"}


@pytest.fixture
def user() -> Iterator[Reader]:
    """A reader of the README in an empty folder."""
    with reader() as one:
        yield one


def run_block(user: Reader, block: Block) -> str:
    """Run one block; returns what it printed."""
    timeout_s = SPARK_TIMEOUT_S if "raylog.spark.session" in block.text else 120.0
    if block.language == "python":
        return user.python("-", stdin=block.text, timeout_s=timeout_s)
    return user.run("bash", "-euo", "pipefail", "-c", block.text, timeout_s=timeout_s)


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_five_minutes_tour_works_as_it_is_written(user: Reader) -> None:
    printed = [run_block(user, block) for block in TOUR]
    everything = "".join(printed)
    assert "last record:" in everything, "the Python block reads all records"
    assert "hello\nworld\n" in everything, "the command line reads what it wrote"
    assert re.search(r"\|\s*UA\|\s*1\|", everything), "Spark counts the records of each carrier"
    assert re.search(r"\|\s*AA\|\s*1000\|", everything)
    assert not list(user.folder.rglob("ray.json")), "raylog stop has ended the Ray that raylog start had started"
