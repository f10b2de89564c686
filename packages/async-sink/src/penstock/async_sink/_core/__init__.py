"""The writer: entries, buffer, batches, answers."""
