"""Small objects by key, which several drivers may create or replace: the interface, and S3."""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyarrow import fs

from penstock.aws import (
    AwsConnectionError,
    AwsError,
    AwsServiceError,
    AwsSession,
    BackoffPolicy,
    ErrorKind,
    classify,
    date_seconds,
    retry,
)
from penstock.rpc import LoopThread
from penstock.spark_plugin._places import Place, session_of

_BACKOFF = BackoffPolicy(base=timedelta(milliseconds=200), maximum=timedelta(seconds=5), exponent=2, max_attempts=8)
_MOST_DELETED = 1000
"""That one request of S3 takes."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object as it stands."""

    data: bytes
    version: str
    """Another for each content."""
    age_seconds: float
    """Since it was written, by the store's own clock."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of a listing."""

    key: str
    size: int


class Objects(ABC):
    """Objects of one place, by keys below it: a backend of the stage store. All calls block.

    Raises:
        penstock.aws.AwsError: the service refuses, or has not answered for about half a minute.
        OSError: the folder cannot be read or written.
    """

    place: Place
    """The place; on S3 with the region of the bucket."""
    conditional = True
    """Whether of several drivers that call `create` or `replace` at the same time only one succeeds."""
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
    def get(self, key: str) -> Found | None:
        """The object; None where there is none."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> str | None:
        """Create an object. A killed driver leaves all of it or nothing.

        To be called with data that no other caller has: equal data means that an answer was lost.

        Returns:
            Its version; None if another caller has created it.
        """

    @abstractmethod
    def replace(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object; its new version, or None if `version` is not its version. See `create`."""

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
    """Objects on S3, by its conditional writes (`If-None-Match`, `If-Match`)."""

    def __init__(self, place: Place, *, session: AwsSession | None = None, backoff: BackoffPolicy = _BACKOFF) -> None:
        """Look for the bucket; `session` instead of the place's options.

        Raises:
            penstock.aws.AwsError: the bucket does not exist, or cannot be used.
        """
        session = session or session_of(place.options)
        self._bucket, self._prefix, self._backoff = place.bucket, place.prefix, backoff
        self._shares = False
        self._loop = LoopThread(f"penstock store {place.url}")
        self._client = session.aio_client("s3", endpoint_url=session.options.endpoint_url)
        try:
            region = self._call("head_bucket").get("BucketRegion") or session.region
        except BaseException:
            self.close()
            raise
        self.place = place.in_region(region)

    def below(self, path: str) -> "S3Objects":
        one = copy.copy(self)
        one._prefix, one.place, one._shares = f"{self._prefix}{path}/", self.place.below(path), True
        return one

    def get(self, key: str) -> Found | None:
        async def read(answer: dict[str, Any]) -> Found:
            async with answer["Body"] as body:
                data = await body.read()
            written = answer["LastModified"].timestamp()
            now = date_seconds(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))
            return Found(data, answer["ETag"], max(0.0, now - written) if now is not None else 0.0)

        try:
            found: Found = self._call("get_object", read, Key=self._prefix + key)
        except AwsServiceError as error:
            if error.status == 404 and error.code != "NoSuchBucket":
                return None
            raise
        return found

    def create(self, key: str, data: bytes) -> str | None:
        return self._put(key, data, IfNoneMatch="*")

    def replace(self, key: str, data: bytes, version: str) -> str | None:
        return self._put(key, data, IfMatch=version)

    def _put(self, key: str, data: bytes, **condition: str) -> str | None:
        try:
            return str(self._call("put_object", None, Key=self._prefix + key, Body=data, **condition)["ETag"])
        except AwsServiceError as error:
            if error.status != 412 and not (error.status == 404 and "IfMatch" in condition):
                raise
        # An answer may have been lost, of a call that was carried out and then sent again.
        found = self.get(key)
        return found.version if found is not None and found.data == data else None

    def list(self, prefix: str) -> Iterator[Listed]:
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", None, Prefix=self._prefix + prefix, **token)
            for one in page.get("Contents", ()):
                yield Listed(one["Key"][len(self._prefix) :], int(one["Size"]))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _MOST_DELETED):
            some = [{"Key": self._prefix + key} for key in keys[first : first + _MOST_DELETED]]
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

    def _call(self, operation: str, read: Callable[[Any], Any] | None = None, /, **parameters: Any) -> Any:
        async def call() -> Any:
            answer = await self._client.call(operation, Bucket=self._bucket, **parameters)
            if read is None:
                return answer
            try:
                return await read(answer)
            except AwsError:
                raise
            except Exception as error:  # its body breaks off, by the errors of any layer below
                raise AwsConnectionError(
                    operation=operation, endpoint=self._bucket, reason=str(error) or type(error).__name__
                ) from error

        return self._loop.call(retry(call, self._backoff, is_retryable=_may_pass))


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, AwsServiceError) and error.code == "ConditionalRequestConflict":
        return True  # another writes at the same moment
    return classify(error) is not ErrorKind.FATAL
