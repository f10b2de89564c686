"""A web page that shows what the services do: consumers, streams, sinks and jobs."""
