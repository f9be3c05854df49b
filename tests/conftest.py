"""What all tests share: the Prism engine, found or built once for those that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines.runners import PRISM_VARIABLE, find_prism, obtain_prism


@pytest.fixture(scope="session")
def prism() -> Iterator[str]:
    """Where Prism is; jobs started by the test find the same one."""
    location = find_prism(PipelineOptions([])) or obtain_prism(print)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PRISM_VARIABLE, location)
        yield location
