"""The aggregates of a report over the rows of queues: DataFrames, of which no row comes to the
driver.

A group is a queue (`by` is NULL) or a value of a column (`by` is the column). A row keeps only part
of its history: `time_next` of an acknowledged row is NULL, so when it was due and first delivered
is lost. These times can be computed:

- `created to acknowledged`, `due to acknowledged`: of acknowledged rows, if the application keeps
  those times;
- `due to first delivery`: of rows whose first delivery is under way. Its wait is exactly the
  queue's ACK_WAIT, so the row was delivered at `time_next` less that. It was due at the
  application's due time or, without one, when it was created. A row whose delivery would be before
  its due time or after now is left out: it was extended, delayed or scheduled;
- `due, not yet delivered`: of rows that are due and were never delivered, up to now.

Percentiles are values of the data. Their ranks are off by 1/20,000 of the count at most, so they
are exact up to 10,000 values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from .history import History, Queue, grouped

PERCENTILES: Final = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
ACCURACY: Final = 20_000
"""The inverse of the error of a rank, as a share of the count."""

STATES: Final = ("acknowledged", "ready", "ready_again", "scheduled", "in_flight", "never_due")
MEASURES: Final = ("created to acknowledged", "due to acknowledged", "due to first delivery", "due, not yet delivered")
CREATED, DUE, FIRST, WAITING = MEASURES

BUCKETS_MAX: Final = 120
"""Points of a plot over time, at most."""
WIDTHS_S: Final = (1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400, 604_800)

HORIZON_S: Final = 86_400
"""No forecast reaches further."""

_MOMENTS: Final = ("created", "due", "time_acked", "time_next")
"""The columns whose past times show how far back the data reaches."""

_GROUP: Final = ("queue", "by", "value")
_S: Final = 10**9


def percentile_name(percentile: float) -> str:
    """The name of a percentile's column."""
    return f"p{percentile:g}".replace(".", "_")


def volumes(history: History, window_s: float) -> DataFrame:
    """How many messages are in each state, and how many were created and ended in the window before
    now."""
    now = history.now_ns
    since = now - round(window_s * _S)
    live = ~f.col("dead")
    state = state_at(now)
    recent = {
        "created_recently": f.col("created").between(since, now - 1),
        "acknowledged_recently": live & f.col("time_acked").between(since, now - 1),
        "died_recently": f.col("dead") & f.col("time_acked").isNull() & f.col("time_next").between(since, now - 1),
    }
    acked = live & f.col("time_acked").isNotNull()
    return (
        grouped(history)
        .groupBy(*_GROUP)
        .agg(
            *(f.count_if(live & (state == name)).alias(name) for name in STATES),
            f.count_if(f.col("dead") & f.col("time_acked").isNull()).alias("dead"),
            f.count_if(f.col("dead") & f.col("time_acked").isNotNull()).alias("dead_settled"),
            *(f.count_if(which).alias(name) for name, which in recent.items()),
            f.min(f.when(acked, f.col("time_acked"))).alias("first_acknowledged"),
            f.max(f.when(acked, f.col("time_acked"))).alias("last_acknowledged"),
            f.sum(f.when(acked, f.col("epoch"))).alias("deliveries"),
            f.min(f.when(live & (state == "ready"), f.col("time_next"))).alias("oldest_ready"),
            f.min(f.least(*(f.when(f.col(name) < now, f.col(name)) for name in _MOMENTS))).alias("first_known"),
        )
        .withColumn("unacknowledged", sum((f.col(name) for name in STATES[2:]), f.col(STATES[1])))
    )


def state_at(now: int) -> Expression:
    """The state of a row, by the queue's own columns. A row that NACK … DELAY delayed counts as in
    flight."""
    delivered = f.col("epoch") > 0
    return (
        f.when(f.col("time_acked").isNotNull(), "acknowledged")
        .when(f.col("time_next").isNull(), "never_due")
        .when(f.col("time_next") <= now, f.when(delivered, "ready_again").otherwise("ready"))
        .otherwise(f.when(delivered, "in_flight").otherwise("scheduled"))
    )


def times(history: History, queues: Sequence[Queue]) -> DataFrame:
    """Seconds by measure: count, mean, least, greatest, percentiles. Negative: a time that was set
    by hand."""
    acked, now = f.col("time_acked"), history.now_ns
    waiting = f.when(state_at(now) == "ready", now - f.col("time_next"))
    durations = {
        CREATED: acked - f.col("created"),
        DUE: acked - f.col("due"),
        FIRST: _first_wait(queues, now),
        WAITING: waiting,
    }
    pairs = [f.struct(f.lit(name).alias("measure"), (value / _S).alias("s")) for name, value in durations.items()]
    kept = grouped(history).where(~f.col("dead"))
    exploded = kept.select(*_GROUP, f.explode(f.array(*pairs)).alias("m")).select(*_GROUP, "m.measure", "m.s")
    counted = (
        exploded.where(f.col("s").isNotNull())
        .groupBy(*_GROUP, "measure")
        .agg(
            f.count("*").alias("messages"),
            f.avg("s").alias("mean"),
            f.min("s").alias("least"),
            f.max("s").alias("greatest"),
            percentiles("s").alias("at"),
        )
    )
    points = [f.col("at")[number].alias(percentile_name(percentile)) for number, percentile in enumerate(PERCENTILES)]
    return counted.select(*_GROUP, "measure", "messages", "mean", "least", *points, "greatest")


