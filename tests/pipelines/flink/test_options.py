"""The flags of jobs on Flink: what would lose records is refused, what is left out is made safe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_lateness.pipelines.flink.jars import FLINK_VERSION
from beam_lateness.pipelines.flink.options import (
    FlinkOptions,
    Job,
    asks_flink,
    in_job_server,
    set_safe_defaults,
)
from beam_lateness.pipelines.options import check_flags
from beam_lateness.pipelines.runs import new_run

ON_CLUSTER: Final = ("--runner=FlinkRunner", "--flink_master=localhost:8081")
FINITE: Final = Job(endless=False, live=False, num_readers=1, run="20260101T000000.000001Z-abcd")
LIVE: Final = FINITE._replace(endless=True, live=True)

# As Beam's Java runner (2.62) has them, in its spelling: FlinkPipelineOptions.
JAVA_FLAGS: Final[dict[str, int | bool | str]] = {
    "checkpointingInterval": 5000,
    "minPauseBetweenCheckpoints": 1000,
    "checkpointTimeoutMillis": 60_000,
    "maxBundleTimeMills": 100,
    "maxBundleSize": 500,
    "numberOfExecutionRetries": 3,
    "executionRetryDelay": 100,
    "shutdownSourcesAfterIdleMs": 0,
    "finishBundleBeforeCheckpointing": True,
    "externalizedCheckpointsEnabled": False,
    "retainExternalizedCheckpointsOnCancellation": False,
    "allowNonRestoredState": True,
    "fasterCopy": True,
    "savepointPath": "file:///s",
    "stateBackend": "rocksdb",
    "stateBackendStoragePath": "file:///c",
    "flinkConfDir": "/conf",
    "maxParallelism": 128,
}
MORE_JAVA_FLAGS: Final[dict[str, int | bool | str]] = {
    "checkpointingMode": "EXACTLY_ONCE",
    "numConcurrentCheckpoints": 1,
    "unalignedCheckpointEnabled": True,
    "autoWatermarkInterval": 100,
    "objectReuse": True,
    "operatorChaining": False,
    "disableMetrics": True,
    "latencyTrackingInterval": 0,
}


def snake(name: str) -> str:
    """A Java option as Beam's clients spell it."""
    return re.sub("([A-Z])", r"_\1", name).lower()


def settled(*flags: str, job: Job = FINITE) -> PipelineOptions:
    """Options with safe defaults."""
    options = PipelineOptions([*ON_CLUSTER, *flags])
    set_safe_defaults(options, job)
    return options


def flink(*flags: str, job: Job = FINITE) -> FlinkOptions:
    """The flags of Flink, with safe defaults."""
    return settled(*flags, job=job).view_as(FlinkOptions)


