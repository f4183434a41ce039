"""A proposer finds out whether it leads: a majority answers what was sent after the question (R9)."""

from raylog.core.quorum import LogHistory
from raylog.core.quorum import events as ev
from tests.unit.core.quorum.test_proposer import NAMES, Play, leading, log


def led() -> Play:
    """A leader of three voters whose log is on all of them, and that has nothing under way."""
    play = leading(log(1), log(1))
    play.promise(3, log(1))
    for voter in NAMES:
        while voter in play.sent:
            play.answer(voter, play.proposer.history.end)
    play.others.clear()
    return play


def question(play: Play, number: int) -> None:
    play.feed(ev.LeadershipQuestioned(now_ms=2, question=number))


def confirmed(play: Play) -> list[int]:
    return [effect.question for effect in play.others if isinstance(effect, ev.Confirmed)]


def test_a_majority_confirms_that_it_leads() -> None:
    play = led()
    question(play, 1)
    play.answer(1, play.proposer.history.end)
    assert confirmed(play) == []
    play.answer(3, play.proposer.history.end)
    assert confirmed(play) == [1]
    assert play.proposer.confirmed == 1


def test_an_answer_to_what_was_sent_before_the_question_confirms_nothing() -> None:
    play = led()
    play.append()  # on its way to all voters
    question(play, 1)
    for voter in NAMES:
        play.answer(voter, play.proposer.history.end)
    assert confirmed(play) == []
    for voter in (2, 3):  # questioned at once behind it
        play.answer(voter, play.proposer.history.end)
    assert confirmed(play) == [1]


def test_a_voter_whose_log_is_another_confirms_too() -> None:
    play = led()
    question(play, 7)
    play.answer(1, None, history=LogHistory())
    play.answer(2, play.proposer.history.end)
    assert confirmed(play) == [7]


def test_a_deposed_proposer_is_not_confirmed() -> None:
    play = led()
    question(play, 1)
    play.answer(1, None, promised=play.proposer.epoch + 1)
    assert play.proposer.phase == "ended"
    assert confirmed(play) == []


def test_questions_that_come_meanwhile_share_the_next_round() -> None:
    play = led()
    for number in range(1, 10):
        question(play, number)
    play.answer(1, play.proposer.history.end)
    play.answer(2, play.proposer.history.end)
    assert confirmed(play) == [1]
    play.answer(1, play.proposer.history.end)
    play.answer(2, play.proposer.history.end)
    assert confirmed(play) == [1, 9]
