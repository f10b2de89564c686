"""The options of other connectors, in ours."""
