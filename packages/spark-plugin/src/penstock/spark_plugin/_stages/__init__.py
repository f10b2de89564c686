"""Pipelines: plans are cut into stages, stages are run, committed and used again."""
