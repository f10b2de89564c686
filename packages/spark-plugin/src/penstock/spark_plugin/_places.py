"""Where files lie, by URL, for the driver and for its tasks: opened by `pyarrow.fs`, without Spark and Hadoop."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pyarrow import fs

from penstock.aws import AwsOptionError, AwsOptions, AwsSession, HttpProxy
from penstock.spark_plugin._connections import shared_session

_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn")
S3_SCHEMES = ("s3", "s3a", "s3n")
FILE_SCHEMES = {
    "gs": "Google Cloud Storage",
    "gcs": "Google Cloud Storage",
    "abfs": "Azure",
    "abfss": "Azure",
    "hdfs": "HDFS",
    "viewfs": "HDFS",
}
"""Further schemes that Arrow supports, and their systems."""
_GROWING = ("file", "hdfs", "viewfs")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder by its URL, on S3 with what it takes to reach AWS. Can be pickled, but holds secrets."""

    url: str
    """Without a slash at its end. The URL of a file system other than S3 may hold a password."""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Options of AWS, by their camelCase names."""

    @classmethod
    def parse(cls, url: str, options: Mapping[str, str] | None = None) -> Self:
        """The place that a URL means; `options` are options of AWS, by their camelCase names.

        Raises:
            ValueError: the URL does not name a bucket, or holds a user, a password, a query or a fragment.
            penstock.aws.AwsOptionError: an option is wrong, or cannot act here.
        """
        parts = urlsplit(url)
        if parts.scheme.lower() not in S3_SCHEMES:
            return cls(url=url.rstrip("/"))
        if _BUCKET.fullmatch(parts.netloc) is None or parts.query or parts.fragment:
            raise ValueError("write s3://BUCKET/FOLDER")
        aws = AwsOptions.from_mapping(options or {})
        if aws.ca_bundle is not None:
            raise AwsOptionError(
                "caBundle", "cannot be given for files on S3, whose client trusts the authorities of the system"
            )
        path = posixpath.normpath("/" + unquote(parts.path)).strip("/")
        return cls(url=f"s3://{parts.netloc}/{path}".rstrip("/"), options=tuple(sorted((options or {}).items())))

    def __repr__(self) -> str:
        return f"Place({self.shown!r})"

    @property
    def is_s3(self) -> bool:
        """Whether it is on Amazon S3, or what speaks its protocol."""
        return self.url.startswith("s3://")

    @property
    def shown(self) -> str:
        """Its URL for people: without a password, and without what follows a question mark, such as a key."""
        if self.is_s3:
            return self.url
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")
        user = host[0].partition(":")[0]
        return urlunsplit((parts.scheme, f"{user}{host[1]}{host[2]}" if host[0] else parts.netloc, parts.path, "", ""))

    @property
    def shows_growing_files(self) -> bool:
        """Whether a file is seen there before all of it is written; folders are made there, too."""
        return urlsplit(self.url).scheme.lower() in _GROWING

    @property
    def bucket(self) -> str:
        """Of S3."""
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """The folder in its bucket, with a slash at its end; empty for the bucket itself."""
        path = self.url[len("s3://") :].partition("/")[2]
        return f"{path}/" if path else ""

    def below(self, path: str) -> Self:
        """A folder in it."""
        if self.is_s3:
            return replace(self, url=f"{self.url}/{path}")
        url, mark, query = self.url.partition("?")
        return replace(self, url=f"{url.rstrip('/')}/{path}{mark}{query}")

    def in_region(self, region: str) -> Self:
        """The same in a region."""
        kept = ((name, text) for name, text in self.options if name.lower() != "region")
        return replace(self, options=(*kept, ("region", region)))

    def open(self) -> tuple[fs.FileSystem, str]:
        """Its file system, and the folder's path there.

        On S3 it signs with the credentials of this moment: open it again for each file.

        Raises:
            OSError: Arrow does not have the file system.
            penstock.aws.AwsError: no credentials were found.
        """
        if self.is_s3:
            return _s3(session_of(self.options)), f"{self.bucket}/{self.prefix}".rstrip("/")
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(quote(self.url, safe=":/%@?=&+"))
        return found


def session_of(options: tuple[tuple[str, str], ...]) -> AwsSession:
    """One for all files of a process: it keeps the credentials."""
    return shared_session(AwsOptions.from_mapping(dict(options)))


def _s3(session: AwsSession) -> fs.S3FileSystem:
    credentials = session.frozen_credentials()
    how: dict[str, Any] = {}
    # That of the environment or the profile, too, as the driver's own calls have it.
    url = session.endpoint_url("s3")
    parts = urlsplit(url)
    if not (parts.hostname or "").endswith(_AWS_HOSTS):
        how = {"scheme": parts.scheme, "endpoint_override": parts.netloc + parts.path.rstrip("/")}
    proxy = HttpProxy.of(url, session.options.proxy_url)
    if proxy is not None:
        how["proxy_options"] = {"scheme": "http", "host": proxy.host, "port": proxy.port}
        if proxy.user:
            how["proxy_options"] |= {"username": proxy.user, "password": proxy.password}
    return fs.S3FileSystem(
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        session_token=credentials.token,
        region=session.region,
        **how,
    )
