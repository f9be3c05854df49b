"""A fake of BigQuery's Storage Write API, and a server of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
from google.api_core import exceptions
from google.cloud import bigquery_storage_v1
from google.cloud.bigquery_storage_v1.types import (
    AppendRowsRequest,
    AppendRowsResponse,
    RowError,
)
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.rpc.status_pb2 import Status

URL: Final = "bigquery://my-shop/sales/windows"
STREAM: Final = "projects/my-shop/datasets/sales/tables/windows/streams/_default"

# They have no types.
errors: Any = exceptions
_Client: Any = bigquery_storage_v1.BigQueryWriteClient


def nothing_bad(_: dict[str, Any]) -> str:
    """Refuses no row."""
    return ""


class FakeBigQuery:
    """A table behind the API, as its documentation has it; it reads real requests.

    Args:
        bad: Says of a row why it is refused, if it is.
    """

    def __init__(self, bad: Callable[[dict[str, Any]], str] = nothing_bad) -> None:
        self.bad = bad
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        self.sent: list[list[dict[str, Any]]] = []  # of each request
        self.sizes: list[int] = []
        self.calls: list[int] = []  # of each connection: its requests
        self.metadata: Any = ()
        self.failures: list[Any] = []  # of the requests to come; None is none
        self.failed_after: list[Any] = []  # the same, when the rows are in the table already
        self.closed = False

    @property
    def transport(self) -> FakeBigQuery:
        """What is to be closed."""
        return self

    def close(self) -> None:
        """Closes it."""
        self.closed = True

    def append_rows(
        self, requests: Iterable[Any], *, metadata: Any = (), **_: Any
    ) -> Iterator[AppendRowsResponse]:
        """Answers each request."""
        self.metadata = metadata
        row_class = None
        self.calls.append(0)
        for sent in requests:
            data = AppendRowsRequest.serialize(sent)
            request = AppendRowsRequest.pb(AppendRowsRequest.deserialize(data))
            self.sizes.append(len(data))
            self.calls[-1] += 1
            assert request.write_stream == STREAM
            assert request.proto_rows.HasField("writer_schema") == (row_class is None)
            if row_class is None:
                row_class = class_of(request.proto_rows.writer_schema.proto_descriptor)
            rows = [fields(row_class, row) for row in request.proto_rows.rows.serialized_rows]
            try:
                yield from self._answer(rows)
            except ConnectionResetError:
                return

    def _answer(self, rows: list[dict[str, Any]]) -> Iterator[AppendRowsResponse]:
        self.sent.append(rows)
        if self.failures and (failure := self.failures.pop(0)):
            yield from fail(failure)
            return
        why = {at: self.bad(row) for at, row in enumerate(rows) if self.bad(row)}
        if why:
            errors = [RowError(index=at, message=each) for at, each in why.items()]
            yield AppendRowsResponse(error=Status(code=3, message="bad rows"), row_errors=errors)
            return
        for row in rows:
            assert row.pop("_CHANGE_TYPE") == "UPSERT"
            cell = (row["key"], row["window_start_ms"])
            known = self.rows.get(cell)
            if known is None or sequence(row) >= sequence(known):
                self.rows[cell] = row
        if self.failed_after and (failure := self.failed_after.pop(0)):
            yield from fail(failure)
            return
        yield AppendRowsResponse(append_result={})


def class_of(descriptor: Any) -> Any:
    """Makes the class of rows from the schema of a request."""
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", message_type=[descriptor])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(descriptor.name))


def fields(row_class: Any, data: bytes) -> dict[str, Any]:
    """Reads a row; all its columns must be there."""
    row = row_class.FromString(data)
    read = {each.name: value for each, value in row.ListFields()}
    assert set(read) == {each.name for each in row_class.DESCRIPTOR.fields}
    return read


def sequence(row: dict[str, Any]) -> list[int]:
    """Reads a change sequence number: up to four numbers of up to 16 hexadecimal digits."""
    text = row["_CHANGE_SEQUENCE_NUMBER"]
    assert re.fullmatch(r"[0-9A-Fa-f]{1,16}(/[0-9A-Fa-f]{1,16}){0,3}", text)
    return [int(section, 16) for section in text.split("/")]


def fail(failure: Any) -> Iterator[AppendRowsResponse]:
    """Answers with a status, or raises an error: `ConnectionResetError` ends the call."""
    if isinstance(failure, Exception):
        raise failure
    yield AppendRowsResponse(error=failure)


@contextmanager
def served(fake: FakeBigQuery) -> Iterator[int]:
    """Serves a fake over gRPC; gives the port."""

    def append_rows(requests: Any, context: Any) -> Iterator[AppendRowsResponse]:
        try:
            yield from fake.append_rows(requests)
        except exceptions.GoogleAPICallError as error:
            context.abort(error.grpc_status_code, str(error))

    method = grpc.stream_stream_rpc_method_handler(
        append_rows, AppendRowsRequest.deserialize, AppendRowsResponse.serialize
    )
    name = "google.cloud.bigquery.storage.v1.BigQueryWrite"
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.method_handlers_generic_handler(name, {"AppendRows": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def connect(port: int) -> Any:
    """Opens Google's client to a served fake."""
    make_transport = _Client.get_transport_class("grpc")
    return _Client(transport=make_transport(channel=grpc.insecure_channel(f"localhost:{port}")))
