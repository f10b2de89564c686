"""From a graph to its stages: decisions only."""
