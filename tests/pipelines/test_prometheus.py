"""A job's counts as Prometheus reads them: over HTTP and from a file."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
import requests
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from beam_lateness.pipelines.prometheus import MetricsFile, collect, serve
from beam_lateness.transforms import metrics
from tests.waiting import await_that

COUNTS = {
    "input": 10,
    "aggregated": 6,
    "on_time": 4,
    "late": 2,
    "too_late": 3,
    "invalid": 1,
    "blank_lines": 4,
    "panes": 5,
    "current_watermark_ms": 1_767_268_800_500,
    "watermark_lag_ms": 1_500,
    "idle_splits": 2,
}
COUNTERS = {
    **{
        each: f'beam_lateness_records_total{{outcome="{each}"}}'
        for each in ("on_time", "late", "too_late", "invalid")
    },
    **{
        each: f"beam_lateness_{each}_total"
        for each in ("blank_lines", "panes", "corrections", "bound_changes", "alerts")
    },
    "alerts_failed": "beam_lateness_alerts_failed_total",
    "input": "beam_lateness_input_records_total",
    "aggregated": "beam_lateness_aggregated_records_total",
    "behind_watermark": "beam_lateness_behind_watermark_records_total",
}
TIMES = {
    "current_watermark_ms": "beam_lateness_watermark_timestamp_seconds",
    "watermark_lag_ms": "beam_lateness_watermark_lag_seconds",
    "bound_ms": "beam_lateness_bound_seconds",
    "lateness_ms_sum": "beam_lateness_lateness_seconds_sum",
    "lateness_ms_min": "beam_lateness_lateness_min_seconds",
    "lateness_ms_max": "beam_lateness_lateness_max_seconds",
    "late_by_ms_sum": "beam_lateness_too_late_by_seconds_sum",
    "late_by_ms_min": "beam_lateness_too_late_by_min_seconds",
    "late_by_ms_max": "beam_lateness_too_late_by_max_seconds",
}
NUMBERS = {
    "lateness_ms_count": "beam_lateness_lateness_seconds_count",
    "late_by_ms_count": "beam_lateness_too_late_by_seconds_count",
    "idle_splits": "beam_lateness_idle_splits",
    "paused_splits": "beam_lateness_paused_splits",
    "in_flight_records": "beam_lateness_in_flight_records",
}
KNOWN = {*COUNTERS, *TIMES, *NUMBERS}
UP = "beam_lateness_up"
INFO = 'beam_lateness_run_info{engine="prism",run="run-1"}'


class Fixed(Collector):
    """Gives metrics to the library's writer."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        """Gives them."""
        return self._found


class Cluster:
    """A reader of counts that can be away."""

    def __init__(self) -> None:
        self.counts: Mapping[str, int] = COUNTS
        self.away = False
        self.calls = 0

    def __call__(self) -> Mapping[str, int]:
        """Gives the counts."""
        self.calls += 1
        if self.away:
            msg = "no Flink answers"
            raise ConnectionError(msg)
        return self.counts


def values(text: str) -> dict[str, float]:
    """Reads a text as Prometheus does: a value for each name with its labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found
            found[name] = sample.value
    return found


def text_of(counts: Mapping[str, int] | None, run: str = "run-1") -> str:
    """Writes counts as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(Fixed(collect(counts, run, "prism")))
    return generate_latest(registry).decode()


def expected(counts: Mapping[str, int]) -> dict[str, float]:
    """What Prometheus must read of counts: counters from 0 on, gauges that are known."""
    return {
        **{name: float(counts.get(key, 0)) for key, name in COUNTERS.items()},
        **{name: counts[key] / 1000 for key, name in TIMES.items() if key in counts},
        **{name: float(counts[key]) for key, name in NUMBERS.items() if key in counts},
        UP: 1.0,
        INFO: 1.0,
    }


def whole(counts: dict[str, int]) -> dict[str, int]:
    """Leaves out the parts of a distribution that has not all four: there is none such."""
    parts = [set(metrics.distribution_names(name)) for name in ("lateness_ms", "late_by_ms")]
    missing = set[str]().union(*(each for each in parts if not each <= counts.keys()))
    return {name: value for name, value in counts.items() if name not in missing}


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(sorted(KNOWN), st.integers(-(2**63), 2**63)))
)
@example(dict.fromkeys(KNOWN, 2_500))
def test_any_counts_are_read_as_they_are(counts: dict[str, int]) -> None:
    """Times in seconds, everything else as counted, and nothing more."""
    assert values(text_of(whole(counts))) == expected(whole(counts))


