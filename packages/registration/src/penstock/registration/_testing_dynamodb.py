"""A DynamoDB for tests, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.aws import AwsClient, AwsSession
from penstock.aws.testing import emulator_options


class DynamoDbClients:
    """A session for a DynamoDB of tests, with dummy keys."""

    def __init__(self, endpoint_url: str) -> None:
        self._endpoint_url = endpoint_url
        self._session = AwsSession(emulator_options(endpoint_url))

    def aio_client(self, service_name: str) -> AwsClient:
        """A client of it, whatever the service."""
        return self._session.aio_client(service_name, endpoint_url=self._endpoint_url)


@contextmanager
def running_dynamodb() -> Iterator[str]:
    """Run moto's DynamoDB on a port of the loopback interface, on threads of its own. Gives its endpoint.

    Needs the extra `testing`. Each request is carried out in one piece, as DynamoDB does it for one item: moto by
    itself lets another request in between condition and write.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        # Without it a client's next request on a connection waits for a delayed acknowledgement.
        wbufsize = -1
        protocol_version = "HTTP/1.1"

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """A line per request is too much."""

    one_at_a_time = threading.Lock()
    moto: Any = DomainDispatcherApplication(create_backend_app)

    def serve(environment: Any, start_response: Any) -> Any:
        with one_at_a_time:
            return list(moto(environment, start_response))

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="dynamodb", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
