"""The first page of a node: topics, groups, rates and what is wrong, with everything escaped."""

from raylog.actors.metrics.overview import Overview
from raylog.core.metrics.exposition import Family

RECORDS = "kafka_server_brokertopicmetrics_messagesin_total"


def counted(count: float, topic: str = "flights", broker: str = "1") -> Family:
    family = Family(RECORDS, "counter", "Records that producers appended.")
    family.add(count, topic=topic, broker=broker)
    return family


def edges(topic: str, partition: int, start: float, end: float) -> list[Family]:
    found = []
    for name, value in (("oldest", start), ("current", end)):
        family = Family(f"kafka_topic_partition_{name}_offset", "gauge", "An offset.")
        family.add(value, topic=topic, partition=str(partition))
        found.append(family)
    return found


def test_topics_of_all_brokers_are_summed() -> None:
    families = [*edges("flights", 0, 5, 20), *edges("flights", 1, 0, 10), *edges("orders", 0, 3, 3)]
    page = Overview().page(families, [], "", 0.0)
    assert "<tr><td>flights</td><td>2</td><td>25</td><td>-</td><td>0</td></tr>" in page
    assert "<tr><td>orders</td><td>1</td><td>0</td><td>-</td><td>0</td></tr>" in page
    assert "Every broker here is ready." in page


def test_rates_are_those_since_the_page_before() -> None:
    overview, place = Overview(), edges("flights", 0, 0, 20)
    overview.page([*place, counted(100), counted(50, broker="2")], [], "", 10.0)
    page = overview.page([*place, counted(400), counted(50, broker="2")], [], "", 15.0)
    assert "<td>60.0</td>" in page
    assert "<td>60.0</td>" in overview.page([*place, counted(900)], [], "", 15.2), "too soon for another rate"
    assert "<td>0.0</td>" in overview.page([*place, counted(3)], [], "", 20.0), "the counter began again"


def test_lag_is_summed_and_its_age_is_the_oldest() -> None:
    lag = Family("kafka_consumergroup_lag", "gauge", "Lag.")
    age = Family("raylog_consumergroup_lag_seconds", "gauge", "Age.")
    for partition, (records, seconds) in enumerate(((10, 3.0), (5, 70.5))):
        lag.add(records, consumergroup="board", topic="flights", partition=str(partition))
        age.add(seconds, consumergroup="board", topic="flights", partition=str(partition))
    assert "<tr><td>board</td><td>flights</td><td>15</td><td>70.5</td></tr>" in Overview().page([lag, age], [], "", 0.0)


def test_names_and_reasons_are_escaped() -> None:
    page = Overview().page(edges("<b>", 0, 0, 1), ["<script> is offline"], "a < b", 0.0)
    assert "<b>" not in page
    assert "<script>" not in page
    assert "&lt;script&gt; is offline" in page
    assert "a &lt; b" in page
