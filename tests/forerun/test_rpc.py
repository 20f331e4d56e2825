"""The server wrapper, the channel and the translation of errors, over real connections on free ports."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from forerun import errors, rpc, rpc_status
from forerun.v1 import gateway_pb2, gateway_pb2_grpc, target_pb2, target_pb2_grpc

SERVICE = "forerun.v1.GatewayService"
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING

SAMPLES = [
    errors.InvalidArgument("temperature", "must be at least 0"),
    errors.NotFound("no such trace"),
    errors.FailedPrecondition("the vocabularies differ: 1 and 2"),
    errors.Overloaded("the queue is full", 2.5),
    errors.Unavailable("no target"),
    errors.DeadlineExceeded("too late"),
    errors.Internal("an invariant broke"),
]


class Servicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers once, then does what the test wants; remembers that it was allowed to clean up."""

    def __init__(self, then: Callable[[Any], Awaitable[None]]) -> None:
        self.then = then
        self.cleaned_up = asyncio.Event()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            yield gateway_pb2.GenerateResponse()
            await self.then(context)
        finally:
            self.cleaned_up.set()

    async def GetStatus(self, request: Any, context: Any) -> Any:
        await self.then(context)
        return gateway_pb2.GetStatusResponse(running_requests=7)


class Flood(Servicer):
    """Writes more than any client takes in."""

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        message = gateway_pb2.GenerateResponse(chunk=gateway_pb2.Chunk(text="x" * 100_000))
        try:
            while True:
                yield message
        finally:
            self.cleaned_up.set()


@asynccontextmanager
async def serving(servicer: Any) -> AsyncIterator[tuple[rpc.Server, grpc.aio.Channel]]:
    server = rpc.Server()
    server.add(gateway_pb2_grpc.add_GatewayServiceServicer_to_server, servicer, SERVICE)
    port = await server.start("127.0.0.1", 0)
    async with rpc.channel(f"127.0.0.1:{port}") as channel:
        yield server, channel
    await server.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(bounded())


async def nothing(context: Any) -> None:
    pass


async def forever(context: Any) -> None:
    await asyncio.Event().wait()


def raising(error: Exception) -> Callable[[Any], Awaitable[None]]:
    async def then(context: Any) -> None:
        raise error

    return then


async def failure_of(call: Any) -> grpc.RpcError:
    try:
        if hasattr(call, "read"):
            while await call.read() is not grpc.aio.EOF:
                pass
        else:
            await call
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call went well")


def test_the_samples_are_all_error_classes() -> None:
    assert {type(sample) for sample in SAMPLES} == set(errors.all_errors())


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["Generate", "GetStatus"])
def test_every_error_comes_out_of_a_channel_as_it_went_in(error: errors.ForerunError, method: str) -> None:
    async def test() -> None:
        async with serving(Servicer(raising(error))) as (_, channel):
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            request = gateway_pb2.GenerateRequest() if method == "Generate" else gateway_pb2.GetStatusRequest()
            failed = await failure_of(getattr(stub, method)(request))
        assert failed.code() is error.status
        received = rpc.from_rpc_error(failed)
        assert type(received) is type(error)
        assert vars(received) == vars(error)

    run(test)


def test_a_servicer_that_reads_and_writes_by_itself_is_translated_too() -> None:
    class Verifier(target_pb2_grpc.TargetServiceServicer):
        async def Verify(self, request_iterator: Any, context: Any) -> None:
            await context.read()
            raise errors.InvalidArgument("hello", "is missing")

    async def test() -> None:
        server = rpc.Server()
        server.add(target_pb2_grpc.add_TargetServiceServicer_to_server, Verifier(), "forerun.v1.TargetService")
        port = await server.start("127.0.0.1", 0)
        async with rpc.channel(f"127.0.0.1:{port}") as channel:
            call = target_pb2_grpc.TargetServiceStub(channel).Verify()
            await call.write(target_pb2.VerifyRequest())
            received = rpc.from_rpc_error(await failure_of(call))
        await server.stop()
        assert isinstance(received, errors.InvalidArgument)
        assert received.field == "hello"

    run(test)


