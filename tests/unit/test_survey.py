"""What nodes hold before a start creates anything: one cluster is joined, several or half of one are refused."""

from pathlib import Path

import pytest

from raylog.base.errors import DataDirectoryError
from raylog.launch.survey import Holding, adopt, known_cluster, look, restore_cluster_id
from raylog.storage.directory import DataDirectory

A, B = "a" * 32, "b" * 32


def test_new_directories_are_no_cluster() -> None:
    assert known_cluster([Holding("h1", "", False, ()), Holding("h2", "", False, ())]) is None


def test_the_cluster_of_the_nodes_is_found_with_all_noted_voters() -> None:
    found = known_cluster(
        [Holding("h1", "", False, ()), Holding("h2", A, True, (1, 2)), Holding("h3", A, False, (1, 3))]
    )
    assert found == (A, (1, 2, 3))


def test_directories_of_two_clusters_are_refused_and_named() -> None:
    with pytest.raises(DataDirectoryError, match=f"2 clusters: {A} on h1, h3; {B} on h2"):
        known_cluster([Holding("h1", A, True, (1,)), Holding("h2", B, True, (1,)), Holding("h3", A, True, (1,))])


def test_directories_without_any_metadata_are_refused() -> None:
    with pytest.raises(DataDirectoryError, match=r"h1 belong to cluster a+, but none of them holds a copy"):
        known_cluster([Holding("h1", A, False, (2,)), Holding("h2", "", False, ())])


def test_a_node_shows_what_its_directory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYLOG_DATA_DIR", raising=False)
    folder = tmp_path / "broker"
    assert look(str(folder)) == ("", False, ())
    folder.mkdir()
    (folder / "meta.properties").write_text(f"version=1\ncluster.id={A}\ndirectory.id=d\n")
    assert look(str(folder)) == ("", False, ()), "no broker has ever been there"
    (folder / "meta.properties").write_text(f"version=1\ncluster.id={A}\ndirectory.id=d\nbroker.id=2\n")
    (folder / "metadata-voters").write_text("1,2,3\n")
    log = folder / "metadata" / "__cluster_metadata-0" / "00000000000000000000.log"
    log.parent.mkdir(parents=True)
    log.touch()
    assert look(str(folder)) == (A, False, (1, 2, 3)), "an empty log is none"
    log.write_bytes(b"batch")
    assert look(str(folder)) == (A, True, (1, 2, 3))
    monkeypatch.setenv("RAYLOG_DATA_DIR", str(tmp_path))
    assert look("/elsewhere/broker") == (A, True, (1, 2, 3))


def test_a_directory_takes_the_clusters_identity_but_never_another_ones(tmp_path: Path) -> None:
    root = tmp_path / "head"
    adopt(root, cluster_id=A, secret="s" * 64)
    assert (root / "cluster-id").read_text() == A
    assert (root / "secret").stat().st_mode & 0o077 == 0
    adopt(root, cluster_id=A)
    with pytest.raises(DataDirectoryError, match="Start with an empty data directory to join them"):
        adopt(root, cluster_id=B)


def test_a_lost_cluster_id_is_written_again_as_the_brokers_have_it(tmp_path: Path) -> None:
    for broker in (1, 2):
        DataDirectory.open(tmp_path / f"broker-{broker}", cluster_id="a" * 32, broker_id=broker).close()
    restore_cluster_id(tmp_path)
    assert (tmp_path / "cluster-id").read_text() == "a" * 32
    (tmp_path / "cluster-id").unlink()
    DataDirectory.open(tmp_path / "broker-3", cluster_id="b" * 32, broker_id=3).close()
    with pytest.raises(DataDirectoryError, match=r"cluster-id is missing.*broker-1, broker-2 to a+; broker-3 to b+"):
        restore_cluster_id(tmp_path)


def test_a_new_directory_gets_its_cluster_id_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    restore_cluster_id(tmp_path)
    assert not (tmp_path / "cluster-id").exists()
