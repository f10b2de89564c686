"""For tests: dummy keys for an emulator, and an STS that can be away."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from penstock.aws._options import AwsOptions

_ROLE_ARN = "arn:aws:iam::123456789012:role/reader"


def emulator_options(endpoint_url: str, ca_bundle: str | None = None) -> AwsOptions:
    """Options with keys that only an emulator takes."""
    return AwsOptions(
        region="us-east-1",
        endpoint_url=endpoint_url,
        access_key_id="test",
        secret_access_key="test",
        ca_bundle=ca_bundle,
    )


class Sts:
    """An STS that gives the roles `ASIA1`, `ASIA2` and so on, with the lifetime that a test wants."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lifetime = timedelta(hours=1)
        """Of the credentials that it gives next."""
        self.refusal: tuple[int, str] | None = None
        """HTTP status and code of its answers; None while it works."""
        self.asked = 0
        """Requests so far, refused ones too."""
        self.given = 0
        """Credentials so far."""

    def options(self, endpoint_url: str, ca_bundle: str | None = None) -> AwsOptions:
        """Options with a role of this STS."""
        return AwsOptions(
            region="us-east-1",
            endpoint_url=endpoint_url,
            ca_bundle=ca_bundle,
            access_key_id="test",
            secret_access_key="test",
            role_arn=_ROLE_ARN,
            sts_endpoint_url=self.url,
        )

    def answer(self) -> tuple[int, str]:
        """Status and body of the next answer."""
        self.asked += 1
        if self.refusal is not None:
            status, code = self.refusal
            return status, f"<ErrorResponse><Error><Code>{code}</Code><Message>away</Message></Error></ErrorResponse>"
        self.given += 1
        end = (datetime.now(UTC) + self.lifetime).isoformat()
        return 200, (
            "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>ASIA{self.given}</AccessKeyId><SecretAccessKey>hush</SecretAccessKey>"
            f"<SessionToken>token{self.given}</SessionToken><Expiration>{end}</Expiration>"
            f"</Credentials><AssumedRoleUser><Arn>{_ROLE_ARN}</Arn><AssumedRoleId>A:p</AssumedRoleId></AssumedRoleUser>"
            "</AssumeRoleResult></AssumeRoleResponse>"
        )


@contextmanager
def running_sts() -> Iterator[Sts]:
    """Run one on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = sts.answer()
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sts = Sts(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever, args=(0.01,), name="sts")
        thread.start()
        try:
            yield sts
        finally:
            server.shutdown()
            thread.join()
