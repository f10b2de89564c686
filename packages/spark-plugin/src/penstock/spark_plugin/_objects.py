"""Small objects by key, which several drivers may create or replace: the interface, and S3."""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyarrow import fs

from penstock.aws import AwsServiceError, AwsSession, BackoffPolicy, S3Store, StoredValue
from penstock.rpc import LoopThread
from penstock.spark_plugin._places import Place, session_of

_BACKOFF = BackoffPolicy(base=timedelta(milliseconds=200), maximum=timedelta(seconds=5), exponent=2, max_attempts=8)
_MOST_DELETED = 1000
"""That one request of S3 takes."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of a listing."""

    key: str
    size: int


class Objects(ABC):
    """Objects of one place, by keys below it: a backend of the stage store.

    `read` and `write` follow `penstock.aws.ConditionalStore`. All calls block.

    Raises:
        penstock.aws.AwsError: the service refuses, or has not answered for about half a minute.
        OSError: the folder cannot be read or written.
    """

    place: Place
    """The place; on S3 with the region of the bucket."""
    conditional = True
    """Whether of several drivers that call `write` at the same time only one succeeds."""
    spark_reaches = False
    """Whether Spark is known to read and write at `url`."""

    @property
    def name(self) -> str:
        """The path or the URL, without secrets."""
        return self.place.shown

    def identity(self) -> str:
        """An identifier that is the same for all drivers."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]

    def url(self, key: str) -> str:
        """The URL of a key, for Spark."""
        return f"{self.name}/{key}"

    @abstractmethod
    def below(self, path: str) -> "Objects":
        """The objects of a folder in it. They use the same connections, which the first one closes."""

    def file_system(self) -> tuple[fs.FileSystem, str]:
        """A file system that has the objects as files, and the folder of the keys there."""
        return self.place.open()

    @abstractmethod
    def read(self, key: str) -> StoredValue | None:
        """The object; None if it does not exist."""

    @abstractmethod
    def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        """Write an object if its version is still `if_version`; None: if it does not exist.

        A killed driver leaves either all of it, or no change. Call it with data that no other caller has: equal data
        means that an answer was lost.

        Returns:
            Its new version; None if another caller was faster.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Listed]:
        """Objects whose keys start with a prefix, in the order of their keys."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, in any order. Keys without an object are ignored."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders right below a prefix, which ends with a slash or is empty."""
        names = (one.key[len(prefix) :].partition("/") for one in self.list(prefix))
        return list(dict.fromkeys(name for name, slash, _ in names if slash))

    def clear(self, prefix: str, *, first: str = "") -> int:
        """Delete everything below a prefix that ends with a slash; returns its bytes.

        At once where that is possible. Otherwise the objects below the folder `first` go before the others, the oldest
        number first.
        """
        found = {one.key: one.size for one in self.list(prefix)}
        for key in sorted((key for key in found if first and key.startswith(f"{prefix}{first}/")), key=_by_number):
            self.delete([key])
        self.delete([key for key in found if not first or not key.startswith(f"{prefix}{first}/")])
        return sum(found.values())

    def close(self) -> None:  # noqa: B027  # most have none
        """Close connections."""


def _by_number(key: str) -> tuple[int, str]:
    return len(key), key


class S3Objects(Objects):
    """Objects on S3, by its conditional writes; see `S3Store`."""

    def __init__(self, place: Place, *, session: AwsSession | None = None, backoff: BackoffPolicy = _BACKOFF) -> None:
        """Look for the bucket; `session` instead of the place's options.

        Raises:
            penstock.aws.AwsError: the bucket does not exist, or cannot be used.
        """
        session = session or session_of(place.options)
        self._shares = False
        self._loop = LoopThread(f"penstock store {place.url}")
        self._client = session.aio_client("s3", endpoint_url=session.options.endpoint_url)
        self._store = S3Store(self._client, place.bucket, place.prefix, backoff=backoff)
        try:
            region = self._call("head_bucket").get("BucketRegion") or session.region
        except BaseException:
            self.close()
            raise
        self.place = place.in_region(region)

    def below(self, path: str) -> "S3Objects":
        one = copy.copy(self)
        one._store, one.place, one._shares = copy.copy(self._store), self.place.below(path), True
        one._store.prefix += f"{path}/"
        return one

    def read(self, key: str) -> StoredValue | None:
        return self._loop.call(self._store.read(key))

    def write(self, key: str, data: bytes, *, if_version: str | None) -> str | None:
        return self._loop.call(self._store.write(key, data, if_version=if_version))

    def list(self, prefix: str) -> Iterator[Listed]:
        token: dict[str, str] = {}
        first = self._store.prefix
        while True:
            page = self._call("list_objects_v2", Prefix=first + prefix, **token)
            for one in page.get("Contents", ()):
                yield Listed(one["Key"][len(first) :], int(one["Size"]))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _MOST_DELETED):
            some = [{"Key": self._store.prefix + key} for key in keys[first : first + _MOST_DELETED]]
            answer = self._call("delete_objects", Delete={"Objects": some, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise AwsServiceError(
                    code=error.get("Code", "UnknownError"),
                    message=f"{error.get('Key')}: {error.get('Message')}",
                    status=200,
                    operation="DeleteObjects",
                )

    def close(self) -> None:
        if not self._shares:
            self._loop.close(self._client.close)

    def _call(self, operation: str, **parameters: Any) -> Any:
        return self._loop.call(self._store.call(operation, **parameters))