# Flags and the job they are of; and what the error must tell: flag, value, reason, remedy.
REFUSALS: Final[dict[str, tuple[Sequence[str], Job, Sequence[str]]]] = {
    "live without checkpoints": (
        ["--checkpointing_interval=0"],
        LIVE,
        ["--checkpointing_interval", "got 0", "nothing is acknowledged", "at least 1000"],
    ),
    "live with checkpoints turned off": (
        ["--checkpointing_interval=-1"],
        LIVE,
        ["--checkpointing_interval", "got -1", "first failure loses", "at least 1000"],
    ),
    "live with checkpoints all the time": (
        ["--checkpointing_interval=999"],
        LIVE,
        ["--checkpointing_interval", "got 999", "at least 1000"],
    ),
    "bundles across checkpoints": (
        ["--finish_bundle_before_checkpointing=false"],
        FINITE,
        ["--finish_bundle_before_checkpointing=false", "loses records", "Leave the flag out"],
    ),
    "bundles across a live job's checkpoints": (
        ["--finish_bundle_before_checkpointing=false", "--checkpointing_interval=5000"],
        LIVE,
        ["--finish_bundle_before_checkpointing=false", "loses records", "Leave the flag out"],
    ),
    "sources of a live job that end": (
        ["--shutdown_sources_after_idle_ms=0"],
        LIVE,
        ["--shutdown_sources_after_idle_ms=0", "ends the checkpoints", "leave it out"],
    ),
    "sources of a live job that end later": (
        ["--shutdown_sources_after_idle_ms=60000"],
        LIVE,
        ["--shutdown_sources_after_idle_ms=60000", "ends the checkpoints", "leave it out"],
    ),
    "live on a Flink that ends": (
        ["--flink_master=[auto]"],
        LIVE,
        ["--flink_master=[auto]", "is lost", "--flink_master=HOST:PORT", "cluster up`"],
    ),
    "counted twice": (
        ["--checkpointing_mode=AT_LEAST_ONCE"],
        FINITE,
        ["--checkpointing_mode=AT_LEAST_ONCE", "counts records twice", "leave it out"],
    ),
    "no parallelism": (["--parallelism=0"], FINITE, ["--parallelism", "at least 1", "got 0"]),
    "left on a Flink that ends": (
        ["--detach", "--flink_master=[local]"],
        FINITE,
        ["--detach", "needs a cluster", "--flink_master=HOST:PORT", "`beam-lateness cluster up`"],
    ),
    "left, and written": (
        ["--detach", "--output_executable_path=job.jar"],
        FINITE,
        ["--detach", "--output_executable_path", "give one"],
    ),
    "written with a cluster": (
        ["--output_executable_path=job.jar", "--job_endpoint=there:8099"],
        FINITE,
        ["--job_endpoint=there:8099", "--output_executable_path", "leave it out"],
    ),
    "left by its workers": (
        ["--detach", "--environment_type=LOOPBACK"],
        FINITE,
        ["--environment_type=LOOPBACK", "--detach ends", "use EXTERNAL", "localhost:50000"],
    ),
}


