"""What a PySpark user sees of a mistake: one sentence at the end of the error, and no frames of Raylog before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from raylog.client.admin.admin import Admin
from raylog.rpc import Grant, TopicGrant, mint
from raylog.rpc.auth.token_text import token_text
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import drop_before, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_S = 60
OLD = '{"orders": {"0": 0, "1": -2}}'
"""Offsets that retention has removed."""


@pytest.fixture(scope="module")
def topics() -> Iterator[ToyCluster]:
    """A cluster with `orders`, which begins at offset 10, and `out`."""
    with ToyCluster(brokers=1) as running:
        running.create_topic("orders", 2)
        running.create_topic("out", 1)
        for partition in (0, 1):
            fill(running, "orders", partition, [10, 40])
            drop_before(running, "orders", partition, 10)
        yield running


class Mistakes:
    """Runs queries that fail, each in the way that a user runs it."""

    def __init__(self, spark: SparkSession, cluster: ToyCluster, folder: Path) -> None:
        self.spark = spark
        self._folder = folder
        self.place = {"raylog.bootstrap": cluster.bootstrap, "raylog.secret": SECRET.hex()}
        self.rows = spark.range(0, 4, 1, 1).selectExpr("cast(id as string) as value")

    def load(self, **given: Any) -> DataFrame:
        return self.spark.read.format("raylog").options(**self._chosen(given)).load()

    def read(self, **given: Any) -> int:
        return self.load(**given).count()

    def follow(self, **given: Any) -> None:
        stream = self.spark.readStream.format("raylog").options(**self._chosen(given)).load()
        self._finish(stream.writeStream.format("noop"))

    def write(self, rows: DataFrame | None = None, **given: Any) -> None:
        frame = self.rows if rows is None else rows
        frame.write.format("raylog").options(**self._chosen(given)).mode("append").save()

    def write_stream(self, *columns: str, **given: Any) -> None:
        self.rows.write.mode("overwrite").text(str(self._folder / "rows"))
        stream = self.spark.readStream.schema("value string").text(str(self._folder / "rows"))
        chosen = stream.selectExpr(*(columns or ["value"]))
        self._finish(chosen.writeStream.format("raylog").options(**self._chosen(given)))

    def _chosen(self, given: dict[str, Any]) -> dict[str, Any]:
        """The given options beside address and secret; a token replaces the secret."""
        place = {name: text for name, text in self.place.items() if "raylog.token" not in given or "secret" not in name}
        return {name: value for name, value in {**place, **given}.items() if value is not None}

    def _finish(self, writer: Any) -> None:
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WAIT_S)
        finally:
            query.stop()


@pytest.fixture
def make(spark: SparkSession, topics: ToyCluster, tmp_path: Path) -> Mistakes:
    return Mistakes(spark, topics, tmp_path)


def sentence_of(mistake: Callable[[], object]) -> str:
    """The last line of the Python error inside the one of PySpark: `raylog.base.errors...: sentence`."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        mistake()
    shown = str(caught.value).partition("=== Streaming Query ===")[0]
    assert "\tat " not in shown, "frames of the JVM"
    assert "During handling" not in shown, shown
    assert "Could not serialize" not in shown, shown
    ours = [line for line in shown.splitlines() if line.startswith("raylog.base.errors.")]
    assert len(ours) == 1, shown
    frames = [line for line in shown.splitlines() if line.lstrip().startswith("File ") and "/pyspark" not in line]
    assert len(frames) <= 1, shown  # where the error was stripped of the others
    return ours[0].partition(": ")[2]


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda make: make.load(subscribe="orders", startingOfsets="earliest"), "did you mean 'startingOffsets'?"),
        (lambda make: make.load(subscribe="orders", assign="{}"), "subscribe and assign were given."),
        (lambda make: make.load(subscribe="orders", includeHeaders="true", columns="key"), "leave includeHeaders out"),
        (
            lambda make: make.load(**{"subscribe": "orders", "kafka.sasl.mechanism": "PLAIN"}),
            "give raylog.secret or raylog.token",
        ),
        (lambda make: make.read(subscribe="ordres"), "Unknown topic 'ordres'; did you mean 'orders'?"),
        (
            lambda make: make.read(subscribe="orders", startingOffsets=OLD),
            "startingOffsets names offset 0 of orders-0, but the log holds 10 to 50. Set failOnDataLoss to false",
        ),
    ],
    ids=["unknown option", "two sources", "contradictory columns", "Kafka's security", "unknown topic", "lost offset"],
)
def test_of_a_batch_read(make: Mistakes, mistake: Callable[[Mistakes], object], sentence: str) -> None:
    assert sentence in sentence_of(lambda: mistake(make))


