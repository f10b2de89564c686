"""The main job of Penstock, end to end, on the embedded Kinesis."""
