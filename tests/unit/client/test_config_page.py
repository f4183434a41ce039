"""docs/configuration.md: generated, complete, and with releases that exist."""

from __future__ import annotations

import raylog
from raylog.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig, QueueConsumerConfig, keys_of
from raylog.client.config_page import SINCE, to_markdown
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS
from tests.unit.style.sources import ROOT

PAGE = ROOT / "docs" / "configuration.md"


def test_the_configuration_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == to_markdown(), "run `python -m raylog.client.config_page > docs/configuration.md`"


def test_every_key_of_every_client_is_on_the_page() -> None:
    rows = [line for line in to_markdown().splitlines() if line.startswith("| `")]
    for kind in (ClientConfig, ProducerConfig, ConsumerConfig, AdminConfig, QueueConsumerConfig):
        for name, key in keys_of(kind).items():
            assert key.metadata["doc"].endswith((".", "...")), name
            assert any(f"| `{name}` |" in row and key.metadata["doc"] in row for row in rows), name


def test_only_keys_that_exist_came_with_a_later_release() -> None:
    assert SINCE.keys() <= TOPIC_KEYS.keys() | CLUSTER_KEYS.keys()


def test_no_key_came_with_a_release_after_this_one() -> None:
    release = tuple(int(part) for part in raylog.__version__.split("."))
    assert all(tuple(int(part) for part in since.split(".")) <= release for since in SINCE.values())
