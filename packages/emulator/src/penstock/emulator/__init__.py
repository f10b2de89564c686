"""An embedded Amazon Kinesis with the enhanced fan-out life cycle, for tests."""
