"""A golden test: the labels and coders of the packaged job stay as they are.

Engines find a running job's state by its labels and read it by its coders: to change one is to
break `--update`. Where it is meant, renew the golden files, and say so in the changelog:

    RENEW_GOLDEN=1 .venv/bin/python -m pytest tests/pipelines/test_labels.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from google.protobuf.wrappers_pb2 import BytesValue

from beam_lateness.pipelines.options import StreamOptions, read_config
from beam_lateness.pipelines.streaming import build
from tests.jobs import EMBEDDED, FLIGHT_FLAGS, FLIGHTS, PRISM, job_flags

GOLDEN = Path(__file__).parent / "golden"
ENGINES = ["embedded", "prism"]
PICKLED = "pickled_python"


@pytest.fixture(scope="module", params=ENGINES)
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The job as an engine gets it, and the name of its engine."""
    engine: str = request.param
    folder = tmp_path_factory.mktemp(engine)
    embedded = engine == "embedded"
    runner = EMBEDDED if embedded else PRISM
    flags = job_flags(folder, [FLIGHTS], *FLIGHT_FLAGS, "--bound=15m", runner=runner)
    options = PipelineOptions(flags)
    pipeline = beam.Pipeline(options=options)
    config = read_config(options.view_as(StreamOptions))
    build(pipeline, config, embedded=embedded, run="run")
    return engine, pipeline.to_runner_api()


def steps(proto: Any) -> Iterator[Any]:
    """The steps in the order of their labels, the root left out."""
    named = {
        step.unique_name: step
        for name, step in proto.components.transforms.items()
        if name not in proto.root_transform_ids
    }
    yield from (named[label] for label in sorted(named))


def coder(proto: Any, coder_id: str) -> str:
    """Spells a coder by its URNs; one that travels as a pickle by its class as well."""
    found = proto.components.coders[coder_id]
    urn = found.spec.urn.removeprefix("beam:coder:").removesuffix(":v1")
    if urn == PICKLED:
        pickled = BytesValue.FromString(found.spec.payload).value
        urn += " " + pickled.split(b"$")[0].decode()
    parts = ", ".join(coder(proto, each) for each in found.component_coder_ids)
    return f"{urn}({parts})" if parts else str(urn)


def coder_of(proto: Any, collection_id: str) -> str:
    """Spells the coder of a collection."""
    return coder(proto, proto.components.pcollections[collection_id].coder_id)


def describe(proto: Any) -> str:
    """Writes a line a step: its label and, where it has any, its outputs' coders."""
    lines = []
    for step in steps(proto):
        outputs = ", ".join(
            f"{'main' if tag == 'None' else tag}: {coder_of(proto, step.outputs[tag])}"
            for tag in sorted(step.outputs)
        )
        lines.append(f"{step.unique_name} -> {outputs or '-'}\n")
    return "".join(lines)


def test_labels_and_coders_are_as_they_were(graph: tuple[str, Any]) -> None:
    """Line by line as in the golden file."""
    engine, proto = graph
    path = GOLDEN / f"streaming-{engine}.txt"
    found = describe(proto)
    if os.environ.get("RENEW_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text(), (
        f"labels or coders of the {engine} job have changed: running jobs cannot be updated to "
        "this version. If that is meant: RENEW_GOLDEN=1 pytest tests/pipelines/test_labels.py, "
        "and an entry in CHANGELOG.md"
    )


def test_no_label_is_repeated(graph: tuple[str, Any]) -> None:
    """Nor numbered by Beam, as a repeated one would be."""
    labels = [step.unique_name for step in steps(graph[1])]
    assert len(set(labels)) == len(labels)
    assert [label for label in labels if label[-1].isdigit()] == []


def test_our_labels_are_verbs_in_camel_case(graph: tuple[str, Any]) -> None:
    """No label is made of a function's name, a lambda or a line number."""
    ours = {part for step in steps(graph[1]) for part in step.unique_name.split("/")[:2]}
    wrong = [part for part in ours if not (part.isalnum() and part[0].isupper())]
    assert wrong == []


def test_partial_aggregates_travel_as_varint_and_bytes(graph: tuple[str, Any]) -> None:
    """The state of a stage is keyed by what stands between: it must be no pickle."""
    _, proto = graph
    (before,) = [s for s in steps(proto) if s.unique_name.endswith("/PreAggregateBatches")]
    (after,) = [s for s in steps(proto) if s.unique_name.endswith("/MergePartials")]
    (between,) = before.outputs.values()
    assert list(after.inputs.values()) == [between]
    assert coder_of(proto, between) == "kv(varint, bytes)"


def test_no_shuffle_or_state_is_keyed_by_a_pickle(graph: tuple[str, Any]) -> None:
    """Whatever is grouped has a deterministic coder."""
    _, proto = graph
    for step in steps(proto):
        payload = step.spec.payload
        stateful = (
            step.spec.urn == "beam:transform:pardo:v1"
            and beam_runner_api_pb2.ParDoPayload.FromString(payload).state_specs
        )
        if stateful or step.spec.urn == "beam:transform:group_by_key:v1":
            for collection in step.inputs.values():
                key = coder_of(proto, collection)
                assert PICKLED not in key, step.unique_name


def test_the_engines_share_every_step_after_the_source() -> None:
    """They differ in how they read, and in nothing else."""
    texts = [(GOLDEN / f"streaming-{engine}.txt").read_text() for engine in ENGINES]
    rest = [
        [line for line in text.splitlines() if not line.startswith("ReadEvents")] for text in texts
    ]
    assert rest[0] == rest[1]
