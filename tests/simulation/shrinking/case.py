"""One run that fails, and what it may do without: the values of its options from the least on.

A case is a seed of a profile with ``limits``: options in place of those the seed draws. Nothing else decides a run, so
that the same case is the same run. Called by ``shrink.py`` and the command. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from tests.simulation.whole.features import drawn, plan_of, with_needed
from tests.simulation.whole.plan import EVERYTHING, WHOLE_PROFILES, Plan

LEAST: Final[Mapping[str, tuple[Any, ...]]] = {
    "faults_max": (0, 1, 2, 4, 8, 16, 32),
    "producers": (1,),
    "members": (1,),
    "topics": (1,),
    "partitions_max": (1,),
    "tellers": (1,),
    "copiers": (1,),
    "accounts": (1,),
    "delayers": (1,),
    "payers": (1,),
    "workers": (1,),
    "expirers": (1,),
    "client_hosts": (1,),
    "disks": (False,),
    "power_cuts": (False,),
    "has_static_members": (False,),
    "seek_share": (0.0,),
    "calm_s": (0.0,),
}
"""Options of the whole world and the least values that a run can do with; 0 is none, where nothing needs one."""
SPARED_MAX: Final = 16
"""Faults of which each is left out in turn; of more, only the later ones are."""
STEPS_S: Final = (2.0, 4.0, 8.0, 16.0, 32.0)
"""How long clients may work at least, tried in this order."""
LESS: Final = (("chaos_s", STEPS_S), ("producers", (1,)), ("consumers", (0, 1)), ("slots", (1, 2)))
"""The same of the small worlds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A seed of a profile, what it mixes, and the options that are set."""

    seed: int
    profile: str
    features: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)

    def limited(self, **values: Any) -> Case:
        """Return it with these options set, too."""
        return replace(self, limits={**self.limits, **values})

    def command(self) -> str:
        """Return the command that runs it again."""
        features = f" --features {','.join(self.features)}" if self.features else ""
        limits = f" --limits '{json.dumps(dict(self.limits))}'" if self.limits else ""
        return f"python -m tests.simulation --profile {self.profile} --seed {self.seed}{features}{limits}"


def lesser(case: Case, options: Any) -> Iterator[list[Case]]:
    """Yield, for each thing that a case may have less of, the cases to try, the least first.

    ``options`` are those of the case, with its limits; an instance of a dataclass.
    """
    if case.profile not in WHOLE_PROFILES:
        yield from _lesser_rates(case, options)
        return
    if case.profile == EVERYTHING:
        yield _fewer_features(case)
    for name, values in LEAST.items():
        found = getattr(options, name)
        yield [case.limited(**{name: value}) for value in values if value < found]
    yield [_brokers(case, options)] if options.brokers > 3 else []
    if options.faults_max <= SPARED_MAX:
        left = [number for number in range(options.faults_max) if number not in options.spared]
        yield [case.limited(spared=sorted([*options.spared, number])) for number in left]
    for name in ("schemes", "topics_besides", "tables"):
        yield _without(case, name, getattr(options, name))
    yield [case.limited(work_s=seconds) for seconds in STEPS_S if seconds < options.work_s]


def _brokers(case: Case, options: Plan) -> Case:
    return case.limited(brokers=3, voters=[voter for voter in options.voters if voter <= 3])


def _fewer_features(case: Case) -> list[Case]:
    names = case.features or drawn(case.seed)
    sets = [with_needed([name]) for name in names]
    sets += [tuple(other for other in names if other != name) for name in names]
    return [replace(case, features=each) for each in sets if len(each) < len(names) and with_needed(each) == each]


def _without(case: Case, name: str, found: tuple[str, ...]) -> list[Case]:
    """Without any of them, or without each."""
    sets = [(), *(tuple(other for other in found if other != each) for each in dict.fromkeys(found))]
    return [case.limited(**{name: list(each)}) for each in sets if len(each) < len(found)]


def _lesser_rates(case: Case, options: Any) -> Iterator[list[Case]]:
    """The options of the small worlds: what does not happen by default does not, and there is less of the rest."""
    for option in fields(options):
        if option.default in (0, False) and getattr(options, option.name):
            yield [case.limited(**{option.name: option.default})]
    for name, values in LESS:
        found = getattr(options, name, 0)
        yield [case.limited(**{name: value}) for value in values if value < found]


def whole_options(case: Case) -> Plan:
    """Return the plan of a case of the whole world."""
    return plan_of(case.profile, case.seed, case.features, case.limits)
