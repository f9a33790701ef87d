"""grpcio with stubs made of our .proto: generation, vectors, health, reflection, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc

KEY, DIRECTORY, PROTO = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
SERVICE = "octavo.v1.Inference"
CREDENTIALS = (("authorization", f"Bearer {KEY}"),)


def stubs() -> tuple[Any, Any]:
    """Generate the modules of the messages and of the services as any client would."""
    with TemporaryDirectory() as out:
        command = ["protoc", f"-I{PROTO.parent}", f"--python_out={out}", f"--grpc_python_out={out}"]
        assert protoc.main([*command, PROTO.name]) == 0
        sys.path.insert(0, out)
        import octavo_pb2
        import octavo_pb2_grpc
    return octavo_pb2, octavo_pb2_grpc


def refused(call: Any, request: Any, metadata: Any = CREDENTIALS) -> tuple[str, str]:
    """Return the code of the error that a call raises, and ours."""
    try:
        call(request, metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        return error.code().name, dict(error.trailing_metadata()).get("octavo-code", "")
    raise AssertionError("an error was expected")


def use_generation(channel: grpc.Channel) -> None:
    """Generate whole and in chunks, from a text and from token ids; embed; abort; refuse."""
    messages, services = stubs()
    stub = services.InferenceStub(channel)
    known: Any = {"metadata": CREDENTIALS, "timeout": 60}
    sampling = messages.SamplingParams(max_tokens=6, temperature=1, seed=3, logprobs=2, n=2)
    request = messages.GenerateRequest(prompt="The quick", sampling_params=sampling)
    whole = stub.Generate(request, **known)
    chunks = list(stub.GenerateStream(request, **known))
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 12
    for choice in whole.choices:
        parts = [p for chunk in chunks for p in chunk.choices if p.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert [i for part in parts for i in part.token_ids] == list(choice.token_ids)
        assert len(choice.logprobs) == 6
    shape = messages.StructuredOutputs(choice=["yes", "no"])
    shaped = messages.SamplingParams(temperature=0, structured_outputs=shape)
    ids = messages.TokenIds(ids=[40, 50, 60])  # letters
    (answer,) = stub.Generate(
        messages.GenerateRequest(token_ids=ids, sampling_params=shaped), **known
    ).choices
    assert answer.text in ("yes", "no")
    assert len(stub.Embed(messages.EmbedRequest(prompt="fox"), **known).embedding) == 32

    info = stub.GetModelInfo(messages.GetModelInfoRequest(), **known)
    assert list(info.served_names) == ["tiny"]
    assert stub.GetServerInfo(messages.GetServerInfoRequest(), **known).is_ready
    assert refused(stub.Generate, request, ()) == ("UNAUTHENTICATED", "invalid_api_key")
    other = messages.GenerateRequest(prompt="x", model="gpt-9")
    assert refused(stub.Generate, other) == ("NOT_FOUND", "model_not_found")
    hot = messages.SamplingParams(temperature=-1)
    wrong = messages.GenerateRequest(prompt="x", sampling_params=hot)
    assert refused(stub.Generate, wrong)[0] == "INVALID_ARGUMENT"

    stream = stub.GenerateStream(request, **known)
    next(stream)
    stream.cancel()
    assert stub.Generate(request, **known).choices == whole.choices


def use_health(channel: grpc.Channel) -> None:
    """Ask for the state of the server and of its service, without a key."""
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    unknown = health_pb2.HealthCheckRequest(service="nothing")
    assert refused(stub.Check, unknown, ())[0] == "NOT_FOUND"


def use_reflection(channel: grpc.Channel) -> None:
    """List the services, and find in the described file the calls of ours."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = (
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    )
    listed, described = stub.ServerReflectionInfo(iter(asked), metadata=CREDENTIALS, timeout=60)
    names = {each.name for each in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names, names
    files = described.file_descriptor_response.file_descriptor_proto
    (service,) = [s for file in files for s in FileDescriptorProto.FromString(file).service]
    assert {"Generate", "GenerateStream", "Embed", "Abort"} <= {m.name for m in service.method}


def main() -> None:
    """Run all checks of this client."""
    port = (DIRECTORY / "grpc-port").read_text("utf-8")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        use_generation(channel)
        print("generation is well")
        use_health(channel)
        use_reflection(channel)
    print("all is well")


main()
