"""What `raylog status` says of the metadata log."""

from raylog.cli.cluster.status import voters_line


def test_the_brokers_with_the_metadata_are_named() -> None:
    assert voters_line({"voters": [1, 2, 4], "max": 3}) == "Metadata log: on brokers 1,2,4."


def test_fewer_voters_than_there_may_be_are_pointed_out() -> None:
    line = voters_line({"voters": [1], "max": 3})
    assert line.startswith("Metadata log: on brokers 1; metadata.voters.max is 3")
