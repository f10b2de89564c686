"""Amazon Data Firehose as a destination."""
