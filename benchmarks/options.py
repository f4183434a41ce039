"""The command lines of the benchmarks: a mistake is one line, which names what was meant."""

from __future__ import annotations

import argparse
import difflib
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = ROOT / "build" / "peers"
"""Where the jars of servers are kept."""


class Parser(argparse.ArgumentParser):
    """The options of `python -m benchmarks COMMAND`."""

    def __init__(self, command: str, about: str | None) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=f"python -m benchmarks {command}".rstrip(), description=about, formatter_class=form)

    def error(self, message: str) -> NoReturn:
        """Exit with the reason, and where to look."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")

    def add_data(self) -> None:
        """Add `--data`."""
        folder = Path(tempfile.gettempdir())
        self.add_argument(
            "--data", type=Path, default=folder, help="where servers keep their data (default: %(default)s)"
        )

    def add_results(self) -> None:
        """Add `--results`."""
        folder = ROOT / "benchmarks" / "results"
        self.add_argument(
            "--results", type=Path, default=folder, help="where JSON is kept (default: benchmarks/results)"
        )

    def add_quick(self, about: str) -> None:
        """Add `--quick`, which the environment can set as well."""
        is_set = os.environ.get("QUICK", "") not in ("", "0")
        self.add_argument("--quick", action="store_true", default=is_set, help=f"{about}; also QUICK=1")


def meant(name: str, known: Collection[str]) -> str:
    """What is wrong with a name: the nearest one that is known, or all of them."""
    near = difflib.get_close_matches(name, known, 1)
    return f"there is no {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}")


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """The type of an argument that is one of these names."""

    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(meant(text, known))
        return text

    return name


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """The type of an option that has some of these names, parted by commas; none is all of them."""
    check = one_of(known)
    return lambda text: [check(name) for name in text.split(",") if name] or list(known)
