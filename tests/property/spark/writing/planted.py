"""Bugs planted in `raylog.spark.writing.commits`: the simulation has to catch each of them.

Two more are caught, but take a minute: a batch that a late task took from the commit and that is left, and an owner
that comes back although it was replaced.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from raylog.spark.writing import commits


@dataclass(frozen=True)
class Planted:
    """A change of one function's text."""

    function: str
    right: str
    wrong: str


PLANTED = {
    "nothing is taken over": Planted("commit", "yield from _take_over(taken)", "pass"),
    "taken over, but not for good": Planted("_take_over", "for_good=True", "for_good=False"),
    "a decision is read that may not be the last": Planted("_become_driver", "Read(driver)", "Read()"),
    "settled without a fence": Planted(
        "settle",
        "driver, decision = yield from _become_driver()",
        "driver, decision = found.identity, (yield from _one(Read()))",
    ),
    "settled without the decision": Planted(
        "settle", "committed = decision is not None and found.kept in decision.transactions", "pass"
    ),
    "the second to take it aborts it": Planted("_was_never_taken", "kept.epoch + 1", "found.identity.epoch"),
    "a repeated batch is decided again": Planted("_is_decided", "return batch == decision.batch", "return False"),
    "a repeated batch is not finished": Planted("commit", "(*found.transactions, *prepared)", "prepared"),
    "another query's decision counts as one's own": Planted("_is_decided", "if decision.owner != owner:", "if False:"),
    "an earlier job is forgotten": Planted("commit", "found.owner != owner and found.transactions", "False"),
    "committed before it is decided": Planted(
        "commit",
        "        answer = (yield (Store",
        "        yield from _commit_taken(dict(taken))\n        answer = (yield (Store",
    ),
}


def plant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the function for this test."""
    bug = PLANTED[name]
    text = textwrap.dedent(inspect.getsource(getattr(commits, bug.function)))
    assert text.count(bug.right) == 1, f"{bug.function} does not have {bug.right!r} once"
    scope: dict[str, Any] = {}
    exec(compile(text.replace(bug.right, bug.wrong), f"planted: {name}", "exec"), vars(commits) | {}, scope)
    made = scope[bug.function]
    code = made.__code__
    monkeypatch.setattr(getattr(commits, bug.function), "__code__", code)
