"""An adaptive, rate-limited asynchronous sink: Kinesis and destinations of your own."""