def test_lost_offsets_are_passed_over_if_the_query_says_so(make: Mistakes) -> None:
    assert make.read(subscribe="orders", startingOffsets=OLD, failOnDataLoss="false") == 80
    make.follow(subscribe="orders", startingOffsets=OLD, failOnDataLoss="false")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "orders", "startingOfsets": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"subscribe": "orders", "endingOffsets": "latest"}, "endingOffsets has no meaning in a stream"),
        (
            {"subscribe": "orders", "minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8},
            "minOffsetsPerTrigger (9) is above maxOffsetsPerTrigger (8)",
        ),
        ({"subscribe": "ordres"}, "Unknown topic 'ordres'; did you mean 'orders'?"),
        ({"subscribe": "orders", "startingOffsets": OLD}, "names offset 0 of orders-0, but the log holds 10 to 50."),
    ],
    ids=["unknown option", "an end", "limits", "unknown topic", "lost offset"],
)
def test_of_a_stream_read(make: Mistakes, given: dict[str, Any], sentence: str) -> None:
    assert sentence in sentence_of(lambda: make.follow(**given))


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda make: make.write(topci="out"), "Unknown option 'topci'; did you mean 'topic'?"),
        (lambda make: make.write(topic="out", transactionalIdPrefix="p"), "set deliveryGuarantee=exactly-once, or"),
        (
            lambda make: make.write(make.rows.withColumnRenamed("value", "valeu"), topic="out"),
            "Unknown column of the sink 'valeu'; did you mean 'value'? The columns are key (binary or string)",
        ),
        (
            lambda make: make.write(make.spark.range(3).withColumnRenamed("id", "value"), topic="out"),
            "The column 'value' is bigint; the sink takes binary or string. Cast it.",
        ),
        (lambda make: make.write(), "The rows have no topic to go to: give the option 'topic', or a column 'topic'"),
        (lambda make: make.write(topic="otu"), "Unknown topic 'otu'; did you mean 'out'?"),
        (lambda make: make.write(make.rows.selectExpr("value", "7 as partition"), topic="out"), "not 7."),
        (lambda make: make.write_stream(topic="otu"), "Unknown topic 'otu'; did you mean 'out'?"),
        (lambda make: make.write_stream("cast(1 as int) as value", topic="out"), "The column 'value' is int; the sink"),
    ],
    ids=["option", "contradiction", "column", "type", "no topic", "topic", "partition", "stream topic", "stream type"],
)
def test_of_a_write(make: Mistakes, mistake: Callable[[Mistakes], object], sentence: str) -> None:
    assert sentence in sentence_of(lambda: mistake(make))


Run: TypeAlias = Callable[[Mistakes], Callable[..., object]]
RUNS: list[Run] = [
    lambda make: lambda **given: make.read(subscribe="orders", **given),
    lambda make: lambda **given: make.follow(subscribe="orders", **given),
    lambda make: lambda **given: make.write(topic="out", **given),
    lambda make: lambda **given: make.write_stream(topic="out", **given),
]


@pytest.fixture
def granted(topics: ToyCluster) -> tuple[TopicGrant, ...]:
    """Everything that the queries of these tests need."""
    return tuple(
        TopicGrant(topics.topics[name][0], name, reads=ALL_PARTITIONS, writes=True) for name in ("orders", "out")
    )


@pytest.mark.parametrize("run", RUNS, ids=["read", "readStream", "write", "writeStream"])
def test_of_credentials(
    make: Mistakes,
    topics: ToyCluster,
    granted: tuple[TopicGrant, ...],
    run: Run,
) -> None:
    tried = run(make)
    expired = token_text(mint(SECRET, Grant(1_000, granted)))
    assert "it has expired. Make a new one" in sentence_of(lambda: tried(**{"raylog.token": expired}))
    with Admin(**topics.options) as admin:
        other = admin.create_token(read=["out"], write=["orders"])
    assert "make one with `raylog token create" in sentence_of(lambda: tried(**{"raylog.token": other}))
    assert "use the secret of the cluster" in sentence_of(lambda: tried(**{"raylog.secret": "ab" * 32}))


@pytest.mark.parametrize("run", RUNS[::2], ids=["read", "write"])
def test_of_an_address(make: Mistakes, granted: tuple[TopicGrant, ...], run: Run) -> None:
    tried = run(make)
    foreign = token_text(mint(b"another secret", Grant(2**33, granted)))
    assert "Make a new one for this" in sentence_of(lambda: tried(**{"raylog.token": foreign}))
    assert "The token is incomplete" in sentence_of(lambda: tried(**{"raylog.token": foreign[:-9]}))
    assert "or set RAYLOG_SECRET or RAYLOG_TOKEN" in sentence_of(lambda: tried(**{"raylog.secret": None}))
    nowhere = {"raylog.secret": None, "raylog.bootstrap": None}
    assert "No Raylog cluster runs here: call raylog.start(), or" in sentence_of(lambda: tried(**nowhere))
