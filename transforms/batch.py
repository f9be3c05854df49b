"""`EventBatch`: the columnar unit in which records travel from the parser to the aggregate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry as coder_registry

from beam_lateness.transforms.times import Flags, Millis

KEY: Final = "key"
VALUE: Final = "value"
ID: Final = "id"
EVENT_TIME: Final = "event_time"
WATERMARK: Final = "watermark"
POSITION: Final = "position"
PAYLOAD: Final = "payload"
BEHIND_MS: Final = "behind_ms"

_SPLIT_METADATA: Final = b"beam_lateness.split"


@dataclass(frozen=True)
class EventBatch:
    """Records of one split, in order of arrival, as Arrow columns.

    Args:
        split: The split's name (file, subscription, partition).
        columns: A record batch of `key` (string), `value` (int64, double or null), `id` (string,
            null where the record has none), `event_time` (int64, ms), `watermark` (int64, ms,
            exclusive: what held just before the record arrived), `position` (int64, or string
            where it is a message id) and `payload` (binary: the record as it was read). `TagLate`
            adds `behind_ms` (int64).
    """

    split: str
    columns: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @property
    def event_times(self) -> Millis:
        """Event times in ms."""
        return _int64s(self.columns.column(EVENT_TIME))

    @property
    def watermarks(self) -> Millis:
        """The stamps: exclusive watermarks in ms that held just before each record arrived."""
        return _int64s(self.columns.column(WATERMARK))

    def filter(self, mask: Flags) -> EventBatch:
        """Keeps the records where `mask` is true."""
        return EventBatch(self.split, self.columns.filter(pa.array(mask)))

    def take(self, indices: npt.NDArray[np.int64]) -> EventBatch:
        """Picks records by index."""
        return EventBatch(self.split, self.columns.take(pa.array(indices)))

    def to_pylist(self) -> list[dict[str, Any]]:
        """Gives the records as dictionaries of the columns, plus `split` and `record_id`."""
        return [
            {**row, "split": self.split, "record_id": record_id(self.split, row)}
            for row in self.columns.to_pylist()
        ]


def record_id(split: str, row: Mapping[str, Any]) -> str:
    """Gives a record's stable id: its own where it has one, else its split and position.

    Example:
        >>> record_id("a.jsonl", {"id": None, "position": 120})
        'a.jsonl:120'
    """
    own = row.get(ID)
    return own if own is not None else f"{split}:{row[POSITION]}"


class EventBatchCoder(Coder):
    """Encodes an `EventBatch` as one Arrow IPC stream, the split's name in its metadata."""

    def encode(self, value: EventBatch) -> bytes:
        """Encodes a batch."""
        split = value.split.encode(errors="surrogatepass")  # a file's name may be no UTF-8
        columns = value.columns.replace_schema_metadata({_SPLIT_METADATA: split})
        return encode_columns(columns)

    def decode(self, encoded: bytes) -> EventBatch:
        """Decodes a batch."""
        columns = decode_columns(encoded)
        metadata = columns.schema.metadata
        split = metadata[_SPLIT_METADATA].decode(errors="surrogatepass")
        return EventBatch(split, columns.replace_schema_metadata(None))

    def estimate_size(self, value: EventBatch) -> int:
        """Gives the size of the columns: engines ask often, and encoding to tell is dear."""
        return int(value.columns.nbytes)

    def is_deterministic(self) -> bool:
        """Equal batches may differ in buffers and padding."""
        return False


coder_registry.register_coder(EventBatch, EventBatchCoder)


def encode_columns(columns: pa.RecordBatch) -> bytes:
    """Writes a record batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode_columns(encoded: bytes) -> pa.RecordBatch:
    """Reads what `encode_columns` wrote."""
    with pa.ipc.open_stream(encoded) as reader:
        return reader.read_next_batch()


def _int64s(column: pa.Array) -> Millis:
    numbers: Millis = column.to_numpy(zero_copy_only=False)
    return numbers
