# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._client.channel import (
    open_aio_channel,
    open_channel,
)
from ._client.settings import ClientSettings
from ._contract import Contract, Messages, RemoteApi, Rpc, Servicer, calls
from ._flags import (
    Setting,
    add_settings,
    add_switch,
    check_address,
    check_no_user,
    flags_in,
    read_number,
    read_path,
    read_settings,
    read_switch,
)
from ._loop_thread import LoopThread, Signal
from ._own_files import (
    collect_seldom,
    is_answered,
    lock_file,
    make_database_private,
    make_folder,
    open_regular,
    unlock_file,
)
from ._pages import all_pages, cut_page
from ._security.files import FileChanges, stamp_of
from ._security.security import (
    ClientSecurity,
    ServerSecurity,
)
from ._security.token_file import MIN_TOKEN_CHARACTERS
from ._server.run import (
    run_service,
    set_up_logging,
)
from ._server.server import (
    MAX_SOCKET_PATH_BYTES,
    GrpcServer,
    Register,
    ServerSettings,
)
from ._server.token_check import Callers
from ._status import (
    StatusTable,
    abort_with,
    errors_as_status,
    explain_failure,
    failed_call,
    typed_error,
    when_refused,
)
from ._synchronous import Synchronous, synchronous
from .errors import (
    Code,
    CodedError,
    LoopThreadClosedError,
    LoopThreadForkedError,
    PenstockRpcError,
    RpcOptionError,
    ServerStartError,
)

__all__ = [
    "MAX_SOCKET_PATH_BYTES",
    "MIN_TOKEN_CHARACTERS",
    "Callers",
    "ClientSecurity",
    "ClientSettings",
    "Code",
    "CodedError",
    "Contract",
    "FileChanges",
    "GrpcServer",
    "LoopThread",
    "LoopThreadClosedError",
    "LoopThreadForkedError",
    "Messages",
    "PenstockRpcError",
    "Register",
    "RemoteApi",
    "Rpc",
    "RpcOptionError",
    "ServerSecurity",
    "ServerSettings",
    "ServerStartError",
    "Servicer",
    "Setting",
    "Signal",
    "StatusTable",
    "Synchronous",
    "abort_with",
    "add_settings",
    "add_switch",
    "all_pages",
    "calls",
    "check_address",
    "check_no_user",
    "collect_seldom",
    "cut_page",
    "errors_as_status",
    "explain_failure",
    "failed_call",
    "flags_in",
    "is_answered",
    "lock_file",
    "make_database_private",
    "make_folder",
    "open_aio_channel",
    "open_channel",
    "open_regular",
    "read_number",
    "read_path",
    "read_settings",
    "read_switch",
    "run_service",
    "set_up_logging",
    "stamp_of",
    "synchronous",
    "typed_error",
    "unlock_file",
    "when_refused",
]