@pytest.mark.parametrize("method", ["Generate", "GetStatus"])
def test_what_nobody_meant_to_raise_is_internal_and_in_the_log(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(Servicer(raising(KeyError("secret")))) as (_, channel):
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            request = gateway_pb2.GenerateRequest() if method == "Generate" else gateway_pb2.GetStatusRequest()
            failed = await failure_of(getattr(stub, method)(request))
        assert failed.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (failed.details() or "")

    run(test)
    (record,) = [record for record in caplog.records if record.getMessage() == "rpc_crashed"]
    assert record.exc_info and record.exc_info[0] is KeyError
    assert method in record.fields["method"]  # type: ignore[attr-defined]


def test_a_status_without_a_class_keeps_its_code(caplog: pytest.LogCaptureFixture) -> None:
    async def then(context: Any) -> None:
        await context.abort(grpc.StatusCode.ABORTED, "a newer stream took over")

    async def test() -> None:
        async with serving(Servicer(then)) as (_, channel):
            call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(gateway_pb2.GenerateRequest())
            received = rpc.from_rpc_error(await failure_of(call))
        assert type(received) is errors.ForerunError
        assert (received.status, received.message) == (grpc.StatusCode.ABORTED, "a newer stream took over")

    run(test)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_long_message_is_cut_rather_than_refused_by_the_peer() -> None:
    async def test() -> None:
        error = errors.InvalidArgument("stop", "語" * 100_000)
        async with serving(Servicer(raising(error))) as (_, channel):
            call = gateway_pb2_grpc.GatewayServiceStub(channel).GetStatus(gateway_pb2.GetStatusRequest())
            received = rpc.from_rpc_error(await failure_of(call))
        assert isinstance(received, errors.InvalidArgument)
        assert received.field == "stop"
        assert received.problem.startswith("語語") and received.problem.endswith("…")

    run(test)


class Failure(grpc.RpcError):
    """A failed call with whatever a strange server may answer."""

    def __init__(self, code: grpc.StatusCode, details: str | None, metadata: Any) -> None:
        self._answer = (code, details, metadata)

    def code(self) -> grpc.StatusCode:
        return self._answer[0]

    def details(self) -> str | None:
        return self._answer[1]

    def trailing_metadata(self) -> Any:
        return self._answer[2]


def _packed(value: bytes) -> bytes:
    status = status_pb2.Status()
    status.details.add(type_url="type.googleapis.com/google.rpc.BadRequest", value=value)
    return status.SerializeToString()


@pytest.mark.parametrize(
    "metadata",
    [None, (), (("other", "x"),), *(((rpc_status._DETAILS_KEY, v),) for v in (b"\xff", "text", _packed(b"\xff")))],
)
def test_details_that_make_no_sense_are_ignored(metadata: Any) -> None:
    received = rpc.from_rpc_error(Failure(grpc.StatusCode.INVALID_ARGUMENT, "top_p: is too large", metadata))
    assert isinstance(received, errors.InvalidArgument)
    assert (received.field, received.problem) == ("top_p", "is too large")


def test_an_overloaded_server_without_a_hint_gets_the_usual_pause() -> None:
    received = rpc.from_rpc_error(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, None, None))
    assert isinstance(received, errors.Overloaded)
    assert (received.message, received.retry_after_s) == ("RESOURCE_EXHAUSTED", 1.0)


def test_details_follow_the_standard_types() -> None:
    detail = rpc_status._details(errors.Overloaded("full", 1.25))[0]
    assert isinstance(detail, error_details_pb2.RetryInfo)
    assert detail.retry_delay.ToMilliseconds() == 1250


@pytest.mark.parametrize("kind", [Servicer, Flood])
def test_a_cancelled_stream_runs_the_handlers_finally(kind: type[Servicer]) -> None:
    async def test() -> None:
        servicer = kind(forever)
        async with serving(servicer) as (_, channel):
            call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(gateway_pb2.GenerateRequest())
            await call.read()
            call.cancel()
            await servicer.cleaned_up.wait()

    run(test)


