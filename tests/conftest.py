"""What holds for all tests: they run the sources, and no property is judged by the speed of the machine.

Sources run even where compiled modules lie beside them, unless RAYLOG_COMPILED requests otherwise.
"""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("RAYLOG_COMPILED", "0")
pytest_plugins = [
    "tests.cluster.shared_ray",
    "tests.coroutines",
    "tests.watchdog",
    "tests.durations",
    "tests.workers",
]

# A loaded machine is slow to draw examples: that says nothing about the property.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
