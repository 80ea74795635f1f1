"""What a status word of UBSE means, as a reason.

Source: reference/ub.md section 5 (ubse src/sdk/include/ubs_error.h).
"""

from enum import IntEnum

from ubhost.errors import Busy, Conflict, Exhausted, HostFault, InvalidRequest, NotFound, UbError, Unsupported


class Status(IntEnum):
    SUCCESS = 0
    INVALID_ARG = 1
    OUT_OF_RANGE = 2
    NULL_POINTER = 3
    BUFFER_TOO_SMALL = 4
    OUT_OF_MEMORY = 10
    RESOURCE_BUSY = 11
    RESOURCE_EXHAUSTED = 12
    QUOTA_EXCEEDED = 13
    IPC_CONNECTION_FAILED = 20
    IPC_TIMEOUT = 21
    IPC_SERVICE_UNAVAILABLE = 22
    IPC_PATH_LENGTH = 23
    PERMISSION_DENIED = 30
    AUTHENTICATION_FAILED = 31
    ACCESS_DENIED = 32
    NOT_IMPLEMENTED = 40
    NOT_SUPPORTED = 41
    OPERATION_FAILED = 42
    TIMED_OUT = 43
    DAEMON_UNREACHABLE = 50
    DAEMON_BUSY = 51
    DAEMON_CRASHED = 52
    DAEMON_INTERNAL = 53
    ENGINE_OUT_OF_RANGE = 1000
    ENGINE_RESOURCE = 1001
    ENGINE_CONNECTION_FAILED = 1002
    ENGINE_AUTH_FAILED = 1003
    ENGINE_TIMEOUT = 1004
    ENGINE_INTERNAL = 1005
    ENGINE_EXISTED = 1006
    ENGINE_NOT_EXIST = 1007
    ENGINE_UDSINFO_MISMATCH = 1008
    ENGINE_IMPORT_ABSENT = 1009
    ENGINE_CREATING = 1010
    ENGINE_DELETING = 1011
    ENGINE_UNIMPORT_SUCCESS = 1012
    ENGINE_ALLOCATE = 1013


_REASONS: dict[Status, type[UbError]] = {
    Status.INVALID_ARG: InvalidRequest,
    Status.OUT_OF_RANGE: InvalidRequest,
    Status.RESOURCE_BUSY: Busy,
    Status.RESOURCE_EXHAUSTED: Exhausted,
    Status.QUOTA_EXCEEDED: Exhausted,
    Status.NOT_IMPLEMENTED: Unsupported,
    Status.NOT_SUPPORTED: Unsupported,
    Status.DAEMON_BUSY: Busy,
    Status.ENGINE_OUT_OF_RANGE: InvalidRequest,
    Status.ENGINE_RESOURCE: Exhausted,
    Status.ENGINE_EXISTED: Conflict,
    Status.ENGINE_NOT_EXIST: NotFound,
    Status.ENGINE_UDSINFO_MISMATCH: Conflict,
    Status.ENGINE_CREATING: Busy,
    Status.ENGINE_DELETING: Busy,
    Status.ENGINE_UNIMPORT_SUCCESS: Busy,  # half released; UBSE finishes by itself
    Status.ENGINE_ALLOCATE: Exhausted,
}
"""What is not here is a fault of the host: nothing the caller can do about it."""

_HINTS: dict[Status, str] = {
    Status.PERMISSION_DENIED: "is the caller root or in group ubse?",
    Status.ENGINE_AUTH_FAILED: "is the caller root or in group ubse, and did the same user create it?",
    Status.ENGINE_CREATING: "it is still being created",
    Status.ENGINE_DELETING: "it is still being deleted",
    Status.ENGINE_UNIMPORT_SUCCESS: "half of it is released, UBSE will release the rest",
    Status.ENGINE_IMPORT_ABSENT: "the borrower's side is away",
}


class UbseStatus(Exception):
    """The status word of a failed call, kept as the cause of the reason that was raised."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"UBSE status {code}{f' {Status(code).name}' if code in _KNOWN else ''}")


_KNOWN = frozenset(int(status) for status in Status)


def reason(code: int, what: str) -> UbError:
    """Return the error for a failed call; ``what`` names operation and object. Its cause is a ``UbseStatus``."""
    cause = UbseStatus(code)
    status = Status(code) if code in _KNOWN else Status.OPERATION_FAILED
    hint = f": {_HINTS[status]}" if status in _HINTS else ""
    error = _REASONS.get(status, HostFault)(f"{what}: {cause}{hint}")
    error.__cause__ = cause
    return error
