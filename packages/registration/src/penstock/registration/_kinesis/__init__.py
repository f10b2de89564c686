"""Stream consumers with Kinesis: looked up, registered and deregistered, below its limits."""