def percentiles(column: str) -> Expression:
    """The array of the PERCENTILES of a column."""
    shares = [round(percentile / 100, 6) for percentile in PERCENTILES]  # 99.9 / 100 is a little more than 0.999
    return f.percentile_approx(column, shares, ACCURACY)


def _first_wait(queues: Sequence[Queue], now: int) -> Expression:
    """Nanoseconds from due to first delivery, of rows whose first delivery is under way."""
    wait = f.lit(None).cast("bigint")
    for queue in queues:
        if queue.first_wait_ns is not None:
            wait = f.when(f.col("queue") == queue.name, f.lit(queue.first_wait_ns)).otherwise(wait)
    delivered = f.col("time_next") - wait
    due = f.coalesce("due", "created")
    known = (state_at(now) == "in_flight") & (f.col("epoch") == 1) & delivered.between(due, f.lit(now))
    return f.when(known, delivered - due)


def attempts(history: History) -> DataFrame:
    """Acknowledged and dead messages by the number of their deliveries."""
    outcome = f.when(f.col("dead"), "dead").when(f.col("time_acked").isNotNull(), "acknowledged")
    counted = grouped(history).withColumn("outcome", outcome).where(f.col("outcome").isNotNull())
    counted = counted.where(~(f.col("dead") & f.col("time_acked").isNotNull()))
    return counted.groupBy(*_GROUP, "outcome", f.col("epoch").alias("attempts")).agg(f.count("*").alias("messages"))


def over_time(history: History, since_ns: int, width_s: int) -> DataFrame:
    """Messages that were acknowledged, created and dead-lettered in each interval from `since_ns`
    to now."""
    width = width_s * _S
    live, unsettled = ~f.col("dead"), f.col("time_acked").isNull()
    moments = {
        "acknowledged": f.when(live, f.col("time_acked")),
        "created": f.col("created"),
        "died": f.when(f.col("dead") & unsettled, f.col("time_next")),
    }
    pairs = [f.struct(f.lit(name).alias("what"), value.alias("at")) for name, value in moments.items()]
    exploded = grouped(history).select(*_GROUP, f.explode(f.array(*pairs)).alias("m")).select(*_GROUP, "m.*")
    start = f.timestamp_micros(f.expr(f"at DIV {width} * {width // 1_000}"))
    return (
        exploded.where(f.col("at").between(since_ns // width * width, history.now_ns - 1))
        .groupBy(*_GROUP, start.alias("start"))
        .agg(*(f.count_if(f.col("what") == name).alias(name) for name in moments))
    )


def width_for(span_s: float) -> int:
    """The seconds of an interval, of which at most BUCKETS_MAX make the span."""
    for width in WIDTHS_S:
        if span_s / width <= BUCKETS_MAX:
            return width
    return -(-round(span_s / BUCKETS_MAX) // WIDTHS_S[-1]) * WIDTHS_S[-1]


def forecast(volumes: DataFrame, now_ns: int, window_s: float, *, created: bool) -> DataFrame:
    """The backlog in the future, if messages come and end as they did in the window. Unknown values
    are NULL.

    It reaches as far ahead as the data reaches back (`horizon_s`), and no further than HORIZON_S. A
    time beyond that is NULL. If the data is younger than the window and times of creation are known,
    rates are those over the data's age.
    """
    age_s = f.greatest(f.lit(1.0), (f.lit(now_ns) - f.coalesce("first_known", f.lit(now_ns))) / _S)
    span_s = f.least(f.lit(float(window_s)), age_s) if created else f.lit(float(window_s))
    unknown = f.lit(None).cast("double")
    left = (f.col("acknowledged_recently") + f.col("died_recently")) / span_s
    frame = volumes.select(
        *_GROUP,
        "unacknowledged",
        f.least(f.lit(float(HORIZON_S)), age_s).alias("horizon_s"),
        (f.col("created_recently") / span_s if created else unknown).alias("created_per_s"),
        (f.col("acknowledged_recently") / span_s).alias("acknowledged_per_s"),
        left.alias("left_per_s"),
    )
    growth = f.col("growth_per_s")

    def after(seconds: int) -> Expression:
        backlog = f.greatest(f.lit(0.0), f.col("unacknowledged") + growth * seconds)
        return f.when(growth.isNotNull() & (f.col("horizon_s") >= seconds), backlog)

    def empty(loss_per_s: Expression) -> Expression:
        seconds = f.when(loss_per_s > 0, f.col("unacknowledged") / loss_per_s)
        return f.when(seconds <= f.col("horizon_s"), seconds)

    return (
        frame.withColumn("growth_per_s", f.col("created_per_s") - f.col("left_per_s"))
        .withColumn("in_an_hour", after(3_600))
        .withColumn("in_a_day", after(86_400))
        .withColumn("empty_in_s", empty(-growth))
        .withColumn("empty_in_s_if_none_come", empty(f.col("left_per_s")))
        .drop("left_per_s")
    )
