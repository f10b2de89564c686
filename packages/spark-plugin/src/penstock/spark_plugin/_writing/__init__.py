"""Writing: rows to records, their sinks, dead letters and summaries."""
