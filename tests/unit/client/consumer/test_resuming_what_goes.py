"""`resume(*paused())` amid a rebalance: a partition that is being given back stays as it is."""

from raylog.base.ids import TopicPartition
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.decode import BatchOpener

HERE = TopicPartition("t", 0)


def new_state() -> PartitionState:
    return PartitionState(HERE, BatchOpener(HERE, None, None, check_crcs=True), Start.EARLIEST)


def test_what_is_being_given_back_is_not_resumed() -> None:
    state = new_state()
    state.hold_back()
    assert not state.is_paused_by_user  # `paused()` shows what the user has paused
    state.pause(False)
    assert state.paused


def test_what_the_user_has_paused_is_resumed() -> None:
    state = new_state()
    state.pause(True)
    assert (state.paused, state.is_paused_by_user) == (True, True)
    state.pause(False)
    assert (state.paused, state.is_paused_by_user) == (False, False)
