"""The drawings of the explanation: what runs where, ranges, a micro-batch, a lease, stages."""

import re

from picture_canvas import Canvas

from penstock.operator_attributes import Boundedness, GlobalWindows, JobGraph, compile, svg


def overview() -> str:
    """A whole job."""
    picture = Canvas(
        "overview",
        "A bounded file is aggregated in a batch stage and committed; then the live stage reads the stream flights "
        "through a long-lived reader, joins it, and writes the stream delays.",
        860,
        292,
    )
    picture.box(85, 60, 130, 54, ["weather", "a bounded file"])
    picture.box(275, 60, 150, 54, ["batch stage", "aggregates, once"], kind="batch")
    picture.box(485, 60, 150, 54, ["committed rows", "Parquet"], kind="batch")
    picture.box(85, 190, 130, 54, ["flights", "Kinesis stream"])
    picture.box(275, 190, 150, 54, ["reader", "subscriptions, buffers"], kind="stream")
    picture.box(485, 190, 150, 54, ["live stage", "join, filter"], kind="stream")
    picture.box(655, 190, 120, 54, ["writer", "paced, retried"], kind="stream")
    picture.box(795, 190, 110, 54, ["delays", "Kinesis stream"])
    picture.box(275, 266, 150, 36, ["registry of leases"])
    picture.arrow([(150, 60), (200, 60)])
    picture.arrow([(350, 60), (410, 60)])
    picture.arrow([(485, 87), (485, 163)])
    picture.text(494, 130, "deployed when committed", kind="dam-text", anchor="start")
    picture.arrow([(150, 190), (200, 190)])
    picture.text(175, 152, "pushed over HTTP/2", kind="soft")
    picture.arrow([(350, 190), (410, 190)])
    picture.text(380, 152, "exact ranges", kind="soft")
    picture.arrow([(560, 190), (595, 190)])
    picture.arrow([(715, 190), (740, 190)])
    picture.arrow([(275, 248), (275, 218)], kind="dashed")
    return picture.svg()


def ranges() -> str:
    """Two micro-batches over one shard, one of which runs twice."""
    picture = Canvas(
        "ranges",
        "Records 101 to 112 of a shard. Batch 7 is the range after 101 up to 105, batch 8 after 105 up to 109. The "
        "driver is killed in batch 8, and batch 8 runs again over the same records.",
        860,
        260,
    )
    left, step, top = 90, 60, 50
    picture.text(76, top + 5, "shard", kind="strong", anchor="end")
    for number in range(101, 113):
        kind = "batch" if 101 < number <= 105 else "stream" if 105 < number <= 109 else "node"
        picture.box(left + (number - 100.5) * step, top, 52, 34, [str(number)], kind=kind)
    rows = [
        (120, 1, 5, "batch", "batch 7", "(101, 105]", "committed"),
        (170, 5, 9, "stream", "batch 8", "(105, 109]", "in Spark's log, then the driver is killed"),
        (220, 5, 9, "stream", "batch 8 again", "(105, 109]", "the same four records"),
    ]
    for y, first, last, kind, name, label, words in rows:
        start, end = left + first * step + 4, left + last * step - 4
        picture.text(start - 12, y + 5, name, kind="strong", anchor="end")
        picture.box((start + end) / 2, y, end - start, 30, [label], kind=kind)
        picture.text(end + 12, y + 5, words, kind="soft", anchor="start")
    return picture.svg()


def micro_batch() -> str:
    """Draw the calls of a micro-batch."""
    picture = Canvas(
        "micro-batch",
        "Kinesis pushes records to the reader. Spark asks for the latest offset, writes it to its log, plans "
        "partitions, runs tasks that fetch their ranges from the reader, and commits; the reader trims its buffers.",
        860,
        400,
    )
    lanes = {"Spark's driver": 130, "source process, reader": 375, "tasks": 600, "Kinesis": 765}
    for name, x in lanes.items():
        picture.box(x, 30, 200 if x == 375 else 140, 34, [name], kind="stream" if x == 375 else "node")
        picture.line([(x, 48), (x, 392)], kind="grid")
    spark, reader, tasks, kinesis = lanes.values()
    picture.arrow([(kinesis, 80), (reader, 80)], "records, all the time")
    picture.arrow([(spark, 122), (reader, 122)], "1  latestOffset: what do you hold?")
    picture.arrow([(reader, 162), (spark, 162)], "a position per shard")
    picture.box(spark, 204, 190, 40, ["2  offset log", "from here on a fact"], kind="batch")
    picture.arrow([(spark, 254), (reader, 254)], "3  partitions(start, end)")
    picture.arrow([(spark, 292), (tasks, 292)])
    picture.text(240, 286, "4  run tasks", kind="soft")
    picture.arrow([(tasks, 330), (reader, 330)], "(after, upto] of my shards")
    picture.arrow([(reader, 362), (tasks, 362)], "Arrow record batches")
    picture.arrow([(spark, 386), (reader, 386)], "5  commit: buffers may go")
    return picture.svg()


