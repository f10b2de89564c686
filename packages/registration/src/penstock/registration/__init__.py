"""Stream consumer registration for Kinesis enhanced fan-out: strategies, leases and fencing."""
