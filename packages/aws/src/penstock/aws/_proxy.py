"""HTTP proxies."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from botocore.utils import should_bypass_proxies

from penstock.aws.errors import AwsOptionError


@dataclass(frozen=True, kw_only=True)
class HttpProxy:
    """An HTTP proxy: https uses a tunnel (CONNECT), http requests are sent to it."""

    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def from_url(cls, url: str, option: str = "proxyUrl") -> HttpProxy:
        """The proxy of a URL such as `http://user:password@proxy.internal:3128`; without a scheme it is http.

        Raises:
            AwsOptionError: the text is not such a URL. The error does not show it, since it may hold a password.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname or "", parts.port or 80
        except ValueError:
            host, port = "", 0
        if not host or parts.scheme != "http" or parts.path.strip("/") or parts.query or parts.fragment:
            reason = "must be http://HOST:PORT or http://USER:PASSWORD@HOST:PORT; no TLS to the proxy, no SOCKS"
            raise AwsOptionError(option, reason)
        return cls(host=host, port=port, user=unquote(parts.username or ""), password=unquote(parts.password or ""))

    @classmethod
    def of(cls, endpoint_url: str, proxy_url: str | None) -> HttpProxy | None:
        """The proxy for an endpoint: `proxy_url`, or else the environment's proxy; None for hosts in `NO_PROXY`.

        Raises:
            AwsOptionError: the environment names something that is not a proxy.
        """
        if should_bypass_proxies(endpoint_url):
            return None
        if proxy_url is not None:
            return cls.from_url(proxy_url)
        # As boto3 has it.
        scheme = urlsplit(endpoint_url).scheme
        found = getproxies().get(scheme)
        return cls.from_url(found, f"{scheme.upper()}_PROXY") if found else None

    @property
    def authority(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authorization(self) -> str | None:
        """Value of the header Proxy-Authorization. A secret."""
        if not self.user:
            return None
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def tunnel_request(self, host: str, port: int) -> bytes:
        """CONNECT to a host. Holds a secret."""
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        fields = f"proxy-authorization: {self.authorization}\r\n" if self.authorization else ""
        return f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n{fields}\r\n".encode()

    def refusal(self, status: int, reason: str, host: str) -> AwsOptionError | ConnectionError:
        """The error for an answer to CONNECT other than 2xx: the proxy refuses, or cannot connect."""
        if status in (401, 403, 407):
            return AwsOptionError(
                "proxyUrl", f"the proxy {self.authority} refuses to lead to {host}: {status} {reason}"
            )
        return ConnectionError(f"the proxy {self.authority} cannot lead to {host}: {status} {reason}")
