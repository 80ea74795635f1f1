"""What the runtime is told when a container or pod must not be created.

Only creation is ever refused: an error from a stop or remove event would leave the runtime unable to clean up, and
an error elsewhere would punish a container for our doubt.

Source: style section 3.4; reference/nri.md section 1.10.
"""

from collections.abc import Mapping

from nri_qos.ttrpc.session import Status
from ubhost.errors import Busy, Conflict, Exhausted, HostFault, InvalidRequest, NotFound, UbError, Unsupported

STATUS: Mapping[type[UbError], Status] = {
    InvalidRequest: Status.INVALID_ARGUMENT,
    NotFound: Status.NOT_FOUND,
    Conflict: Status.FAILED_PRECONDITION,
    Busy: Status.ABORTED,
    Exhausted: Status.RESOURCE_EXHAUSTED,
    Unsupported: Status.FAILED_PRECONDITION,
    HostFault: Status.INTERNAL,
}
