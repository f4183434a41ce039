"""The secret files: their permissions, several processes that create them at once, and rotation of a secret."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raylog.rpc.auth.credentials import Credentials, derived_client_secret, to_listen
from raylog.rpc.auth.secret_files import (
    CLIENT_FILE,
    CLUSTER_FILE,
    SecretFileError,
    SecretFiles,
    copy_secrets,
    make_secrets,
    read_values,
    write_values,
)

OLD, NEW = b"o" * 32, b"n" * 32


def test_a_new_directory_gets_two_secrets_that_only_its_owner_may_read(tmp_path: Path) -> None:
    make_secrets(tmp_path / "new")
    for name in (CLUSTER_FILE, CLIENT_FILE):
        assert (tmp_path / "new" / name).stat().st_mode & 0o777 == 0o600
    found = SecretFiles(tmp_path / "new")()
    assert len(found.cluster[0]) == len(found.client[0]) == 32
    assert found.cluster != found.client
    make_secrets(tmp_path / "new")
    assert SecretFiles(tmp_path / "new")() == found


def test_a_directory_with_one_secret_goes_on_with_it(tmp_path: Path) -> None:
    (tmp_path / CLUSTER_FILE).write_text(OLD.hex())
    (tmp_path / CLUSTER_FILE).chmod(0o600)
    before = SecretFiles(tmp_path)()
    assert (before.cluster, before.client) == ((OLD,), (derived_client_secret(OLD),))
    make_secrets(tmp_path)
    assert SecretFiles(tmp_path)() == before, "a node without the second file accepts the same clients"


def test_first_starts_at_the_same_time_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: make_secrets(tmp_path), range(64)))
        found = list(pool.map(lambda _: SecretFiles(tmp_path)(), range(8)))
    assert all(entry == found[0] for entry in found)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CLIENT_FILE, CLUSTER_FILE]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    make_secrets(tmp_path)
    (tmp_path / CLUSTER_FILE).chmod(mode)
    with pytest.raises(SecretFileError, match=f"run `chmod 600 {tmp_path / CLUSTER_FILE}`"):
        SecretFiles(tmp_path)()


def test_a_secret_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_secrets(tmp_path)
    mine = (tmp_path / CLUSTER_FILE).stat().st_uid
    monkeypatch.setattr("raylog.rpc.auth.secret_files.os.geteuid", lambda: mine + 1)
    if mine == 0:
        assert read_values(tmp_path / CLUSTER_FILE), "root reads and changes everything anyway"
        os.chown(tmp_path / CLUSTER_FILE, 7, -1)
    with pytest.raises(SecretFileError, match=f"belongs to another user.*run `chown {mine + 1} "):
        read_values(tmp_path / CLUSTER_FILE)


@pytest.mark.parametrize("text", ["", "no digits at all", "c0ffee", f"{'ab' * 16} {'cd' * 16} {'ef' * 16}"])
def test_a_file_that_holds_no_secret_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / CLUSTER_FILE
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SecretFileError, match="should hold a secret in hexadecimal digits") as refusal:
        read_values(path)
    assert not text or text not in str(refusal.value)
    with pytest.raises(SecretFileError, match="cannot be read: No such file"):
        read_values(tmp_path / "missing")


def test_a_secret_is_changed_while_processes_run(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    source = SecretFiles(tmp_path)
    (first,) = source().cluster
    write_values(tmp_path / CLUSTER_FILE, [NEW, first])
    assert source().cluster == (NEW, first)
    write_values(tmp_path / CLUSTER_FILE, [NEW])
    assert source().cluster == (NEW,)
    assert (tmp_path / CLUSTER_FILE).stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_spoilt_while_processes_run_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_secrets(tmp_path)
    source = SecretFiles(tmp_path)
    found = source()
    (tmp_path / CLUSTER_FILE).write_text("spoilt")
    assert source() == source() == found
    assert len([record for record in caplog.records if "still holds" in record.message]) == 1
    assert found.cluster[0].hex() not in caplog.text
    write_values(tmp_path / CLUSTER_FILE, [NEW])
    assert source().cluster == (NEW,)


def test_another_nodes_copy_follows_and_another_clusters_stays(tmp_path: Path) -> None:
    copy_secrets(tmp_path, Credentials.of_cluster([OLD]))
    copy_secrets(tmp_path, Credentials.of_cluster([NEW, OLD]))
    assert SecretFiles(tmp_path)().cluster == (NEW, OLD)
    copy_secrets(tmp_path, Credentials.of_cluster([NEW]))
    copy_secrets(tmp_path, Credentials.of_cluster([b"another cluster's secret"]))
    assert SecretFiles(tmp_path)().cluster == (NEW,)


def test_a_source_travels_without_the_secret(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    source = SecretFiles(tmp_path)
    (secret,) = source().cluster
    carried = pickle.dumps(source)
    assert secret not in carried
    assert secret.hex().encode() not in carried
    assert secret.hex() not in repr(source)
    assert pickle.loads(carried) == source
    assert to_listen(pickle.loads(carried)).cluster == (secret,)
