"""A Kinesis reader to Apache Arrow: enhanced fan-out and polling, exact ranges, back-pressure."""