def event_time() -> str:
    """Three shards of a backlog, the horizon, and what of them enters a micro-batch."""
    picture = Canvas(
        "event-time",
        "Three shards by arrival time. The slowest was read up to 12:10. The horizon is one minute later: records up "
        "to 12:11 enter the micro-batch. Records of the other shards that arrived later wait in the buffers.",
        860,
        260,
    )
    left, horizon, right = 150, 470, 800
    for row, (name, read, words) in enumerate(
        (
            ("shard 0", 740, "read up to 12:50"),
            ("shard 1", 600, "read up to 12:25"),
            ("shard 2", 420, "read up to 12:10: the slowest"),
        )
    ):
        y = 60 + row * 56
        picture.text(left - 14, y + 5, name, kind="strong", anchor="end")
        taken = min(read, horizon)
        picture.box((left + taken) / 2, y, taken - left, 30, ["in this micro-batch"], kind="stream")
        if read > horizon:
            picture.box((horizon + read) / 2 + 4, y, read - horizon - 8, 30, ["waits"], kind="batch")
        picture.text(read + 12, y + 5, words, kind="soft", anchor="start")
    picture.line([(horizon, 24), (horizon, 212)], kind="dam")
    picture.text(horizon, 16, "horizon: 12:10 and maxShardSkew", kind="dam-text")
    picture.arrow([(left, 232), (right, 232)])
    picture.text((left + right) / 2, 250, "arrival time", kind="soft")
    return picture.svg()


def executor_readers() -> str:
    """Where records flow when executors read, and where they do not."""
    picture = Canvas(
        "executor-readers",
        "Kinesis gives its records to readers on the executors. Each hands them to tasks of its host in shared memory, "
        "and to tasks of other hosts by gRPC. Only positions go to the driver, which plans.",
        860,
        330,
    )
    picture.box(90, 115, 130, 44, ["Kinesis"], kind="stream")
    for number, y in ((1, 55), (2, 175)):
        picture.box(500, y, 430, 96, kind="card")
        picture.text(300, y - 32, f"executor {number}", kind="soft", anchor="start")
        picture.box(370, y + 6, 130, 44, [f"reader {number}", "its shards"], kind="stream")
        picture.box(640, y + 6, 130, 44, ["tasks"])
        picture.arrow([(155, 115), (220, y + 6), (304, y + 6)])
        picture.arrow([(436, y + 6), (574, y + 6)], "shared memory")
    picture.text(215, 100, "records", kind="soft")
    picture.arrow([(436, 72), (600, 158)])
    picture.arrow([(436, 170), (600, 84)])
    picture.text(585, 122, "gRPC, TLS", kind="soft", anchor="start")
    picture.box(500, 288, 430, 60, kind="card")
    picture.text(300, 274, "driver", kind="soft", anchor="start")
    picture.box(430, 290, 150, 40, ["the query plans"])
    picture.box(620, 290, 160, 40, ["roster: who is there"])
    picture.arrow([(340, 204), (320, 240), (400, 269)], kind="dashed")
    picture.text(310, 244, "positions", kind="soft", anchor="end")
    picture.arrow([(430, 204), (620, 269)], kind="dashed")
    picture.text(560, 242, "a connection", kind="soft", anchor="start")
    picture.arrow([(539, 290), (506, 290)], kind="dashed")
    return picture.svg()


def lease() -> str:
    """A job dies, another takes its consumer, the first one comes back."""
    picture = Canvas(
        "lease",
        "Job A holds the lease with token 7 and stops renewing it. After 30 seconds the lease ends, and job B gets it "
        "with token 8. When A comes back, its token 7 is refused.",
        860,
        210,
    )
    picture.text(66, 55, "job A", kind="strong", anchor="end")
    picture.text(66, 125, "job B", kind="strong", anchor="end")
    picture.box(185, 50, 210, 36, ["lease, token 7"], kind="stream")
    picture.box(375, 50, 170, 36, ["no heartbeat", "30 s"], kind="card")
    picture.box(645, 120, 370, 36, ["lease, token 8"], kind="stream")
    picture.text(375, 125, "waits, or takes over", kind="soft")
    picture.line([(460, 25), (460, 150)], kind="dam dashed")
    picture.text(466, 32, "the lease ends", kind="dam-text", anchor="start")
    picture.arrow([(680, 62), (680, 100)])
    picture.text(680, 52, "A is back, with token 7: refused", kind="dam-text")
    for x in range(110, 290, 30):
        picture.line([(x, 76), (x, 84)], kind="flow")
    picture.text(185, 102, "heartbeats", kind="soft")
    picture.arrow([(80, 180), (830, 180)])
    picture.text(455, 200, "time", kind="soft")
    return picture.svg()


def stages() -> str:
    """The plan of the README's job."""
    graph = JobGraph("flights")
    graph.add_source("weather", boundedness=Boundedness.BOUNDED)
    graph.add_source("flights", boundedness=Boundedness.UNBOUNDED)
    graph.add_operator("daily", "weather", keyed=True, window=GlobalWindows.create_with_end_of_stream_trigger())
    graph.add_operator("joined", "flights", "daily")
    graph.add_sink("delays", "joined")
    drawn = svg(compile(graph))
    # Where this file declares them is nothing to readers.
    return re.sub(rf" (?:at |\(){re.escape(__file__)}:\d+\)?", "", drawn)
