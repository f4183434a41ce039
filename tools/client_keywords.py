"""Write client/keywords.py: the keyword arguments of the clients' constructors, as typed dictionaries.

    python -m tools.client_keywords

Generated from the registry in client/config.py, so that editors complete, and type checkers refuse, what `load` does.
"""

from __future__ import annotations

import textwrap
from dataclasses import fields
from pathlib import Path

from raylog.client.accepted import ACCEPTED
from raylog.client.config import (
    ALIASES,
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    QueueConsumerConfig,
    keys_of,
)

PATH = Path(__file__).parents[1] / "client" / "keywords.py"
KINDS: tuple[type[ClientConfig], ...] = (
    ClientConfig,
    ProducerConfig,
    ConsumerConfig,
    AdminConfig,
    QueueConsumerConfig,
)
HEAD = '''\
"""The keyword arguments of the clients, for editors and type checkers.

Generated from the registry in client/config.py by `python -m tools.client_keywords`; do not edit. Each may be None,
which stands for its default. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from raylog.client.accepted import (
{names}
)
from raylog.rpc import Token
'''


def name_of(kind: type[ClientConfig]) -> str:
    """The name of the typed dictionary for a client's keys."""
    return kind.__name__.replace("Config", "Keywords")


def accepted(kind: type[ClientConfig], name: str) -> str:
    """The type of what a keyword takes."""
    field = keys_of(kind)[name]
    one_of = field.metadata["one_of"]
    base = field.metadata["accepts"] or str(field.type).removesuffix(" | None")
    if one_of:
        base = f"Literal[{', '.join(quoted(value) for value in one_of)}]"
    return f"{base} | None"


def quoted(value: object) -> str:
    """A value as the formatter writes it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def text() -> str:
    """The module."""
    parts = [HEAD.format(names="\n".join(f"    {name}," for name in ACCEPTED))]
    for kind in KINDS:
        base = "TypedDict, total=False" if kind is ClientConfig else name_of(ClientConfig)
        total = "" if kind is ClientConfig else ", total=False"
        parts.append(f"\n\nclass {name_of(kind)}({base}{total}):\n")
        parts.append(f'    """{kind.__doc__}"""\n')
        own = [field.name for field in fields(kind) if kind is ClientConfig or field.name not in keys_of(ClientConfig)]
        parts.append("\n" if own else "")
        for name in own:
            parts.append(f"    {name}: {accepted(kind, name)}\n")
            parts.append(_doc(str(keys_of(kind)[name].metadata["doc"])))
        for alias, name in ALIASES.items():
            if name in own:
                parts.append(f'    {alias}: {accepted(kind, name)}\n    """Another name of `{name}`."""\n')
    return "".join(parts)


def _doc(doc: str) -> str:
    if len(doc) <= 110:
        return f'    """{doc}"""\n'
    return textwrap.indent(f'"""{textwrap.fill(doc, 112)}\n"""\n', "    ")


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
