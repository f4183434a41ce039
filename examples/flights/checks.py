"""The demo's checks and their results."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Claim:
    """One comparison: found and expected value."""

    name: str
    found: object
    expected: object

    @property
    def holds(self) -> bool:
        """Whether found and expected are equal."""
        return self.found == self.expected


class Checks:
    """Collects checks; the demo exits non-zero unless all of them pass."""

    def __init__(self, console: Console) -> None:
        """Failed checks are printed to ``console`` at once."""
        self._console = console
        self._claims: list[Claim] = []
        self._kept: dict[str, object] = {}

    def equal(self, name: str, found: object, expected: object) -> None:
        """Record that ``found`` should equal ``expected``."""
        claim = Claim(name, found, expected)
        self._claims.append(claim)
        if not claim.holds:
            self._console.print(f"[red]{name}: found {_short(found)}, expected {_short(expected)}[/red]")

    def remember(self, name: str, value: object) -> None:
        """Keep a value for a later comparison."""
        self._kept[name] = value

    def remembered(self, name: str) -> object:
        """Return a kept value."""
        return self._kept[name]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All checks so far, in their order."""
        return tuple(self._claims)

    @property
    def all_hold(self) -> bool:
        """Whether at least one check was made and none failed."""
        return bool(self._claims) and all(claim.holds for claim in self._claims)

    def table(self) -> Table:
        """Return all checks as a table."""
        table = Table(title="Checked")
        table.add_column("claim")
        table.add_column("found", justify="right")
        table.add_column("")
        for claim in self._claims:
            table.add_row(
                claim.name, _short(claim.found), "[green]holds[/green]" if claim.holds else "[red]FAILED[/red]"
            )
        return table


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
