"""What users write: pipelines, data streams, windows, and the automatic mode."""