def test_health_is_not_serving_until_ready_and_known_by_name() -> None:
    async def test() -> None:
        async with serving(Servicer(nothing)) as (server, channel):
            stub = health_pb2_grpc.HealthStub(channel)
            for serving_now in (False, True, False):
                server.ready(serving_now)
                expected = SERVING if serving_now else NOT_SERVING
                for name in ("", SERVICE):
                    assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == expected
            listed = await stub.List(health_pb2.HealthListRequest())
            assert set(listed.statuses) == {"", SERVICE}
            failed = await failure_of(stub.Check(health_pb2.HealthCheckRequest(service="other")))
            assert failed.code() is grpc.StatusCode.NOT_FOUND

    run(test)


def test_a_watcher_hears_of_every_change_and_does_not_hold_up_the_stop() -> None:
    async def test() -> None:
        async with serving(Servicer(nothing)) as (server, channel):
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            unknown = stub.Watch(health_pb2.HealthCheckRequest(service="other"))
            assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            assert (await watch.read()).status == NOT_SERVING
            server.ready()
            assert (await watch.read()).status == SERVING
            await server.stop(grace_s=60)
            assert (await watch.read()).status == NOT_SERVING
            assert await watch.read() is grpc.aio.EOF
            server.ready()
            assert server.health._statuses[""] == NOT_SERVING

    run(test)


def test_reflection_lists_the_services() -> None:
    async def test() -> None:
        async with serving(Servicer(nothing)) as (_, channel):
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            names = {service.name for service in (await call.read()).list_services_response.service}
            await call.done_writing()
        assert {SERVICE, "grpc.health.v1.Health"} <= names

    run(test)


def test_a_taken_port_is_named() -> None:
    async def test() -> None:
        first, second = rpc.Server(), rpc.Server()
        port = await first.start("127.0.0.1", 0)
        with pytest.raises(
            errors.FailedPrecondition, match=rf"cannot listen on 127.0.0.1:{port}: address already in use"
        ):
            await second.start("127.0.0.1", port)
        await first.stop()

    run(test)


def test_a_signal_drains_open_streams_and_refuses_new_ones() -> None:
    async def test() -> None:
        draining = asyncio.Event()
        refusals: list[errors.ForerunError] = []

        async def until_drained(context: Any) -> None:
            await draining.wait()

        async def drain() -> None:
            refusals.append(rpc.from_rpc_error(await failure_of(stub.GetStatus(gateway_pb2.GetStatusRequest()))))
            draining.set()

        async with serving(Servicer(until_drained)) as (server, channel):
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            call = stub.Generate(gateway_pb2.GenerateRequest())
            await call.read()
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            await server.serve_until_signal(60, drain)
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        assert [type(refusal) for refusal in refusals] == [errors.Unavailable]

    run(test)


def test_streams_that_do_not_finish_are_ended_after_the_grace_period() -> None:
    async def test() -> None:
        servicer = Servicer(forever)
        async with serving(servicer) as (server, channel):
            call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(gateway_pb2.GenerateRequest())
            await call.read()
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            await server.serve_until_signal(0.05)
            await servicer.cleaned_up.wait()
            assert (await failure_of(call)).code() is grpc.StatusCode.UNAVAILABLE

    run(test)


def test_a_second_signal_ends_the_grace_period() -> None:
    async def test() -> None:
        async def drain() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

        servicer = Servicer(forever)
        async with serving(servicer) as (server, channel):
            call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(gateway_pb2.GenerateRequest())
            await call.read()
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            await server.serve_until_signal(60, drain)
            await servicer.cleaned_up.wait()

    run(test)


def test_a_drain_that_fails_does_not_stop_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async def drain() -> None:
            raise RuntimeError("bug")

        async with serving(Servicer(nothing)) as (server, _):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            await server.serve_until_signal(1, drain)

    run(test)
    assert "drain_failed" in caplog.messages


def test_grpc_knows_every_option_by_its_name() -> None:
    library = Path(cygrpc.__file__).read_bytes()
    for name, _ in (*rpc._SERVER_OPTIONS, *rpc._CHANNEL_OPTIONS):
        assert name.encode() in library, name


def test_large_messages_pass() -> None:
    class Large(Servicer):
        async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
            yield gateway_pb2.GenerateResponse(chunk=gateway_pb2.Chunk(text=request.text))

    async def test() -> None:
        async with serving(Large(nothing)) as (_, channel):
            text = "x" * (8 << 20)
            call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(gateway_pb2.GenerateRequest(text=text))
            assert (await call.read()).chunk.text == text

    run(test)
