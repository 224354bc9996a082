"""Generates segue/v1 from the .proto files beside it: messages, gRPC glue, and type stubs for both."""

import argparse
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto
from grpc_tools import protoc

PROTO_DIR = Path(__file__).parent


def generate(out: Path) -> None:
    """Writes every generated file under `out`, which stands for the repository root."""
    sources = sorted(str(path.relative_to(PROTO_DIR)) for path in PROTO_DIR.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder) / "descriptors"
        arguments = ["protoc", f"-I{PROTO_DIR}", f"--descriptor_set_out={descriptors}"]
        arguments += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(arguments + sources) != 0:
            sys.exit("protoc refused the .proto files, see above")
        files = FileDescriptorSet.FromString(descriptors.read_bytes())
    for file in files.file:
        if file.service:
            stub = out / file.name.replace(".proto", "_pb2_grpc.pyi")
            stub.write_text(_service_stubs(file.name, list(file.service)))


def _service_stubs(source: str, services: list[ServiceDescriptorProto]) -> str:
    """Types of the asyncio side of the gRPC glue, which the gRPC plugin itself leaves untyped."""
    package, _, name = source.removesuffix(".proto").replace("/", ".").rpartition(".")
    lines = [
        f"from {package} import {name}_pb2 as _pb",
        "from collections.abc import AsyncIterator",
        "",
        "import grpc.aio",
    ]
    for service in services:
        lines += ["", f"class {service.name}Stub:"]
        lines += ["    def __init__(self, channel: grpc.aio.Channel) -> None: ..."]
        lines += [f"    {_call(method)}" for method in service.method]
        lines += ["", f"class {service.name}Servicer:"]
        lines += [f"    {_implementation(method)}" for method in service.method]
        signature = f"(servicer: {service.name}Servicer, server: grpc.aio.Server) -> None"
        lines += ["", f"def add_{service.name}Servicer_to_server{signature}: ..."]
    return "\n".join(lines) + "\n"


def _call(method: MethodDescriptorProto) -> str:
    kinds = ["Stream" if streams else "Unary" for streams in (method.client_streaming, method.server_streaming)]
    return f"{method.name}: grpc.aio.{''.join(kinds)}MultiCallable[{_messages(method)}]"


def _implementation(method: MethodDescriptorProto) -> str:
    request, reply = _messages(method).split(", ")
    argument = f"request_iterator: AsyncIterator[{request}]" if method.client_streaming else f"request: {request}"
    signature = f"def {method.name}(self, {argument}, context: grpc.aio.ServicerContext[{_messages(method)}])"
    # An implementation that streams is an async generator: calling it gives the iterator, not an awaitable.
    if method.server_streaming:
        return f"{signature} -> AsyncIterator[{reply}]: ..."
    return f"async {signature} -> {reply}: ..."


def _messages(method: MethodDescriptorProto) -> str:
    return ", ".join(f"_pb.{kind.rpartition('.')[2]}" for kind in (method.input_type, method.output_type))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PROTO_DIR.parent, help="where to write (default: the repository)")
    generate(parser.parse_args().out)
