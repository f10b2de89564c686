"""The options of the data sources: declared, parsed, checked, documented, and translated from other connectors."""
