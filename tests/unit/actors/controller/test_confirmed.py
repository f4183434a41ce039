"""What members conclude from a controller's answers is committed, and of a controller that leads (R9)."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from raylog.actors.controller.answers import metadata_answer
from raylog.actors.controller.confirmed import HELD_MAX, HELD_MS
from raylog.actors.controller.runner import ControllerRunner
from raylog.base.errors import NotController, TopicAlreadyExists
from raylog.base.features import SUPPORTED
from raylog.base.ids import NO_INCARNATION
from raylog.core.controller.controller import ControllerMachine, ControllerSettings
from raylog.core.controller.events import ControllerRequest
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord
from raylog.protocol.admin import (
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeClusterRequest,
    ListPartitionReassignmentsRequest,
)
from raylog.protocol.broker import MetadataReply
from raylog.protocol.controller import RegisterBrokerRequest


class Log:
    """A metadata log whose commits and answers to questions the test decides on."""

    def __init__(self) -> None:
        self.records: list[MetadataRecord] = []
        self.committed_offset = 0
        self.confirmed_question = 0
        self.questions = 0
        self.is_deposed = False
        self.commits = self.confirms = True

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[MetadataRecord], epoch: int) -> None:
        self.records += records
        if self.commits:
            self.committed_offset = len(self.records)

    def offer(self, image: MetadataImage) -> None: ...

    def want_voters(self, voters: Sequence[int]) -> None: ...

    def question(self) -> int:
        if self.is_deposed:
            raise NotController
        self.questions += 1
        if self.confirms:
            self.confirmed_question = self.questions
        return self.questions


class Ports:
    """A clock, and nothing that is looked at."""

    def __init__(self) -> None:
        self.now = 1_000

    def now_ms(self) -> int:
        return self.now

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Arrived:
    """A request."""

    is_deserted = False

    def __init__(self) -> None:
        self.answer: Any = None

    def reply(self, args: object = None, payload: object = b"") -> None:
        self.answer = args

    def fail(self, error: BaseException) -> None:
        self.answer = error


class Stage:
    """A controller with one broker and one topic."""

    def __init__(self) -> None:
        self.log, self.ports = Log(), Ports()
        ids = iter(range(100))
        settings = ControllerSettings(new_topic_id=lambda: f"{next(ids):032x}", registration_grace_ms=0)
        machine = ControllerMachine(MetadataImage(), settings=settings, now_ms=1_000)
        self.runner: ControllerRunner[Arrived] = ControllerRunner(
            machine, self.log, cast(Any, self.ports), on_records=lambda _: None, on_defect=pytest.fail
        )
        self.runner.start(None, {})
        self.runner.release()
        self.take(RegisterBrokerRequest(1, NO_INCARNATION, "n", "h", 9_000, "d", "", *SUPPORTED), session=1)
        self.create("orders")

    def take(self, message: ControllerRequest, session: int = 0) -> Arrived:
        request = Arrived()
        self.runner.take(request, "test", message, session)
        self.runner.release()
        return request

    def create(self, topic: str) -> Arrived:
        return self.take(CreateTopicRequest(topic, 1, 1, None, {}, False, 0))

    def delete(self, topic: str) -> Arrived:
        return self.take(DeleteTopicRequest(topic))

    def metadata(self, *names: str) -> Arrived:
        request = Arrived()
        self.runner.inform(request, metadata_answer(self.runner.machine.image, names))
        return request

    def commit(self) -> None:
        self.log.commits = True
        self.log.committed_offset = len(self.log.records)
        self.runner.release()

    def confirm(self) -> None:
        self.log.confirmed_question = self.log.questions
        self.runner.release()


def exists(request: Arrived) -> list[bool]:
    assert isinstance(request.answer, MetadataReply)
    return [row.error_code == 0 for row in request.answer.topics]


def test_a_deletion_is_not_answered_before_it_is_committed() -> None:
    stage = Stage()
    stage.log.commits = False
    deleted = stage.delete("orders")
    answered = stage.metadata("orders")
    assert (deleted.answer, answered.answer) == (None, None)
    stage.commit()
    assert exists(answered) == [False]
    assert deleted.answer == []


def test_a_topic_is_not_answered_before_it_is_committed() -> None:
    stage = Stage()
    stage.log.commits = False
    stage.create("bills")
    answered = stage.metadata("bills")
    assert answered.answer is None
    stage.commit()
    assert exists(answered) == [True]


def test_an_answer_is_of_the_moment_of_the_question() -> None:
    """A later decision that is not committed is not in it."""
    stage = Stage()
    stage.log.confirms = False
    answered = stage.metadata("orders")
    stage.log.commits = False
    stage.delete("orders")
    assert answered.answer is None
    stage.confirm()
    assert exists(answered) == [True]


@pytest.mark.parametrize("message", [DescribeClusterRequest(), ListPartitionReassignmentsRequest()])
def test_a_controller_that_may_have_been_deposed_says_nothing(message: ControllerRequest) -> None:
    stage = Stage()
    stage.log.confirms = False
    described, answered = stage.take(message), stage.metadata("unknown")
    refused = stage.create("orders")
    assert (described.answer, answered.answer, refused.answer) == (None, None, None)
    stage.confirm()
    assert described.answer is not None
    assert exists(answered) == [False]
    assert isinstance(refused.answer, TopicAlreadyExists)


def test_an_answer_to_an_earlier_question_confirms_no_later_one() -> None:
    stage = Stage()
    stage.log.confirms = False
    first = stage.metadata("orders")
    second = stage.metadata("orders")
    stage.log.confirmed_question = stage.log.questions - 1
    stage.runner.release()
    assert exists(first) == [True]
    assert second.answer is None


def test_a_commit_of_what_was_appended_later_confirms_too() -> None:
    stage = Stage()
    stage.log.confirms = False
    answered = stage.metadata("orders")
    made = stage.create("bills")
    assert exists(answered) == [True]
    assert made.answer is not None


def test_a_deposed_controller_refuses_at_once() -> None:
    stage = Stage()
    stage.log.is_deposed = True
    assert isinstance(stage.metadata("orders").answer, NotController)


def test_without_a_majority_the_answer_is_a_refusal_in_time() -> None:
    stage = Stage()
    stage.log.confirms = False
    answered = stage.metadata("orders")
    stage.ports.now += HELD_MS - 1
    stage.runner.tick()
    assert answered.answer is None
    stage.ports.now += 1
    stage.runner.tick()
    assert isinstance(answered.answer, NotController)


def test_answers_that_wait_have_a_bound() -> None:
    stage = Stage()
    stage.log.confirms = False
    held = [stage.metadata("orders") for _ in range(HELD_MAX)]
    assert isinstance(stage.metadata("orders").answer, NotController)
    stage.confirm()
    assert all(exists(each) == [True] for each in held)
