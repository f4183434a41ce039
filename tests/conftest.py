"""Tests run the sources, even where compiled modules lie beside them, unless RAYLOG_COMPILED requests otherwise."""

import os

os.environ.setdefault("RAYLOG_COMPILED", "0")
pytest_plugins = ["tests.coroutines", "tests.watchdog"]
