"""The registry behind an endpoint: the client, the servicer, and what crosses between them."""
