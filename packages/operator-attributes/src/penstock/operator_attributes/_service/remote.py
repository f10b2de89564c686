"""The stage scheduler behind gRPC: the client, and the servicer."""

from typing import Final

import grpc

from penstock.operator_attributes import errors
from penstock.operator_attributes._schedule.api import StageSchedulerApi
from penstock.operator_attributes._service.wire import CONTRACT
from penstock.operator_attributes.errors import InvalidOptionError, OperatorAttributesError, SchedulerAwayError
from penstock.rpc import ClientSecurity, MethodRights, RemoteApi, Servicer, ServiceRights, calls, typed_error

_ERRORS = tuple(
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OperatorAttributesError) and kind is not OperatorAttributesError
)
SERVICE_NAME: Final = CONTRACT.service.full_name
_JOB: Final = {"jobs": ("job_id",)}
_STORE: Final = {"stores": ("store",)}


class RemoteStageScheduler(RemoteApi):
    """The stage scheduler behind gRPC, for the running event loop: the calls and errors of `StageSchedulerApi`.

    `submit`, `claim` and `commit_claim` may be repeated after SchedulerAwayError. After one of `report`, the
    event may or may not have arrived: ask `get_job`. An async context manager: leaving it closes the channel.
    """

    contract = CONTRACT

    def __init__(self, endpoint: str, security: ClientSecurity | None = None, *, timeout_seconds: float = 30.0) -> None:
        """Open a channel; it connects at the first call.

        Args:
            endpoint: `host:port` of the service.
            security: TLS and token; none unless given.
            timeout_seconds: deadline of every call but `watch`, which has none.

        Raises:
            RpcOptionError: a file cannot be read, or the token would cross the network in plain text.
            InvalidOptionError: the timeout is not positive.
        """
        if timeout_seconds <= 0:
            raise InvalidOptionError("timeout_seconds", timeout_seconds, "greater than 0")
        super().__init__(endpoint, security, timeout_seconds=timeout_seconds)
        self._open()

    submit = calls(StageSchedulerApi.submit)
    report = calls(StageSchedulerApi.report)
    get_job = calls(StageSchedulerApi.get_job)
    get_plan = calls(StageSchedulerApi.get_plan)
    watch = calls(StageSchedulerApi.watch)
    list_jobs = calls(StageSchedulerApi.list_jobs)
    claim = calls(StageSchedulerApi.claim)
    renew_claim = calls(StageSchedulerApi.renew_claim)
    commit_claim = calls(StageSchedulerApi.commit_claim)
    release_claim = calls(StageSchedulerApi.release_claim)
    forget_claim = calls(StageSchedulerApi.forget_claim)

    def _error(self, error: grpc.RpcError, operation: str) -> Exception:
        known = typed_error(error, _ERRORS)
        if known is None and isinstance(error, grpc.aio.AioRpcError):
            known = _failed(error.code().name, error.details() or "")
        return known or _failed("UNKNOWN", str(error))


def _failed(status: str, details: str) -> SchedulerAwayError:
    return SchedulerAwayError.of("SCHEDULER_CALL_FAILED", status=status, details=details)


class StageSchedulerServicer(Servicer):
    """Serves any `StageSchedulerApi`; its typed errors become status codes, with their fields in the metadata."""

    contract = CONTRACT
    rights = ServiceRights(
        "stage-scheduler",
        SERVICE_NAME,
        {
            "Submit": MethodRights(resources=_JOB, change="submit"),
            "Report": MethodRights(resources=_JOB, change="report"),
            "GetJob": MethodRights(resources=_JOB),
            "GetGraph": MethodRights(resources=_JOB),
            "Watch": MethodRights(resources=_JOB),
            "ListJobs": MethodRights(all_of=("jobs",)),
            # A claim is renewed, committed and given up by its token, which only the claimer was given.
            "Claim": MethodRights(resources=_STORE, change="claim"),
            "RenewClaim": MethodRights(resources=_STORE),
            "CommitClaim": MethodRights(resources=_STORE, change="commit claim"),
            "ReleaseClaim": MethodRights(resources=_STORE, change="release claim"),
            "ForgetClaim": MethodRights(resources=_STORE, change="forget claim"),
        },
    )
    """What its methods act on, for `GrpcServer(rights=…)`."""

    def __init__(self, scheduler: StageSchedulerApi) -> None:
        super().__init__(scheduler)
