"""Whatever a handler raises reaches the client as a status, over a real socket, and the log without secrets."""

import json
import logging
from collections.abc import Callable, Iterator
from concurrent import futures
from io import StringIO
from pathlib import Path

import grpc
import pytest
from ubproto.csi.v1 import csi_pb2 as csi
from ubproto.csi.v1 import csi_pb2_grpc

from csi_ub.errors import STATUS, ReasonToStatus
from csi_ub.reasons import InUse, OutOfRange
from tests.csi_ub.driver import refused
from ubhost import errors
from ubhost.log import set_up

Code = grpc.StatusCode
Handler = Callable[[], None]


class Broken(csi_pb2_grpc.IdentityServicer, csi_pb2_grpc.ControllerServicer, csi_pb2_grpc.SnapshotMetadataServicer):
    """Every method calls ``handler``."""

    def __init__(self) -> None:
        self.handler: Handler = lambda: None

    def CreateVolume(self, request: csi.CreateVolumeRequest, context: grpc.ServicerContext) -> csi.CreateVolumeResponse:
        self.handler()
        return csi.CreateVolumeResponse()

    def GetMetadataAllocated(
        self, request: csi.GetMetadataAllocatedRequest, context: grpc.ServicerContext
    ) -> Iterator[csi.GetMetadataAllocatedResponse]:
        yield csi.GetMetadataAllocatedResponse()
        self.handler()


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[tuple[Broken, grpc.Channel]]:
    address = f"unix:{tmp_path}/csi.sock"
    server = grpc.server(futures.ThreadPoolExecutor(1), interceptors=[ReasonToStatus()])
    servicer = Broken()  # type: ignore[abstract]
    csi_pb2_grpc.add_ControllerServicer_to_server(servicer, server)
    csi_pb2_grpc.add_SnapshotMetadataServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    with grpc.insecure_channel(address) as channel:
        yield servicer, channel
    server.stop(None).wait()


def raising(error: Exception) -> Handler:
    def handler() -> None:
        raise error

    return handler


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("x"), Code.INVALID_ARGUMENT),
        (errors.NotFound("x"), Code.NOT_FOUND),
        (errors.Conflict("x"), Code.ALREADY_EXISTS),
        (errors.Busy("x"), Code.ABORTED),
        (errors.Exhausted("x"), Code.RESOURCE_EXHAUSTED),
        (errors.Unsupported("x"), Code.FAILED_PRECONDITION),
        (errors.HostFault("x"), Code.INTERNAL),
        (InUse("x"), Code.FAILED_PRECONDITION),
        (OutOfRange("x"), Code.OUT_OF_RANGE),
        (NotImplementedError(), Code.UNIMPLEMENTED),
        (ValueError("x"), Code.INTERNAL),
    ],
)
def test_a_reason_reaches_the_client_as_its_status(
    broken: tuple[Broken, grpc.Channel], error: Exception, code: grpc.StatusCode
) -> None:
    servicer, channel = broken
    servicer.handler = raising(error)
    with refused(code):
        csi_pb2_grpc.ControllerStub(channel).CreateVolume(csi.CreateVolumeRequest(name="a"))


def test_a_stream_ends_with_a_status_too(broken: tuple[Broken, grpc.Channel]) -> None:
    servicer, channel = broken
    stub = csi_pb2_grpc.SnapshotMetadataStub(channel)
    for error, code in ((errors.NotFound("snapshot x"), Code.NOT_FOUND), (KeyError("x"), Code.INTERNAL)):
        servicer.handler = raising(error)
        with refused(code):
            list(stub.GetMetadataAllocated(csi.GetMetadataAllocatedRequest()))


def test_a_bug_is_logged_with_its_trace_and_without_the_secrets(broken: tuple[Broken, grpc.Channel]) -> None:
    servicer, channel = broken
    servicer.handler = raising(RuntimeError("password hunter2 was wrong"))
    before, out = logging.getLogger().handlers[:], StringIO()
    set_up("debug", out)
    try:
        with refused(Code.INTERNAL, naming="CreateVolume"):
            csi_pb2_grpc.ControllerStub(channel).CreateVolume(
                csi.CreateVolumeRequest(name="a", secrets={"password": "hunter2"})
            )
    finally:
        logging.getLogger().handlers[:] = before
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    trace = next(line["trace"] for line in lines if line["message"] == "bug")
    assert "RuntimeError: password *** was wrong" in trace
    assert "hunter2" not in out.getvalue()


def test_every_reason_has_a_status() -> None:
    assert set(errors.REASONS) <= STATUS.keys()