def test_every_metric_stands_for_a_count_that_there_is() -> None:
    """Counts that have none are seen under `other`: those of a job that is over at once."""
    names = {each for name, each in vars(metrics).items() if name.isupper() if each in KNOWN}
    parts = [metrics.distribution_names(each) for each in (metrics.LATENESS_MS, metrics.LATE_BY_MS)]
    assert names.union(*parts) == KNOWN


@given(st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_a_count_that_is_not_known_is_not_lost(counts: dict[str, int]) -> None:
    """It is a label's value, so that any name will do."""
    found = {
        sample.labels["name"]: sample.value
        for family in collect(counts, "run-1", "prism")
        for sample in family.samples
        if sample.name == "beam_lateness_other"
    }
    unknown = counts.keys() - KNOWN
    assert found == {name: float(counts[name]) for name in unknown}


def test_the_outcomes_add_up_to_the_input() -> None:
    """Once the windows are closed."""
    found = values(text_of(COUNTS))
    outcomes = [value for name, value in found.items() if "records_total{outcome" in name]
    assert sum(outcomes) == found["beam_lateness_input_records_total"] == 10


def test_counts_that_could_not_be_read_are_not_shown_as_zero() -> None:
    """Zero would be taken for a restart."""
    assert values(text_of(None)) == {UP: 0.0, INFO: 1.0}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_name_of_a_run_is_read_as_it_is(run: str) -> None:
    """Quotes, backslashes and line breaks too."""
    (info,) = [
        sample
        for family in text_string_to_metric_families(text_of({}, run))
        for sample in family.samples
        if sample.name == "beam_lateness_run_info"
    ]
    assert info.labels == {"run": run, "engine": "prism"}


def test_every_metric_is_explained_and_typed() -> None:
    """Counters end in _total, and nothing else does; no unit but the base one."""
    counts = dict.fromkeys(sorted(KNOWN), 1)
    for family in text_string_to_metric_families(text_of(counts)):
        assert family.documentation.endswith(".") or family.name == UP
        assert family.type in ("counter", "gauge", "summary")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert not sample.name.endswith("_ms")


def test_the_endpoint_serves_the_counts_of_the_moment() -> None:
    """As the text that Prometheus asks for, read anew for each request."""
    cluster = Cluster()
    with serve(0, cluster, "run-1", "prism") as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        answer = requests.get(url, timeout=30)
        cluster.counts = {**COUNTS, "panes": 6}
        later = requests.get(url, timeout=30)
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert values(answer.text) == expected(COUNTS)
    assert values(later.text)["beam_lateness_panes_total"] == 6


def test_the_endpoint_speaks_openmetrics_to_who_asks_for_it() -> None:
    """As Prometheus does; its parser is the stricter one."""
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    with serve(0, lambda: {**COUNTS, "new": 1}, "run-1", "prism") as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        answer = requests.get(url, headers=accept, timeout=30)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = openmetrics.text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
    names = {sample.name for family in families for sample in family.samples}
    assert {"beam_lateness_records_total", "beam_lateness_run_info", UP} < names


def test_a_reader_that_fails_is_shown_and_the_next_scrape_is_as_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged once each time that it begins to fail."""
    cluster = Cluster()
    with serve(0, cluster, "run-1", "prism") as server, caplog.at_level(logging.WARNING):
        url = f"http://127.0.0.1:{server.port}/metrics"
        for away in (True, True, False, True):
            cluster.away = away
            found = values(requests.get(url, timeout=30).text)
            assert found == ({UP: 0.0, INFO: 1.0} if away else expected(COUNTS))
    ours = [each for each in caplog.messages if "no Flink answers" in each]
    assert len(ours) == 2


def test_requests_at_one_time_read_one_after_another() -> None:
    """A reader knows nothing of threads."""
    inside: list[int] = []
    most: list[int] = []
    met = threading.Event()

    def read() -> dict[str, int]:
        inside.append(1)
        most.append(len(inside))
        met.wait(0.01)  # never set: time for another to come in
        inside.pop()
        return COUNTS

    with serve(0, read, "run-1", "prism") as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        clients = [
            threading.Thread(target=requests.get, args=(url,), kwargs={"timeout": 30})
            for _ in range(8)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert most == [1] * 8


def test_the_endpoint_is_gone_when_it_is_closed() -> None:
    """Its thread too, and its port is free for the next."""
    before = set(threading.enumerate())
    server = serve(0, Cluster(), "run-1", "prism")
    assert set(threading.enumerate()) - before
    server.close()
    server.close()
    assert not set(threading.enumerate()) - before
    with serve(server.port, Cluster(), "run-2", "prism") as again:
        assert again.port == server.port


def test_only_this_machine_can_ask_by_default() -> None:
    """The counts are nobody else's, unless a host is given."""
    with serve(0, Cluster(), "run-1", "prism") as server:
        assert server._server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_refused_by_the_flags_name() -> None:
    """Nothing is left running."""
    before = set(threading.enumerate())
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port \(--metrics_port\) must be .*, got {port} \("):
            serve(port, Cluster(), "run-1", "prism")
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize("port", [-1, 65_536, 10**9])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    """With the range."""
    with pytest.raises(ValueError, match=rf"--metrics_port.* got {port} \(a port is a number"):
        serve(port, Cluster(), "run-1", "prism")


def test_the_file_is_written_at_once_and_now_and_then(tmp_path: Path) -> None:
    """Each time with the counts of the moment."""
    path, cluster = tmp_path / "lateness.prom", Cluster()
    with MetricsFile(str(path), cluster, "run-1", "prism", every_s=0.001):
        await_that(path.exists)
        for panes in (6, 7):
            cluster.counts = {**COUNTS, "panes": panes}
            await_that(lambda: f"panes_total {panes}.0" in path.read_text())  # noqa: B023
        assert values(path.read_text()) == expected(cluster.counts)


def test_the_file_is_written_a_last_time_at_the_end_and_that_at_once(tmp_path: Path) -> None:
    """However long it would have been to the next time; the thread is gone then."""
    path, cluster, before = tmp_path / "lateness.prom", Cluster(), set(threading.enumerate())
    MetricsFile(str(path), cluster, "run-1", "prism").close()  # not begun: it writes nothing
    assert not path.exists()
    file = MetricsFile(str(path), cluster, "run-1", "prism", every_s=1e12)
    with file:
        await_that(path.exists)
        assert set(threading.enumerate()) - before
        cluster.counts = {"input": 11}
    assert values(path.read_text()) == expected({"input": 11})
    assert not set(threading.enumerate()) - before
    assert cluster.calls == 2
    file.close()
    assert (cluster.calls, os.listdir(tmp_path)) == (2, ["lateness.prom"])


def test_readers_of_the_file_never_see_a_part_of_it(tmp_path: Path) -> None:
    """While it is written again and again."""
    path, cluster = tmp_path / "lateness.prom", Cluster()
    cluster.counts = {f"other_{n}": n for n in range(3000)}  # several writes of the system
    with MetricsFile(str(path), cluster, "run-1", "prism", every_s=1e-6):
        await_that(path.exists)
        whole = path.read_text().count("\n")
        calls = cluster.calls
        while cluster.calls < calls + 20:
            text = path.read_text()
            assert (text.count("\n"), text[-1]) == (whole, "\n")


def test_a_file_that_all_could_read_is_one_that_node_exporter_can(tmp_path: Path) -> None:
    """It is another user: the umask rules."""
    path = tmp_path / "lateness.prom"
    before = os.umask(0o022)
    try:
        with MetricsFile(str(path), Cluster(), "run-1", "prism"):
            pass
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_reader_that_fails_is_shown_in_the_file(tmp_path: Path) -> None:
    """And raises nothing where the job runs."""
    path, cluster = tmp_path / "lateness.prom", Cluster()
    cluster.away = True
    with MetricsFile(str(path), cluster, "run-1", "prism"):
        pass
    assert values(path.read_text()) == {UP: 0.0, INFO: 1.0}


def test_a_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder is gone: logged once, and written when it is back."""
    folder, cluster = tmp_path / "collector", Cluster()
    folder.mkdir()
    file = MetricsFile(str(folder / "lateness.prom"), cluster, "run-1", "prism", every_s=0.001)
    folder.rmdir()
    with caplog.at_level(logging.WARNING), file:
        await_that(lambda: "cannot be written" in caplog.text)
        folder.mkdir()
        await_that((folder / "lateness.prom").exists)
    assert caplog.text.count("cannot be written") == 1


def test_a_path_that_node_exporter_would_pass_over_is_refused(tmp_path: Path) -> None:
    """By the flag's name, as is one in no folder."""
    for path, rule in {
        tmp_path / "lateness.txt": r"must be a file that ends in \.prom",
        tmp_path / "missing" / "lateness.prom": "must be in a writable folder",
    }.items():
        with pytest.raises(ValueError, match=rf"path \(--metrics_file\) {rule}.*, got '"):
            MetricsFile(str(path), Cluster(), "run-1", "prism")


@pytest.mark.parametrize("every_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_between_two_writes_that_is_none_is_refused(every_s: float, tmp_path: Path) -> None:
    """It must be finite and positive."""
    with pytest.raises(ValueError, match="every_s must be a positive number of seconds, got "):
        MetricsFile(str(tmp_path / "a.prom"), Cluster(), "run-1", "prism", every_s)