@pytest.mark.parametrize(("flags", "job", "told"), REFUSALS.values(), ids=REFUSALS)
def test_what_would_lose_records_is_refused(
    flags: Sequence[str], job: Job, told: Sequence[str]
) -> None:
    """Flag, value, reason and remedy stand in the error."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (its parts are looked at)
        settled(*flags, job=job)
    assert [part for part in told if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("flags", "job"),
    [
        (["--checkpointing_interval=0"], FINITE),
        (["--checkpointing_interval=0", "--finish_bundle_before_checkpointing=false"], FINITE),
        (["--shutdown_sources_after_idle_ms=5"], FINITE),
        (["--shutdown_sources_after_idle_ms=-1"], LIVE),
        (["--checkpointing_interval=1000"], LIVE),
        (["--environment_type=LOOPBACK"], LIVE),
        (["--detach", "--environment_type=DOCKER"], LIVE),
    ],
    ids=str,
)
def test_what_loses_nothing_is_taken(flags: Sequence[str], job: Job) -> None:
    """The refusals go no further than their reasons."""
    settled(*flags, job=job)


NUMBERS: Final = (
    "min_pause_between_checkpoints",
    "checkpoint_timeout_millis",
    "max_bundle_time_mills",
    "max_bundle_size",
    "number_of_execution_retries",
    "execution_retry_delay",
)


@settings(max_examples=25, deadline=None)
@given(
    numbers=st.dictionaries(st.sampled_from(NUMBERS), st.integers(0, 10**6)),
    interval=st.integers(1000, 10**6),
    kept=st.booleans(),
    parallelism=st.integers(1, 64),
    job=st.sampled_from([FINITE, LIVE]),
)
def test_what_is_given_stays(
    numbers: dict[str, int], interval: int, kept: bool, parallelism: int, job: Job
) -> None:
    """Whatever would have been set."""
    given_flags = {
        **numbers,
        "checkpointing_interval": interval,
        "externalized_checkpoints_enabled": kept,
        "retain_externalized_checkpoints_on_cancellation": kept,
        "parallelism": parallelism,
        "flink_version": "1.20",
        "job_name": "mine",
        "environment_type": "EXTERNAL",
        "environment_config": "elsewhere:1",
    }
    options = settled(*(f"--{name}={value}" for name, value in given_flags.items()), job=job)
    found = options.get_all_options()
    assert {name: found[name] for name in given_flags} == given_flags


@pytest.mark.parametrize("job", [FINITE, LIVE], ids=["finite", "live"])
def test_a_job_has_checkpoints_that_hold_whole_bundles_and_outlive_it(job: Job) -> None:
    """Without flags; and a record is in a bundle for less time than between two of them."""
    found = flink(job=job)
    assert found.checkpointing_interval > found.max_bundle_time_mills > 0
    assert found.finish_bundle_before_checkpointing is True
    assert found.externalized_checkpoints_enabled is True
    assert found.retain_externalized_checkpoints_on_cancellation is True


def test_a_flink_inside_the_job_server_keeps_no_checkpoint_for_later() -> None:
    """It has no folder for them, and without one Flink refuses the job."""
    found = flink("--flink_master=[local]")
    assert found.externalized_checkpoints_enabled is None
    assert found.retain_externalized_checkpoints_on_cancellation is None


def test_a_live_job_outlives_more_failures_than_a_finite_one_and_neither_endless_ones() -> None:
    """A job that fails again and again would look like one that hangs."""
    finite, live = flink(job=FINITE), flink(job=LIVE)
    assert 0 < finite.number_of_execution_retries < live.number_of_execution_retries
    assert finite.execution_retry_delay > 0


def test_the_sources_of_a_finite_job_end_and_those_of_a_live_one_do_not() -> None:
    """Else the one would never end, and the other would have no checkpoints any more."""
    assert flink(job=FINITE).shutdown_sources_after_idle_ms == 0
    assert flink(job=LIVE).shutdown_sources_after_idle_ms is None


def test_every_job_streams() -> None:
    """Flink has no watermarks in a batch job."""
    assert settled().view_as(StandardOptions).streaming is True


def test_flink_is_of_the_version_that_is_tested_unless_it_was_named() -> None:
    """Beam's own default is a later one, even where it is what was asked for."""
    beams = PipelineOptions([]).view_as(FlinkRunnerOptions).flink_version
    assert beams != FLINK_VERSION
    assert settled().view_as(FlinkRunnerOptions).flink_version == FLINK_VERSION
    for flags in ([f"--flink_version={beams}"], ["--flink_version", beams]):
        assert settled(*flags).view_as(FlinkRunnerOptions).flink_version == beams


def test_each_reader_has_a_task_of_its_own() -> None:
    """Unless the user knows better."""
    several = FINITE._replace(num_readers=3)
    assert settled(job=several).view_as(FlinkRunnerOptions).parallelism == 3


def test_a_job_is_named_after_its_run() -> None:
    """So it is found on the cluster, and in the table; in letters that Beam takes for a name."""
    run = new_run()
    name = settled(job=FINITE._replace(run=run)).view_as(GoogleCloudOptions).job_name
    assert run.lower() in name
    assert name == name.lower()


@pytest.mark.parametrize(
    ("flags", "workers"),
    [
        ([], ("EXTERNAL", "localhost:50000")),
        (["--flink_master=[auto]"], ("LOOPBACK", None)),
        (["--flink_master=[auto]", "--environment_type=EXTERNAL"], ("EXTERNAL", "localhost:50000")),
        (["--environment_config=pool:1"], ("EXTERNAL", "pool:1")),
        (["--environment_type=LOOPBACK"], ("LOOPBACK", None)),
        (["--environment_type=DOCKER"], ("DOCKER", None)),
    ],
    ids=str,
)
def test_python_steps_run_in_a_pool_beside_the_cluster_or_in_this_process(
    flags: Sequence[str], workers: tuple[str, str | None]
) -> None:
    """On a cluster the pool; in the job server this process; or as the flags say."""
    portable = settled(*flags).view_as(PortableOptions)
    assert (portable.environment_type, portable.environment_config) == workers


