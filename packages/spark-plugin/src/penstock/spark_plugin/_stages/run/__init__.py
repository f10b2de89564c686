"""A run of a pipeline: its stages, one after the other, and the live one."""
