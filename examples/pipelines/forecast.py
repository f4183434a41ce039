"""Ray Data reads what Spark wrote, trains a model of the arrival delay, and writes its predictions into a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

import raylog
from examples.pipelines.history import TOPIC as HISTORY
from examples.pipelines.model import Array, Columns, LeastSquares, predict, rmse

if TYPE_CHECKING:
    import pyarrow as pa
    import ray

TOPIC: Final = "predictions"
ROW: Final = "row bigint, predicted double, arr_delay bigint"
KEPT_BACK: Final = 5
"""Every fifth flight takes no part in the training."""
BATCH_ROWS: Final = 8_192


class Flight(msgspec.Struct):
    """A value of the topic ``history``, as far as the model needs it."""

    row: int
    hour: int
    carrier: str
    origin: str
    dest: str
    distance: int
    dep_delay: int | None = None
    arr_delay: int | None = None


@dataclass(frozen=True, slots=True)
class Errors:
    """Root mean squared errors in minutes over the flights that were kept back."""

    flights: int
    model: float
    mean: float
    departure: float


NO_ERRORS: Final = Errors(0, 0.0, 0.0, 0.0)


def arrived(batch: pa.Table) -> Columns:
    """Decode records; flights that were cancelled or diverted have no arrival delay and are left out."""
    decode = msgspec.json.Decoder(Flight).decode
    flights = [decode(value) for value in batch.column("value").to_pylist()]
    known = [flight for flight in flights if flight.arr_delay is not None and flight.dep_delay is not None]
    return {name: np.array([getattr(flight, name) for flight in known]) for name in Flight.__struct_fields__}


def is_kept_back(columns: Columns) -> Array:
    """Return which flights belong to the test, by their row in the file."""
    kept: Array = np.asarray(columns["row"]) % KEPT_BACK == KEPT_BACK - 1
    return kept


def train(flights: ray.data.Dataset) -> LeastSquares:
    """Sum up the flights of the training, a batch at a time."""
    model = LeastSquares()
    for batch in flights.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy"):
        model.add(_where(batch, ~is_kept_back(batch)))
    return model


def predictions(batch: Columns, weights: Array) -> dict[str, Array]:
    """Return the predictions for the flights that were kept back, beside what came true."""
    test = _where(batch, is_kept_back(batch))
    return {"row": test["row"], "predicted": predict(weights, test), "arr_delay": test["arr_delay"]}


def run() -> Errors:
    """Read, train and write; Ray finds the cluster."""
    records = raylog.data.read(HISTORY, columns=["value"])
    flights = records.map_batches(arrived, batch_format="pyarrow").materialize()
    model = train(flights)
    rows = flights.map_batches(predictions, fn_kwargs={"weights": model.weights()}, batch_format="numpy")
    raylog.data.write(rows, TOPIC, key_field="row")  # without a field for the value, each row becomes JSON
    return errors(model, flights.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy"))


def errors(model: LeastSquares, batches: Any) -> Errors:
    """Compare the model with two simple ones: the mean of the training, and the delay at departure."""
    weights = model.weights()
    tests = [_where(batch, is_kept_back(batch)) for batch in batches]
    actual = np.concatenate([test["arr_delay"] for test in tests])
    predicted = np.concatenate([predict(weights, test) for test in tests])
    departed = np.concatenate([test["dep_delay"] for test in tests])
    return Errors(len(actual), rmse(predicted, actual), rmse(model.mean(), actual), rmse(departed, actual))


def _where(columns: Columns, chosen: Array) -> Columns:
    return {name: np.asarray(values)[chosen] for name, values in columns.items()}