def test_a_pool_may_be_named_by_beams_newer_flag() -> None:
    """`--environment_options=external_service_address=...`: Beam takes one of the two."""
    flags = ["--environment_type=EXTERNAL", "--environment_options=external_service_address=pool:1"]
    assert settled(*flags).view_as(PortableOptions).environment_config is None


@pytest.mark.parametrize("master", ["[auto]", "[local]", "[collection]", None])
def test_flink_is_in_the_job_server_where_no_cluster_is_named(master: str | None) -> None:
    """By Beam's names for it, or by none."""
    flags = [] if master is None else [f"--flink_master={master}"]
    assert in_job_server(PipelineOptions(flags))
    assert not in_job_server(PipelineOptions([*flags, "--flink_master=localhost:8081"]))


def test_a_job_jar_is_for_the_cluster_that_is_given_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for one that a flag names; the job server, which writes it, is told where."""
    monkeypatch.chdir(tmp_path)
    for master in ("--flink_master=localhost:8081", "--flink_master=[auto]"):
        options = settled(master, "--output_executable_path=job.jar")
        assert not in_job_server(options)
        assert options.view_as(FlinkOptions).externalized_checkpoints_enabled is True
        assert options.view_as(FlinkRunnerOptions).flink_master == "[auto]"
        portable = options.view_as(PortableOptions)
        assert portable.output_executable_path == str(tmp_path / "job.jar")
        assert portable.environment_type == "EXTERNAL"


def test_flink_runs_the_job_where_it_is_asked_for() -> None:
    """And nowhere else."""
    assert asks_flink(PipelineOptions(["--runner=FlinkRunner"]))
    assert not asks_flink(PipelineOptions([]))
    assert not asks_flink(PipelineOptions(["--runner=PrismRunner"]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *JAVA_FLAGS.items(),
        *(pytest.param(*flag) for flag in MORE_JAVA_FLAGS.items()),
    ],
)
def test_no_flag_of_the_java_runner_is_unknown(name: str, value: float | str) -> None:
    """Each is read as a value of its kind, under the name of which Beam makes the Java option."""
    flag = f"--{snake(name)}={value}"
    check_flags([flag])
    read = PipelineOptions([flag]).get_all_options()[snake(name)]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--checkpoint_interval=5000", "--checkpointing_interval"),
        ("--max_bundle_time_millis=5", "--max_bundle_time_mills"),
        ("--retain_checkpoints_on_cancellation", "--retain_externalized_checkpoints_on_canc"),
        ("--detatch", "--detach"),
    ],
)
def test_a_flag_that_is_spelt_wrong_is_refused_with_the_right_one(flag: str, near: str) -> None:
    """Beam would ignore it, and Flink run without."""
    with pytest.raises(ValueError, match=f"unknown flag '{flag}'; did you mean {near}"):
        check_flags([flag])


@pytest.mark.parametrize(
    "flag", ["checkpointing_interval=soon", "faster_copy=maybe", "max_bundle_size"]
)
def test_a_value_of_another_kind_is_an_error_that_names_the_flag(flag: str) -> None:
    """Not argparse's exit."""
    with pytest.raises(ValueError, match=f"--{flag.split('=')[0]}"):
        check_flags([f"--{flag}"])


@pytest.mark.parametrize("spelt", ["", "=true", "=True"])
def test_a_switch_may_stand_without_a_value(spelt: str) -> None:
    """As in Java's own flags."""
    options = PipelineOptions([f"--allow_non_restored_state{spelt}"])
    assert options.view_as(FlinkOptions).allow_non_restored_state is True
