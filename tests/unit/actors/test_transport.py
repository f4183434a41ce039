"""Where actors may listen, and the content of their specifications."""

import pickle
from pathlib import Path

import pytest

from raylog.actors.actor_specs import BrokerSpec, ControllerSpec, CoordinatorSpec, SpareSpec
from raylog.actors.permissions import permissions
from raylog.actors.transport import check_plaintext, listen, secrets_for_clients
from raylog.base.errors import InvalidConfig, StartFailed
from raylog.core.configuration.listeners import is_loopback
from raylog.launch.plaintext import plaintext_is_allowed
from raylog.protocol.broker import BROKER
from raylog.rpc import Credentials
from raylog.rpc.auth.secret_files import SecretFiles, make_secrets
from tests.unit.actors.specs import replica_spec


def broker(host: str, folder: Path, *, allow: bool = False) -> BrokerSpec:
    make_secrets(folder)
    return BrokerSpec(
        broker=1,
        folder=folder / "broker-1",
        secret=SecretFiles(folder),
        cluster_id="c",
        node_id="n",
        host=host,
        allow_plaintext=allow,
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "::", "node-1.example"])
def test_listening_on_the_network_without_tls_has_to_be_stated(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with pytest.raises(StartFailed, match=r"without TLS.*--allow-plaintext"):
        listen(lambda request: None, broker(host, tmp_path), permissions(BROKER))
    listen(lambda request: None, broker(host, tmp_path, allow=True), permissions(BROKER))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    check_plaintext(host, allow_plaintext=False)
    monkeypatch.setenv("RAY_USE_TLS", "yes")
    with pytest.raises(ValueError, match="RAY_USE_TLS='yes'"):
        check_plaintext(host, allow_plaintext=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_no_statement(host: str, tmp_path: Path) -> None:
    assert is_loopback(host)
    listen(lambda request: None, broker(host, tmp_path), permissions(BROKER))


def test_the_statement_in_the_environment_is_read_and_checked() -> None:
    assert not plaintext_is_allowed({})
    assert not plaintext_is_allowed({"RAYLOG_ALLOW_PLAINTEXT": "0"})
    assert plaintext_is_allowed({"RAYLOG_ALLOW_PLAINTEXT": "1"})
    with pytest.raises(InvalidConfig, match="must be 1 or 0, not 'yes'"):
        plaintext_is_allowed({"RAYLOG_ALLOW_PLAINTEXT": "yes"})


def test_no_specification_carries_or_shows_a_secret(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    source = SecretFiles(tmp_path)
    values = [*source().cluster, *source().client]
    replica = replica_spec(tmp_path, secret=source)
    for spec in (
        ControllerSpec(data_directory=tmp_path, secret=source, cluster_id="c"),
        broker("127.0.0.1", tmp_path),
        replica,
        SpareSpec(role_file=tmp_path, data_directory=tmp_path, secret=source),
        CoordinatorSpec(kind="group", index=0, secret=source, cluster_config={}),
    ):
        carried = pickle.dumps(spec)
        assert pickle.loads(carried) == spec
        for value in values:
            assert value not in carried
            assert value.hex().encode() not in carried
            assert value.hex() not in repr(spec)
    shown = repr(ControllerSpec(data_directory=tmp_path, secret=b"a secret in the clear", cluster_id="c"))
    assert "in the clear" not in shown


def test_clients_get_both_values_of_a_secret_that_is_being_changed() -> None:
    cluster, new, old = b"c" * 32, b"n" * 32, b"o" * 32
    changing = Credentials.of_cluster([cluster], [new, old])
    assert secrets_for_clients(changing) == {"secret": new, "replaced_secret": old}
    settled = Credentials.of_cluster([cluster], [new])
    assert secrets_for_clients(settled) == {"secret": new, "replaced_secret": None}
