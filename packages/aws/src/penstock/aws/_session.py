"""Sessions: credentials that refresh, boto3 clients, signatures."""

import asyncio
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Self
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import (
    Credentials,
    ReadOnlyCredentials,
)
from botocore.exceptions import ConfigParseError, InvalidRegionError, ProfileNotFound
from botocore.loaders import Loader, create_loader
from botocore.session import Session as BotocoreSession
from botocore.utils import validate_region_name

from penstock.aws._aws_client import AwsClient, refuse_unreadable
from penstock.aws._classify import CREDENTIALS_REFUSED_CODES
from penstock.aws._credentials import RenewableCredentials, redact_botocore
from penstock.aws._options import AwsOptions, check_no_secret, check_url, require
from penstock.aws._provider import assume_roles, provided_credentials
from penstock.aws._proxy import HttpProxy
from penstock.aws._service_clock import ServiceClock
from penstock.aws.errors import AwsOptionError

_CONFIG: dict[str, Any] = {
    # This package retries, so that callers see throttling and can slow down.
    "retries": {"total_max_attempts": 1},
    "connect_timeout": 10,
    "read_timeout": 60,
    "max_pool_connections": 32,
    # An older service answers newer checksum headers with an error.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}

# The URL that represents all of AWS for NO_PROXY.
_AWS_URL = "https://amazonaws.com"


@cache
def _loader(data_path: str | None) -> Loader:
    # One loader for all sessions: each would take 0.1 s to read some MB of models, and keep them in memory.
    loader: Loader = create_loader(data_path)
    return loader


class _AioCredentials:
    """The session's credentials in the form that aiobotocore needs."""

    method = "penstock"

    def __init__(self, session: "AwsSession") -> None:
        self.get_frozen_credentials = session.fetch_credentials

    async def get_account_id(self) -> str | None:
        account_id: str | None = (await self.get_frozen_credentials()).account_id
        return account_id

    def get_deferred_property(self, property_name: str) -> Any:
        return self.get_account_id


class AwsSession:
    """Clients and signatures for one set of options. Safe to share between threads.

    Args:
        options: region, endpoint and credentials.
        clock: monotonic seconds.

    Raises:
        AwsOptionError: the profile does not exist, the region is missing or invalid, or `options` is not an
            `AwsOptions`.
    """

    def __init__(self, options: AwsOptions | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        redact_botocore()
        self._options = AwsOptions.of(options, "options")
        self._clock = clock
        self._lock = threading.Lock()
        self._credentials_lock = threading.Lock()
        self._found_credentials: RenewableCredentials | None = None
        self._clients: dict[str, Any] = {}
        self._service_clocks: dict[str, ServiceClock] = {}
        self._service_urls: dict[str, str] = {}
        botocore_session = BotocoreSession(profile=self._options.profile)
        try:
            # Checks the profile, also if the environment sets the region.
            botocore_session.get_scoped_config()
            configured = botocore_session.get_config_variable("region")
        except ProfileNotFound as error:
            raise AwsOptionError("awsProfile", str(error)) from error
        except ConfigParseError as error:
            option = "region" if self._options.profile is None else "awsProfile"
            raise AwsOptionError(option, str(error)) from error
        # The other SDKs and AWS's own platforms set AWS_REGION, which botocore does not read.
        region = self._options.region or os.environ.get("AWS_REGION") or configured
        if not region:
            raise AwsOptionError("region", "is not set, neither here nor in the environment nor in the profile")
        try:
            validate_region_name(region)
        except InvalidRegionError as error:
            raise AwsOptionError("region", f"invalid region {region!r} (example: eu-west-1)") from error
        self.region: str = region
        botocore_session.register_component("data_loader", _loader(botocore_session.get_config_variable("data_path")))
        self._botocore = botocore_session

    @classmethod
    def of(cls, session: Self, option: str = "session") -> Self:
        """Return the session that a caller gave.

        Args:
            session: the session.
            option: the name of the caller's parameter, for the error.

        Raises:
            AwsOptionError: the caller gave something else, such as `AwsOptions`.
        """
        return require(session, cls, option, hint="AwsSession(options) makes one of AwsOptions")

    @property
    def options(self) -> AwsOptions:
        """As given."""
        return self._options

    @property
    def _credentials(self) -> RenewableCredentials:
        # One object for all clients, so that renewed credentials reach all of them.
        with self._credentials_lock:
            if self._found_credentials is None:
                is_fixed = self._options.access_key_id is not None and self._options.role_arn is None
                found = RenewableCredentials(self._find_credentials, is_fixed=is_fixed, clock=self._clock)
                self._found_credentials = found
            return self._found_credentials

    def _find_credentials(self) -> Credentials:
        options = self._options
        source: Credentials | None
        if options.access_key_id is not None:
            source = Credentials(options.access_key_id, options.secret_access_key or "", options.session_token)
        elif options.credentials_provider is not None:
            source = provided_credentials(options.credentials_provider)
        elif options.web_identity_token_file is not None:
            source = None
        else:
            # A new session: a used session keeps what it has read from files.
            session = BotocoreSession(profile=options.profile)
            # For STS and SSO, where the profile names them.
            session.set_default_client_config(self._client_config(lambda: _AWS_URL))
            source = session.get_credentials()
        if options.role_arn is not None and (source is not None or options.web_identity_token_file is not None):
            return assume_roles(options, source, self._create_sts_client)
        if source is None:
            raise AwsOptionError(
                "awsAccessKeyId", "no credentials: give keys, a profile or a role, or set up the environment"
            )
        return source

    def _create_sts_client(self, service_name: str, **arguments: Any) -> Any:
        # The caller retries with back-off.
        config = Config(connect_timeout=10, retries={"total_max_attempts": 2})
        url = self._options.sts_endpoint_url
        config = config.merge(self._client_config(lambda: url or self._service_url(service_name)))
        arguments["config"] = (arguments.get("config") or Config()).merge(config)
        return self._botocore.create_client(
            service_name,
            region_name=self.region,
            endpoint_url=self._options.sts_endpoint_url,
            verify=self._options.ca_bundle,
            **arguments,
        )

    def frozen_credentials(self) -> ReadOnlyCredentials:
        """The current credentials. Blocks on the network if `must_fetch_credentials`.

        They are refreshed in a thread from 15 minutes before they expire. If the refresh fails, they are used until
        they expire, one warning is logged, and the refresh is retried.

        Raises:
            AwsOptionError: there are no credentials.
            AwsCredentialsError: the credentials have expired, and no others can be fetched.
        """
        return self._credentials.get_frozen_credentials()

    async def fetch_credentials(self) -> ReadOnlyCredentials:
        """`frozen_credentials`, in a thread if the credentials have to be fetched."""
        if self.must_fetch_credentials:
            return await asyncio.to_thread(self.frozen_credentials)
        return self.frozen_credentials()

    @property
    def must_fetch_credentials(self) -> bool:
        """Whether the next signature may block, because credentials have to be fetched first."""
        return self._found_credentials is None or self._found_credentials.must_fetch

    @property
    def has_fixed_credentials(self) -> bool:
        """Whether the credentials are options or environment variables, which are never replaced."""
        return self._credentials.is_fixed

    def renew_credentials(self) -> bool:
        """Look for other credentials after a service refused these; return whether a retry is worthwhile. Blocks.

        Files are read again, roles assumed again, at most once in 5 seconds however many callers ask. The answer is
        False when nothing else is found, as with keys that were given as options. While their source is away it is
        True: the next signature raises an `AwsCredentialsError` that passes.
        """
        return self._credentials.renew()

    async def find_other_credentials(self, refused: ReadOnlyCredentials) -> bool:
        """`renew_credentials` in a thread, unless another call has already replaced the refused credentials."""
        return await self.fetch_credentials() != refused or await asyncio.to_thread(self.renew_credentials)

    def aio_client(self, service_name: str, *, endpoint_url: str | None = None) -> AwsClient:
        """A client for asyncio, which the caller closes; see `AwsClient`.

        Args:
            service_name: as boto3 has it.
            endpoint_url: of the service. Default: the option for Kinesis, boto3's own choice for others.

        Raises:
            AwsOptionError: the endpoint is not a URL, or holds what may be a secret.
        """
        if endpoint_url is not None:
            check_url("endpoint_url", endpoint_url)
        if endpoint_url is None and service_name == "kinesis":
            endpoint_url = self.endpoint_url(service_name)
        return AwsClient(self, service_name, endpoint_url)

    def prepare_aio_client(self, service_name: str, endpoint_url: str | None) -> Callable[[], Any]:
        """A function that creates aiobotocore's client as an async context manager. Blocks briefly; see `AwsClient`.

        Raises:
            AwsOptionError: the authorities to trust cannot be read.
        """
        # The import takes half a second.
        from aiobotocore.config import AioConfig
        from aiobotocore.session import AioSession

        self._tls_context()
        session = AioSession(profile=self._options.profile)
        session.register_component("data_loader", _loader(self._botocore.get_config_variable("data_path")))
        session._credentials = _AioCredentials(self)
        config = AioConfig(**_CONFIG, warm_up_loader_caches=True)
        return partial(
            session.create_client,
            service_name,
            region_name=self.region,
            endpoint_url=endpoint_url,
            verify=self._options.ca_bundle,
            config=config.merge(self._client_config(lambda: endpoint_url or self._service_url(service_name))),
        )

    def client(self, service_name: str) -> Any:
        """A boto3 client without retries, shared by all callers. Its calls block."""
        with self._lock:
            if service_name not in self._clients:
                self._clients[service_name] = self._create_client(service_name)
            return self._clients[service_name]

    def _create_client(self, service_name: str) -> Any:
        # Imported here, because reading and writing records does not need it.
        import boto3

        # boto3 has no parameter for credentials that refresh, so they are set in its session.
        session = BotocoreSession()
        session._credentials = self._credentials  # type: ignore[attr-defined]  # no public way
        client = boto3.Session(botocore_session=session).client(
            service_name,  # type: ignore[call-overload]  # any service
            region_name=self.region,
            endpoint_url=self.endpoint_url(service_name) if service_name == "kinesis" else None,
            verify=self._options.ca_bundle,
            config=Config(**_CONFIG).merge(self._client_config(lambda: self.endpoint_url(service_name))),
        )
        # Before botocore's own handlers, one of which ends the matter.
        client.meta.events.register_first("needs-retry", self._retry_renewed)
        client.meta.events.register("before-parse", partial(refuse_unreadable, client.meta.endpoint_url))
        clock, asked = self._clock_of(service_name), threading.local()

        def asks(**_: Any) -> None:
            asked.at = clock.monotonic()

        def answered(http_response: Any, **_: Any) -> None:
            clock.answered(http_response.headers.get("date"), asked.at)

        client.meta.events.register("before-send", asks)
        client.meta.events.register("after-call", answered)
        return client

    def _retry_renewed(self, response: tuple[Any, dict[str, Any]] | None, attempts: int, **_: Any) -> float | None:
        """Seconds after which botocore signs and sends a refused call again; None for no retry."""
        if response is None or attempts > 1:
            return None
        code = response[1].get("Error", {}).get("Code")
        return 0.0 if code in CREDENTIALS_REFUSED_CODES and self.renew_credentials() else None

    def service_clock(self, service_name: str | None = None) -> ServiceClock:
        """Give the clock of a service, by default of the streams' service, estimated from all answers."""
        with self._lock:
            return self._clock_of(service_name or self._options.stream_service)

    def _clock_of(self, service_name: str) -> ServiceClock:
        # Called for every poll of every shard, so no object is created on the way.
        if (clock := self._service_clocks.get(service_name)) is None:
            clock = self._service_clocks[service_name] = ServiceClock()
        return clock

    def endpoint_url(self, service_name: str | None = None) -> str:
        """URL of a service, by default of the streams' service, without a trailing slash.

        Raises:
            AwsOptionError: the environment or the profile has an endpoint that is not a URL, or contains a password.
        """
        if self._options.endpoint_url is not None:
            return self._options.endpoint_url.rstrip("/")
        return self._service_url(service_name or self._options.stream_service)

    def _service_url(self, service_name: str) -> str:
        # Cached, because botocore creates a whole client for it.
        if service_name not in self._service_urls:
            # Unsigned: botocore would look for credentials, by files, processes and metadata services.
            config = Config(signature_version=UNSIGNED)
            # The environment and the profile can also set it.
            try:
                client = self._botocore.create_client(service_name, region_name=self.region, config=config)
            except ValueError:
                # Botocore's error for a URL without a scheme shows the URL, which may contain a password.
                where = "the value in the environment or the profile"
                raise AwsOptionError(
                    "endpointUrl", f"{where} is not an http or https URL (example: https://kinesis.internal:4567)"
                ) from None
            url = str(client.meta.endpoint_url).rstrip("/")
            check_url("endpointUrl", url)
            self._service_urls[service_name] = url
        return self._service_urls[service_name]

    def proxy(self, service_name: str = "kinesis") -> HttpProxy | None:
        """The HTTP proxy for the service; None for a direct connection.

        Raises:
            AwsOptionError: the environment names something that is not a proxy.
        """
        return HttpProxy.of(self.endpoint_url(service_name), self._options.proxy_url)

    def _client_config(self, url: Callable[[], str]) -> Config:
        """The configuration of every client; `url` returns the endpoint.

        Raises:
            AwsOptionError: an endpoint in the environment or in the profile may contain a secret.
        """
        # Botocore finds these endpoints itself, and shows them in its errors.
        profile = self._botocore.get_scoped_config()
        services = self._botocore.full_config.get("services", {}).get(profile.get("services"), {})
        for one in (profile, *services.values()):
            check_no_secret("endpoint_url", one.get("endpoint_url", ""))
        for name, text in os.environ.items():
            if name.startswith("AWS_ENDPOINT_URL"):
                check_no_secret(name, text)
        # Without the option botocore looks into the environment itself.
        proxy_url = self._options.proxy_url
        if proxy_url is None:
            return Config()
        is_used = HttpProxy.of(url(), proxy_url) is not None
        return Config(proxies={"http": proxy_url, "https": proxy_url} if is_used else {})

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for https endpoints; None for http.

        Raises:
            AwsOptionError: the authorities to trust cannot be read.
        """
        return self._tls_context() if urlsplit(self.endpoint_url()).scheme == "https" else None

    def _tls_context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca_bundle)
        except OSError as error:
            # Not a connection error: a retry would fail as well.
            raise AwsOptionError("caBundle", f"{self.ca_bundle} cannot be read as a PEM file: {error}") from error

    @property
    def ca_bundle(self) -> str | None:
        """PEM file of the authorities to trust; None for the system's."""
        return self._options.ca_bundle or self._botocore.get_config_variable("ca_bundle")

    def sign(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, service: str = "kinesis"
    ) -> dict[str, str]:
        """The headers with AWS Signature Version 4 added. Blocks, and raises, as `frozen_credentials` does."""
        request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
        SigV4Auth(self.frozen_credentials(), service, self.region).add_auth(request)
        return dict(request.headers.items())

    async def signed(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, service: str = "kinesis"
    ) -> dict[str, str]:
        """`sign`, in a thread if the credentials have to be fetched."""
        if self.must_fetch_credentials:
            return await asyncio.to_thread(self.sign, method, url, headers, body, service)
        return self.sign(method, url, headers, body, service)

    def __repr__(self) -> str:
        return f"AwsSession(region={self.region!r}, endpoint_url={self._options.endpoint_url!r})"
