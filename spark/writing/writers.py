"""`df.write.format("raylog")`, a job that writes once, and `df.writeStream.format("raylog")`, micro-batches.

A job's writer is pickled into the tasks, and back to the driver. A stream has a writer for each batch, and another for
its commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from raylog.spark.reading.short_errors import without_frames
from raylog.spark.writing.access import task_plan
from raylog.spark.writing.driver import abort_batch, commit_batch
from raylog.spark.writing.options import WriteOptions
from raylog.spark.writing.task_writer import TaskPlan, write_task


@without_frames("__getstate__", "write", "commit", "abort")
class RaylogBatchWriter(DataSourceArrowWriter):
    """Writes the rows of one job; with exactly-once they become visible together, when all tasks have written."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex
        self._plan: TaskPlan | None = None

    def __getstate__(self) -> dict[str, object]:
        """State for the tasks and for the end of the job: without the secret."""
        if self._plan is None:
            self._plan = task_plan(self._options, job=self._job)
        return {"_options": None, "_job": self._job, "_plan": self._plan}

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one partition; runs in a worker."""
        return write_task(self._known_plan(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows visible, once all tasks have written; runs on the driver."""
        commit_batch(self._known_plan, messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the transactions, once a task has failed for good; runs on the driver."""
        abort_batch(self._known_plan, messages)

    def _known_plan(self) -> TaskPlan:
        if self._plan is None:
            self._plan = task_plan(self._options, job=self._job)
        return self._plan


@without_frames("__getstate__", "write", "commit", "abort")
class RaylogStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches; with exactly-once each becomes visible once, however often Spark repeats it."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._plan: TaskPlan | None = None

    def __getstate__(self) -> dict[str, object]:
        """State for the tasks: without the secret."""
        return {"_options": None, "_plan": self._known_plan()}

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one partition of a batch; runs in a worker."""
        return write_task(self._known_plan(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make a batch visible, once all its tasks have written; runs on the driver, again if the batch is repeated."""
        commit_batch(self._known_plan, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """End the transactions of a failed batch; runs on the driver."""
        if self._options.exactly_once:
            abort_batch(self._known_plan, messages)

    def _known_plan(self) -> TaskPlan:
        if self._plan is None:
            self._plan = task_plan(self._options)
        return self._plan
