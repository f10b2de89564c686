"""The job as the user wrote it."""
