"""Features of the whole world, each in one file. Named by what ``features.py`` mixes."""

from __future__ import annotations

from typing import Final

from tests.simulation.whole.parts.addresses import Addresses
from tests.simulation.whole.parts.awake_limit import AwakeLimit
from tests.simulation.whole.parts.changed_secrets import ChangedSecrets
from tests.simulation.whole.parts.clocks import Clocks
from tests.simulation.whole.parts.damage import Damage
from tests.simulation.whole.parts.deposed import Deposed
from tests.simulation.whole.parts.foreign import Foreign
from tests.simulation.whole.parts.near import NearReaders
from tests.simulation.whole.parts.part import Part
from tests.simulation.whole.parts.ray_calls import RayCalls
from tests.simulation.whole.parts.renewed_kinds import RenewedKinds
from tests.simulation.whole.parts.repeats import Repeats
from tests.simulation.whole.parts.retention import Retention
from tests.simulation.whole.parts.rows import Rows
from tests.simulation.whole.parts.settings import Settings
from tests.simulation.whole.parts.sizes import Sizes
from tests.simulation.whole.parts.tokens import Tokens
from tests.simulation.whole.parts.unclean_tables import UncleanTables
from tests.simulation.whole.parts.watchers import Watchers
from tests.simulation.whole.parts.weeks import Weeks

PARTS: Final[dict[str, type[Part]]] = {
    "watchers": Watchers,
    "sizes": Sizes,
    "retention": Retention,
    "tokens": Tokens,
    "damage": Damage,
    "foreign": Foreign,
    "unclean-tables": UncleanTables,
    "addresses": Addresses,
    "renewed-kinds": RenewedKinds,
    "clocks": Clocks,
    "weeks": Weeks,
    "awake-limit": AwakeLimit,
    "strange-rows": Rows,
    "settings": Settings,
    "deposed-coordinators": Deposed,
    "repeats": Repeats,
    "changed-secrets": ChangedSecrets,
    "near-reads": NearReaders,
    "ray-calls": RayCalls,
}
