"""The operations of the API, over the state."""
