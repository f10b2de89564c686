"""Parses `store=`: a mounted folder, or objects by a URL."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark_plugin._stages.store.formats import StageFormat
from penstock.spark_plugin._stages.store.pins import store_folder
from penstock.spark_plugin.errors import PipelineDefinitionError, StoreUnusableError

if TYPE_CHECKING:
    from penstock.operator_attributes import BlockingStageScheduler
    from penstock.spark_plugin._for_stages import Objects, Place
    from penstock.spark_plugin._stages.store.store import StageStore

_AWS = (
    "awsAccessKeyId",
    "awsProfile",
    "awsSecretAccessKey",
    "awsSessionToken",
    "credentialsProvider",
    "endpointUrl",
    "proxyUrl",
    "region",
    "roleArn",
    "roleExternalId",
    "roleSessionDuration",
    "roleSessionName",
    "roleSessionTags",
    "stsEndpointUrl",
    "webIdentityTokenFile",
)
_CLAIM_SECONDS = "claimSeconds"
_STAGE_FORMAT = "stageFormat"
_OF_ALL = (_CLAIM_SECONDS, _STAGE_FORMAT)
OPTIONS = (*_AWS, *_OF_ALL)
"""Options of a store on S3. The last two apply to every store by URL."""
_DEFAULT_CLAIM_SECONDS = 30.0
_LEAST_CLAIM_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class StorePlace:
    """The places of a pipeline's store and results."""

    store: "Path | Place"
    stages: "Path | Place | None"
    claim_seconds: float = field(default=_DEFAULT_CLAIM_SECONDS)
    stage_format: StageFormat = StageFormat.ARROW

    @classmethod
    def parse(
        cls, store: str | Path, stages: str | Path | None, options: Mapping[str, str] | None, site: str
    ) -> "StorePlace":
        """Parse the arguments of a user.

        Raises:
            StoreUnusableError: the value cannot be a store.
            PipelineDefinitionError: an option is wrong, or cannot act there.
        """
        given = _known(options or {}, site)
        of_all = {name: given.pop(name) for name in _OF_ALL if name in given}
        seconds = _seconds(of_all.get(_CLAIM_SECONDS), site)
        places = [None if one is None else _place(one, given, site) for one in (store, stages)]
        assert places[0] is not None
        if isinstance(places[0], Path):
            given |= of_all
        if given and _kind(places[0]) != "s3":
            what = "is a folder" if isinstance(places[0], Path) else "is not"
            raise PipelineDefinitionError(
                f"{site}: store_options {', '.join(map(repr, sorted(given)))} act on a store on s3://, and "
                f"store={_shown(places[0])!r} {what}: leave them out"
            )
        if places[1] is not None and _kind(places[0]) != _kind(places[1]):
            raise PipelineDefinitionError(
                f"{site}: store={_shown(places[0])!r} and stages={_shown(places[1])!r}: give two "
                "folders, two places on s3://, or two that the stage scheduler decides about"
            )
        return cls(
            store=places[0],
            stages=places[1],
            claim_seconds=seconds,
            stage_format=_format(of_all.get(_STAGE_FORMAT, StageFormat.ARROW), site),
        )

    def open(self, service: "BlockingStageScheduler | None" = None) -> "StageStore":
        """Open the store without holding it. `service` decides which driver may write, without conditional writes.

        Raises:
            StoreUnusableError: the store cannot be reached, or no service decides.
        """
        from penstock.aws import AwsError
        from penstock.spark_plugin._stages.store.store import StageStore

        opened: list[Objects] = []
        try:
            opened.append(_objects(self.store))
            opened.append(opened[0].below("stages") if self.stages is None else _objects(self.stages))
            return StageStore(
                *opened, claim_seconds=self.claim_seconds, stage_format=self.stage_format, service=service
            )
        except BaseException as error:
            for one in opened:
                one.close()
            if isinstance(error, AwsError | OSError | ValueError):
                raise StoreUnusableError(_shown(self.store), str(error)) from error
            raise


def _objects(place: "Path | Place") -> "Objects":
    from penstock.spark_plugin._for_stages import S3Objects
    from penstock.spark_plugin._storage.files import FileObjects
    from penstock.spark_plugin._storage.folder import FolderObjects

    if isinstance(place, Path):
        return FolderObjects(place)
    return S3Objects(place) if place.is_s3 else FileObjects(place)


def _kind(place: "Path | Place") -> str:
    if isinstance(place, Path):
        return "folder"
    return "s3" if place.is_s3 else "files"


def _shown(place: "Path | Place | None") -> str:
    return str(place) if place is None or isinstance(place, Path) else place.shown


def _place(given: str | Path, options: Mapping[str, str], site: str) -> "Path | Place":
    from penstock.spark_plugin._for_stages import FILE_SCHEMES, S3_SCHEMES

    scheme, found, _ = str(given).partition("://")
    if not found or scheme.lower() not in (*S3_SCHEMES, *FILE_SCHEMES):
        return store_folder(given)
    from penstock.aws import AwsOptionError
    from penstock.spark_plugin._for_stages import Place

    try:
        return Place.parse(str(given), options)
    except AwsOptionError as error:
        raise PipelineDefinitionError(f"{site}: store_options: {error}") from error
    except ValueError as error:
        raise StoreUnusableError(str(given), str(error)) from error


def _known(options: Mapping[str, str], site: str) -> dict[str, str]:
    names = {name.lower(): name for name in OPTIONS}
    found = {}
    for name, text in options.items():
        if name.lower() not in names:
            near = get_close_matches(name.lower(), names, 1)
            cure = f"did you mean {names[near[0]]!r}?" if near else f"give one of {', '.join(OPTIONS)}"
            raise PipelineDefinitionError(f"{site}: store_options has no option {name!r}: {cure}")
        found[names[name.lower()]] = str(text)
    return found


def _format(text: str, site: str) -> StageFormat:
    try:
        return StageFormat(text.lower())
    except ValueError:
        raise PipelineDefinitionError(
            f"{site}: store_options: {_STAGE_FORMAT}={text!r} must be arrow, spark or auto"
        ) from None


def _seconds(text: str | None, site: str) -> float:
    if text is None:
        return _DEFAULT_CLAIM_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _LEAST_CLAIM_SECONDS <= seconds <= 3600:
        raise PipelineDefinitionError(f"{site}: store_options: {_CLAIM_SECONDS}={text!r} must be 1 to 3600 seconds")
    return seconds
