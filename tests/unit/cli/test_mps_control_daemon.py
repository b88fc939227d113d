"""The command line of `mps-control-daemon`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.cli import mps_control_daemon
from gpuslice.cli.daemon_program import DaemonProgram
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.timing import Timing

MANIFESTS = Path(__file__).parents[3] / "deploy" / "manifests"


def run(*args: str, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(sys, "argv", ["mps-control-daemon", *args])
    with pytest.raises(SystemExit) as exited:
        mps_control_daemon.main()
    assert exited.value.code == status


def test_help_names_the_subcommand_and_the_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--help", monkeypatch=monkeypatch, status=0)
    text = capsys.readouterr().out
    assert "mps-control-daemon mount-shm" in text
    assert "--config-file" in text


@pytest.mark.parametrize("args", [("--confg-file=x",), ("mount-shn",)])
def test_an_invalid_command_line_is_rejected_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    run(*args, monkeypatch=monkeypatch, status=2)
    assert "--help" in capsys.readouterr().err


def the_daemon_set(name: str) -> dict[str, Any]:
    things = yaml.safe_load_all((MANIFESTS / name).read_text())
    [found] = [thing for thing in things if thing["kind"] == "DaemonSet"]
    return dict(found)


@pytest.mark.parametrize(
    ("name", "program"),
    [("nvidia-mps.yaml", mps_control_daemon.PROGRAM), ("agent-mps.yaml", mps_control_daemon.MPS)],
)
def test_the_manifest_uses_variables_and_paths_that_the_program_knows(
    name: str, program: DaemonProgram
) -> None:
    daemon_set = the_daemon_set(name)
    pod = daemon_set["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == program.name.split()
    # To wait for clients, to quit, to be killed and to have the driver set modes.
    timing = Timing()
    seconds = timing.mps_drain + timing.mps_quit + 2 * timing.mps_exit + 60
    assert pod["terminationGracePeriodSeconds"] >= seconds
    known = {name for option in OPTIONS for name in option.variables}
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env.keys() <= known | {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert places["/mps"]["hostPath"]["path"] == env["MPS_ROOT"]
    # Otherwise the shared memory of daemons is not on the host, where containers get it from.
    [root] = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/mps"]
    assert root["mountPropagation"] == "Bidirectional"
    assert container["securityContext"]["privileged"]


def test_the_manifest_has_the_configurations_of_the_plugin() -> None:
    own, plugin = the_daemon_set("nvidia-mps.yaml"), the_daemon_set("nvidia.yaml")
    assert own["metadata"]["namespace"] == plugin["metadata"]["namespace"]
    ours, theirs = (thing["spec"]["template"]["spec"] for thing in (own, plugin))
    settings = {"MPS_ROOT", "CONFIG_FILE_SRCDIR", "FALLBACK_STRATEGIES", "FAIL_ON_INIT_ERROR"}

    def chosen(pod: dict[str, Any]) -> list[Any]:
        [container] = pod["containers"]
        configs = [volume for volume in pod["volumes"] if "configMap" in volume]
        env = [one for one in container["env"] if one["name"] in settings]
        return [container["image"], configs, sorted(env, key=lambda one: str(one["name"]))]

    assert chosen(ours) == chosen(theirs)
    # One selector per DaemonSet, or each would take the pods of the other for its own.
    assert own["spec"]["selector"] != plugin["spec"]["selector"]
