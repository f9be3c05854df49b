"""Flink's REST interface: what is asked, and how the answers are read."""

from __future__ import annotations

from typing import Any, Final

import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.cells import DistributionData, GaugeData
from apache_beam.portability.api import metrics_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.pipelines.errors import EngineError
from beam_lateness.pipelines.flink.rest import FlinkRest
from beam_lateness.transforms import metrics
from tests.pipelines.flink.canned import (
    ROOT,
    START_MS,
    TRACE,
    CannedFlink,
    Turns,
    accumulators,
    canned_flink,
    checkpoints,
)

OURS: Final = "[9]{ReadEvents}.beam_lateness_"


@pytest.mark.parametrize("spelt", ["{}", "http://{}", "http://{}/"])
def test_a_cluster_is_named_by_its_address_or_its_url(flink: CannedFlink, spelt: str) -> None:
    """As Beam takes both."""
    assert FlinkRest(spelt.format(flink.master)).overview() == flink.overview


def test_jobs_come_the_last_started_first(flink: CannedFlink, rest: FlinkRest) -> None:
    """Flink gives them in any order; -1 is no end."""
    flink.add("b", 2)
    flink.add("a", 1, "FINISHED", ended=True)
    flink.add("c", 3, "RESTARTING")
    jobs = rest.jobs()
    assert [(job.name, job.state, job.ended) for job in jobs] == [
        ("c", "RESTARTING", False),
        ("b", "RUNNING", False),
        ("a", "FINISHED", True),
    ]
    assert [job.start_ms - START_MS for job in jobs] == [3000, 2000, 1000]
    assert [job.end_ms is None for job in jobs] == [True, True, False]


