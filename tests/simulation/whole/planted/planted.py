"""Every bug that is planted in shipped code: the tables of all files here as one."""

from __future__ import annotations

from typing import Final

from tests.simulation.whole.planted.bugs import Bug
from tests.simulation.whole.planted.planted_accounts import ACCOUNT_BUGS
from tests.simulation.whole.planted.planted_clients import CLIENT_BUGS
from tests.simulation.whole.planted.planted_compaction import COMPACTION_BUGS
from tests.simulation.whole.planted.planted_consumers import CONSUMER_BUGS
from tests.simulation.whole.planted.planted_disks import DISK_BUGS
from tests.simulation.whole.planted.planted_dozers import DOZER_BUGS
from tests.simulation.whole.planted.planted_everything import EVERYTHING_BUGS
from tests.simulation.whole.planted.planted_forwarding import FORWARDING_BUGS
from tests.simulation.whole.planted.planted_halves import HALF_BUGS
from tests.simulation.whole.planted.planted_mends import MENDED_BUGS
from tests.simulation.whole.planted.planted_near import NEAR_BUGS
from tests.simulation.whole.planted.planted_operator import OPERATOR_BUGS
from tests.simulation.whole.planted.planted_parts import PART_BUGS
from tests.simulation.whole.planted.planted_queues import QUEUE_BUGS
from tests.simulation.whole.planted.planted_ray import RAY_BUGS
from tests.simulation.whole.planted.planted_rules import RULE_BUGS
from tests.simulation.whole.planted.planted_schedules import SCHEDULE_BUGS
from tests.simulation.whole.planted.planted_secrets import SECRET_BUGS
from tests.simulation.whole.planted.planted_servers import SERVER_BUGS
from tests.simulation.whole.planted.planted_sleepers import SLEEPER_BUGS
from tests.simulation.whole.planted.planted_transactions import TRANSACTION_BUGS
from tests.simulation.whole.planted.planted_voters import VOTER_BUGS
from tests.simulation.whole.planted.planted_vouching import VOUCHING_BUGS

_TABLES: Final = (
    CLIENT_BUGS,
    SERVER_BUGS,
    DISK_BUGS,
    VOTER_BUGS,
    OPERATOR_BUGS,
    SLEEPER_BUGS,
    VOUCHING_BUGS,
    DOZER_BUGS,
    COMPACTION_BUGS,
    TRANSACTION_BUGS,
    ACCOUNT_BUGS,
    SCHEDULE_BUGS,
    HALF_BUGS,
    CONSUMER_BUGS,
    QUEUE_BUGS,
    FORWARDING_BUGS,
    EVERYTHING_BUGS,
    PART_BUGS,
    RAY_BUGS,
    MENDED_BUGS,
    RULE_BUGS,
    SECRET_BUGS,
    NEAR_BUGS,
)
BUGS: Final[dict[str, Bug]] = {bug.name: bug for table in _TABLES for bug in table}
