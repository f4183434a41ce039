"""The product starts Python's modules without the current folder on their path: a user's `queue.py` is none of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("raylog", "actors", "base", "client", "core", "data", "outbox", "protocol", "rpc", "spark", "storage")
STARTS_MODULE = re.compile(r"""sys\.executable,\s*["']-m["']""")


def test_modules_are_started_with_a_safe_path() -> None:
    sources = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    found = [str(path.relative_to(ROOT)) for path in sources if STARTS_MODULE.search(path.read_text(encoding="utf-8"))]
    assert not found, f"give it -P: {found}"