def test_a_job_is_found_by_its_id_whatever_the_others_are_called(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """Even by the id of this one."""
    wanted = flink.add("mine", 1)
    flink.add(wanted, 2)
    assert rest.job(wanted).name == "mine"


def test_a_job_is_found_by_its_name_the_last_started_one(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """A job that was resumed has the name of the one that was stopped."""
    flink.add("mine", 1, "FINISHED", ended=True)
    last = flink.add("mine", 3)
    flink.add("mine", 2, "FAILED", ended=True)
    flink.add("other", 4)
    assert rest.job("mine").id == last


def test_without_a_name_the_only_running_job_is_meant(flink: CannedFlink, rest: FlinkRest) -> None:
    """One that starts anew runs too."""
    flink.add("done", 3, "CANCELED", ended=True)
    wanted = flink.add("mine", 1, "RESTARTING")
    assert rest.job().id == wanted


@pytest.mark.parametrize("name", [None, "yours"])
def test_a_job_that_is_not_there_is_an_error_that_lists_the_others(
    flink: CannedFlink, rest: FlinkRest, name: str | None
) -> None:
    """With ids and states, to choose from."""
    with pytest.raises(ValueError, match=r"no .*jobs: none"):
        rest.job(name)
    done = flink.add("done", 1, "FINISHED", ended=True)
    failed = flink.add("bad", 2, "FAILED", ended=True)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (its parts are looked at)
        rest.job(name)
    told = (flink.master, "no ", name or "running job", f"done ({done}, FINISHED)", failed)
    assert [part for part in told if part not in str(caught.value)] == []


def test_of_several_running_jobs_one_must_be_named(flink: CannedFlink, rest: FlinkRest) -> None:
    """The error lists them."""
    ids = [flink.add("one", 1), flink.add("two", 2)]
    with pytest.raises(ValueError, match="more than one running job") as caught:
        rest.job()
    assert [each for each in ("one", "two", *ids) if each not in str(caught.value)] == []


def test_a_running_job_has_the_sums_of_its_steps_and_their_subtasks(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """A step that is fused into several is counted in each; Flink's own metrics are none."""
    job = flink.add("mine", 1)
    flink.vertices[job] = {
        "cbc357": {
            f"{OURS}input": [3, 4],
            f"{OURS}invalid": [1, 0],
            "[2]{Beside}.beam_lateness_invalid": [0, 5],
            "[9]{ReadEvents}.other_input": [100, 100],
            "numRecordsIn": [7, 7],
        },
        "90bea6": {"[7]{Aggregate, Upsert}.beam_lateness_panes".replace(", ", "__"): [2, 2]},
        "empty": {},
    }
    assert rest.counts(job) == {
        **dict.fromkeys(metrics.COUNTS, 0),
        "input": 7,
        "invalid": 6,
        "panes": 4,
    }


def test_a_gauge_of_a_running_job_is_no_sum(flink: CannedFlink, rest: FlinkRest) -> None:
    """Twice the largest watermark is none."""
    job = flink.add("mine", 1)
    name = f"{OURS}{metrics.WATERMARK_MS}"
    flink.vertices[job] = {"source": {name: [START_MS, START_MS]}, "other": {name: [START_MS]}}
    assert rest.counts(job)[metrics.WATERMARK_MS] == START_MS


def test_the_watermark_of_several_readers_is_the_lowest(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """As everywhere else: the others wait for that one."""
    job = flink.add("mine", 1)
    name = f"{OURS}{metrics.WATERMARK_MS}"
    flink.vertices[job] = {"source": {name: [START_MS + 90_000, START_MS]}}
    assert rest.counts(job)[metrics.WATERMARK_MS] == START_MS


@settings(max_examples=30, deadline=None)
@given(
    counted=st.lists(
        st.tuples(st.sampled_from(metrics.COUNTS), st.integers(0, 2**40)), max_size=12
    ),
    watermark_ms=st.integers(-(2**50), 2**50),
)
def test_a_job_that_is_over_has_the_sums_of_its_transforms(
    counted: list[tuple[str, int]], watermark_ms: int
) -> None:
    """Of counters in our namespace; a gauge is as it is, and distributions are left out."""
    infos: list[metrics_pb2.MonitoringInfo] = [
        monitoring_infos.int64_user_counter(metrics.NAMESPACE, name, value, f"step{number}")
        for number, (name, value) in enumerate(counted)
    ]
    gauge = GaugeData(watermark_ms, timestamp=5)
    infos += [
        monitoring_infos.int64_user_gauge(metrics.NAMESPACE, metrics.WATERMARK_MS, gauge, "read"),
        monitoring_infos.int64_user_counter("other", "input", 100, "step0"),
        monitoring_infos.int64_user_distribution(
            metrics.NAMESPACE, "sizes", DistributionData(9, 2, 4, 5), "step0"
        ),
        monitoring_infos.int64_counter(monitoring_infos.ELEMENT_COUNT_URN, 100, pcollection="p"),
    ]
    with canned_flink() as flink:
        job = flink.add("mine", 1, "FINISHED", ended=True)
        flink.answers[f"jobs/{job}/accumulators"] = accumulators(*infos)
        found = FlinkRest(flink.master).counts(job)
    assert found.pop(metrics.WATERMARK_MS) == watermark_ms
    assert found == {
        name: sum(value for each, value in counted if each == name) for name in metrics.COUNTS
    }


def test_a_job_is_started_anew_as_often_as_flink_says(flink: CannedFlink, rest: FlinkRest) -> None:
    """Flink gives metrics as text, and none before a job has any."""
    job = flink.add("mine", 1)
    flink.answers[f"jobs/{job}/metrics"] = Turns([[], [{"id": "numRestarts", "value": "12"}]])
    assert [rest.restarts(job), rest.restarts(job)] == [0, 12]


def test_before_the_first_checkpoint_there_is_none_to_go_on_from(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """Nothing is kept."""
    job = flink.add("mine", 1)
    flink.answers[f"jobs/{job}/checkpoints"] = checkpoints()
    kept = rest.checkpoints(job)
    assert (kept.completed, kept.path, kept.size, kept.at_ms, kept.sizes) == (
        0,
        None,
        None,
        None,
        (),
    )


def test_the_last_checkpoint_is_told_and_the_sizes_of_those_before(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """Savepoints, and checkpoints that did not come about, have sizes of their own."""
    job = flink.add("mine", 1)
    history = [
        {"status": "COMPLETED", "is_savepoint": False, "state_size": 40},
        {"status": "FAILED", "is_savepoint": False, "state_size": 30},
        {"status": "COMPLETED", "is_savepoint": True, "state_size": 20},
        {"status": "COMPLETED", "is_savepoint": False, "state_size": 10},
    ]
    told = checkpoints(7, restored=2, path="file:/c/chk-7", history=history)
    flink.answers[f"jobs/{job}/checkpoints"] = told
    kept = rest.checkpoints(job)
    assert (kept.completed, kept.failed, kept.restored) == (7, 0, 2)
    assert (kept.path, kept.at_ms) == ("file:/c/chk-7", START_MS + 7)
    assert kept.sizes == (10, 40)


def stopping(flink: CannedFlink, *turns: Any) -> str:
    """A job that gives these answers while it is being stopped."""
    job = flink.add("mine", 1)
    flink.answers[f"jobs/{job}/stop"] = {"request-id": "r1"}
    going_on = {"status": {"id": "IN_PROGRESS"}, "operation": None}
    flink.answers[f"jobs/{job}/savepoints/r1"] = Turns([going_on, going_on, *turns])
    return job


@pytest.mark.parametrize("folder", [None, "file:///mine"])
def test_a_job_is_stopped_with_a_savepoint_and_not_drained(
    flink: CannedFlink, rest: FlinkRest, folder: str | None
) -> None:
    """Draining would fire incomplete windows; without a folder the cluster's is used."""
    where = "file:/savepoints/savepoint-1"
    job = stopping(flink, {"status": {"id": "COMPLETED"}, "operation": {"location": where}})
    assert rest.stop(job, folder) == where
    (asked,) = [each for each in flink.asked if each.method == "POST"]
    assert asked.body["drain"] is False
    assert asked.body.get("targetDirectory") == folder


def test_a_job_whose_tasks_are_yet_to_run_is_waited_for(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """Flink refuses to stop it before; so it was just started, or started anew."""
    done = {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/s"}}
    job = stopping(flink, done)
    states = [{"DEPLOYING": 1, "RUNNING": 1}, {"INITIALIZING": 2}, {"RUNNING": 1, "FINISHED": 1}]
    turns = Turns({"state": "RUNNING", "vertices": [{"tasks": each}]} for each in states)
    flink.answers[f"jobs/{job}"] = turns
    assert rest.stop(job) == "file:/s"
    asked = [each.path for each in flink.asked]
    assert asked.index(f"jobs/{job}/stop") == len(states)


def test_a_job_that_cannot_be_stopped_goes_on_and_the_error_says_why(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """In one line of Flink's many."""
    cause = {"class": "x", "stack-trace": TRACE, "serialized-throwable": "rO0"}
    job = stopping(flink, {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}})
    with pytest.raises(EngineError, match="was not stopped, and goes on") as caught:
        rest.stop(job)
    assert ROOT in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_savepoint_is_not_waited_for_for_ever(flink: CannedFlink, rest: FlinkRest) -> None:
    """It may still come, and the error says so."""
    job = stopping(flink)
    with pytest.raises(EngineError, match=r"no savepoint of .* in 0.05 s; it may still come"):
        rest.stop(job, timeout_s=0.05)


def test_a_job_is_waited_for_until_it_is_in_a_state_or_over(
    flink: CannedFlink, rest: FlinkRest
) -> None:
    """Whichever comes first."""
    job = flink.add("mine", 1)
    entry = flink.jobs[0]
    states = ["CREATED", "RUNNING", "FAILING", "FAILED"]
    turns = Turns([{"jobs": [{**entry, "state": state}]} for state in states])
    flink.answers["jobs/overview"] = turns
    assert rest.await_state(job, "RUNNING").state == "RUNNING"
    assert rest.await_state(job, "RUNNING").state == "FAILED"


@pytest.mark.parametrize(
    "states",
    [
        ("FINISHED",),
        (),
    ],
    ids=["a state", "the end"],
)
def test_a_job_that_takes_too_long_is_told_with_its_state_and_the_awaited_one(
    flink: CannedFlink, rest: FlinkRest, states: tuple[str, ...]
) -> None:
    """In a whole sentence."""
    job = flink.add("mine", 1)
    with pytest.raises(EngineError, match=r"is RUNNING after 0.05 s, not \w+"):
        rest.await_state(job, *states, timeout_s=0.05)


def test_a_job_is_cancelled_by_its_id(flink: CannedFlink, rest: FlinkRest) -> None:
    """Flink takes a PATCH."""
    job = flink.add("mine", 1)
    flink.answers[f"jobs/{job}"] = {}
    rest.cancel(job)
    (asked,) = flink.asked
    assert (asked.method, asked.path, asked.query) == ("PATCH", f"jobs/{job}", {"mode": "cancel"})
