"""`listeners` and `advertised.listeners`: the form, and where a process listens by them."""

import pytest

from raylog.base.errors import InvalidConfig
from raylog.core.configuration.config import ClusterConfig, validate_cluster_config
from raylog.core.configuration.listeners import Binding, native_binding

NODE = "10.0.0.7"


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("listeners", "9092", r"NAME://HOST:PORT.*'9092' is not of that form"),
        ("listeners", "RAYLOG://:", "'RAYLOG://:' is not of that form"),
        ("listeners", "RAYLOG://::1:9092", "not of that form"),  # an address of IPv6 is in brackets
        ("listeners", "RAYLOG://:9092,", "'' is not of that form"),
        ("listeners", "RAYLOG://a..b:9092", "not of that form"),
        ("listeners", f"RAYLOG://{'a' * 64}.example:9092", "not of that form"),
        ("listeners", "RAYLOG://:65536", "ports end at 65535"),
        ("listeners", "PLAINTEXT://:9092", r"Unknown listener 'PLAINTEXT'; known are: RAYLOG\. TLS is Ray's"),
        ("listeners", "RAYLOG://:9092,raylog://:9093", "RAYLOG twice"),
        ("advertised.listeners", "RAYLOG://0.0.0.0:9092", r"cannot connect to 0\.0\.0\.0"),
        ("advertised.listeners", "RAYLOG://[::]:9092", "cannot connect to ::"),
    ],
)
def test_what_is_wrong_is_named(key: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^{key}.*{reason}"):
        validate_cluster_config({key: text})


def test_settings_have_one_written_form() -> None:
    found = ClusterConfig.from_dict({"listeners": " raylog://[::1]:9092 ", "advertised.listeners": "RAYLOG://n7:0"})
    assert (found.listeners, found.advertised_listeners) == ("RAYLOG://[::1]:9092", "RAYLOG://n7:0")


@pytest.mark.parametrize(
    ("config", "brokers", "others"),
    [
        ({}, Binding(NODE, 0, NODE, 0), Binding(NODE, 0, NODE, 0)),
        ({"listeners": "RAYLOG://:9092"}, Binding(NODE, 9092, NODE, 0), Binding(NODE, 0, NODE, 0)),
        ({"listeners": "RAYLOG://0.0.0.0:9092"}, Binding("0.0.0.0", 9092, NODE, 0), Binding("0.0.0.0", 0, NODE, 0)),
        (
            {"listeners": "RAYLOG://127.0.0.1:9092"},
            Binding("127.0.0.1", 9092, "127.0.0.1", 0),
            Binding("127.0.0.1", 0, "127.0.0.1", 0),
        ),
        (
            {"listeners": "RAYLOG://:9092", "advertised.listeners": "RAYLOG://logs.example:443"},
            Binding(NODE, 9092, "logs.example", 443),
            Binding(NODE, 0, "logs.example", 0),
        ),
    ],
)
def test_brokers_take_host_and_port_and_others_the_host(
    config: dict[str, str], brokers: Binding, others: Binding
) -> None:
    assert native_binding(config, NODE, is_broker=True) == brokers
    assert native_binding(config, NODE, is_broker=False) == others


def test_a_wildcard_on_a_node_without_an_address_needs_one_to_give() -> None:
    config = {"listeners": "RAYLOG://0.0.0.0:9092"}
    with pytest.raises(InvalidConfig, match=r"set advertised\.listeners to the name or address"):
        native_binding(config, "127.0.0.1", is_broker=True)
    config["advertised.listeners"] = "RAYLOG://logs.example:0"
    assert native_binding(config, "127.0.0.1", is_broker=True) == Binding("0.0.0.0", 9092, "logs.example", 0)
