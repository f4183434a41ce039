"""One configuration key: its type, default, legal values and meaning, and how a value is read. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.core.configuration.listeners import parse_listeners

LONG_MAX: Final = 9_223_372_036_854_775_807
INT_MAX: Final = 2_147_483_647
DAY_MS: Final = 86_400_000
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Change(StrEnum):
    """When a change that is made while the cluster runs takes effect."""

    AT_ONCE = "at once"
    NEXT_START = "at the next start"
    """At the next start of the cluster: its processes have to agree on the value."""
    START_ONLY = "given at a start"
    """It cannot be changed while the cluster runs."""
    UNTIL_CREATED = "until created"
    """At once, for topics created from then on; refused once all topics of :attr:`ConfigKey.fixed_by` exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One setting.

    ``kind`` is "int", "ratio", "bool", "choice", "list" (of choices, separated by commas), "name", "text" or
    "listeners".
    """

    name: str
    kind: str
    default: str
    doc: str
    minimum: int = -LONG_MAX
    maximum: int = LONG_MAX
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] | None = None
    """Other words for some of the choices."""
    check: Callable[[str], object] | None = None
    """For kind "text": raises InvalidConfig for an illegal value."""
    form: str = ""
    """For kind "text": the legal values, in words."""
    computed: str = ""
    """How the default is found when it is not a constant; ``default`` is then empty."""
    change: Change = Change.AT_ONCE
    """For keys of the cluster: when an alteration takes effect."""
    fixed_by: tuple[str, ...] = ()
    """For :attr:`Change.UNTIL_CREATED`: the topics that read the key when they are created."""
    instead: str = ""
    """What to do instead where a change is refused, as a sentence."""

    def read(self, value: object) -> str:
        """Return the value in its canonical written form; raises InvalidConfig, which states what would be legal."""
        if self.kind == "bool":
            return self._read_bool(value)
        if self.kind == "int":
            return self._read_int(value)
        if self.kind == "ratio":
            return self._read_ratio(value)
        if not isinstance(value, str):
            raise InvalidConfig(f"{self.name} is {self.legal()}, not {value!r}.")
        if self.kind == "text":
            return self._read_text(value.strip())
        if self.kind == "listeners":
            return ",".join(map(str, parse_listeners(self.name, value).values()))
        if self.kind == "name":
            if not _NAME.fullmatch(value.strip()):
                raise InvalidConfig(f"{self.name} is {self.legal()}, not {value!r:.300}.")
            return value.strip()
        return self._read_choice(value.strip()) if self.kind == "choice" else self._read_list(value)

    def _read_bool(self, value: object) -> str:
        text = str(value).strip().lower()
        if text not in ("true", "false"):
            raise InvalidConfig(f"{self.name} is true or false, not {value!r}.")
        return text

    def _read_int(self, value: object) -> str:
        try:
            if isinstance(value, bool) or not isinstance(value, (int, str)):
                raise ValueError(value)
            number = int(value)
        except ValueError:
            raise InvalidConfig(f"{self.name} is a whole number, not {value!r}.") from None
        if not self.minimum <= number <= self.maximum:
            raise InvalidConfig(f"{self.name} is {self.legal()}, not {number}.")
        return str(number)

    def _read_ratio(self, value: object) -> str:
        try:
            if isinstance(value, bool) or not isinstance(value, (int, float, str)):
                raise ValueError(value)
            number = float(value)
        except ValueError:
            raise InvalidConfig(f"{self.name} is {self.legal()}, not {value!r}.") from None
        if not 0 <= number <= 1:
            raise InvalidConfig(f"{self.name} is {self.legal()}, not {number}.")
        return str(number)

    def _read_choice(self, text: str) -> str:
        text = (self.aliases or {}).get(text.lower(), text)
        for choice in self.choices:
            if choice.lower() == text.lower():
                return choice
        raise InvalidConfig(f"{self.name} is {self.legal()}: {did_you_mean('value', text, self.choices)}")

    def _read_text(self, text: str) -> str:
        try:
            if not text:
                raise InvalidConfig("empty")
            if self.check is not None:
                self.check(text)
        except InvalidConfig:
            raise InvalidConfig(f"{self.name} is {self.legal()}, not {text!r}.") from None
        return text

    def _read_list(self, text: str) -> str:
        values = [part.strip() for part in text.split(",") if part.strip()]
        if not values:
            raise InvalidConfig(f"{self.name} needs a value: {self.legal()}.")
        return ",".join(dict.fromkeys(self._read_choice(value) for value in values))

    def legal(self) -> str:
        """Return the legal values as words, for messages and for the documentation."""
        if self.kind == "bool":
            return "true or false"
        if self.kind == "ratio":
            return "0 to 1"
        if self.kind == "text":
            return self.form or "text"
        if self.kind == "listeners":
            return "NAME://HOST:PORT"
        if self.kind == "name":
            return "a name of letters, digits, `.`, `_` and `-`, up to 249"
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "list":
            return "a list of " + ", ".join(self.choices)
        if self.maximum >= INT_MAX:
            return f"at least {self.minimum}"
        return f"{self.minimum} to {self.maximum}"


def keys_of(*keys: ConfigKey) -> Mapping[str, ConfigKey]:
    """Return keys by their names."""
    return {key.name: key for key in keys}


def int_key(
    name: str,
    default: int,
    minimum: int,
    doc: str,
    maximum: int = LONG_MAX,
    *,
    change: Change = Change.AT_ONCE,
    fixed_by: tuple[str, ...] = (),
    instead: str = "",
) -> ConfigKey:
    """Return the key of a whole number."""
    return ConfigKey(
        name=name,
        kind="int",
        default=str(default),
        minimum=minimum,
        maximum=maximum,
        doc=doc,
        change=change,
        fixed_by=fixed_by,
        instead=instead,
    )
