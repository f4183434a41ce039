"""The files beside a log, in Kafka's form."""

from pathlib import Path

import pytest

from raylog.base.epochs import EpochHistory
from raylog.storage.log.checkpoints import EPOCHS, Checkpoints, _with_crc


def test_epochs_come_back_as_they_were_written(tmp_path: Path) -> None:
    epochs = EpochHistory([(2, 0), (4, 10), (7, 25)])
    Checkpoints(tmp_path).write_epochs(epochs)
    *lines, checksum = (tmp_path / EPOCHS).read_text().splitlines()
    assert lines == ["0", "3", "2 0", "4 10", "7 25"], "Kafka's form"
    assert checksum.startswith("crc: ")
    assert Checkpoints(tmp_path).read_epochs() == epochs


@pytest.mark.parametrize("text", ["", "0\n", "0\n3\n2 0\n", "1\n0\n", "0\n2\n2 0\n1 5\n", "0\n1\n2\n", "0\n1\n2 0 1\n"])
def test_epochs_that_are_cut_off_or_do_not_rise_are_found_in_the_batches(tmp_path: Path, text: str) -> None:
    (tmp_path / EPOCHS).write_text(_with_crc(text))
    assert Checkpoints(tmp_path).read_epochs() is None
