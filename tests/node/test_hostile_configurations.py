"""Edits of the configuration that are meant to do harm: the last good settings stay in force."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address
from tests.timing import timing
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes
from tests.unit.config.hostile import HOSTILE

from .mps_programs import daemons, quarters, served, wait_until_ready
from .rig import BIN, GPU, Rig, eventually, needs_root
from .test_config_manager import manager
from .test_node_config import configs, get, kubernetes, set_label
from .test_nvidia_metrics import figure

__all__ = ["configs", "kubernetes"]

GOOD = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n"
# One of each kind, each with a message of its own; the unit tests have all of them.
EDITS = [
    "an empty number",
    "a boolean that is none",
    "half of a character",
    "half of a character in a list",
    "a long path",
    "a zero byte in a path to write",
    "a zero byte in a path to read",
    "an alias bomb",
    "an alias to itself",
    "long unknown keys",
    "deep lists",
    "a large file",
]


def edit_and_wait(rig: Rig, program: BackgroundProcess, alive: Callable[[], None]) -> None:
    """Every hostile edit, one after the other. Each is reported with one line."""
    for number, name in enumerate(EDITS, 1):
        rig.config(HOSTILE[name])
        program.wait_for_code(Code.CONFIGURATION_INVALID, times=number)
        program.wait_for_code(Code.RECONCILED, times=number)
        assert program.returncode is None, name
        assert program.logged(Code.CONFIGURATION_INVALID) == number, name
        alive()
    assert "Traceback" not in program.output()


def test_no_edit_ends_the_agent_or_changes_what_it_advertises(
    rig: Rig, kubernetes: Kubernetes
) -> None:
    set_label(kubernetes, None)
    address = free_address()
    kubeconfig = kubernetes.kubeconfig(rig.directory / "kubeconfig")
    flags = (f"--metrics-address={address}", "--node-name=n1", f"--kubeconfig={kubeconfig}")
    with rig.plugin(rig.config(GOOD), *flags) as agent:
        rig.wait_for_resources(GPU)
        before = rig.healthy(GPU)
        assert len(before) == 4

        def alive() -> None:
            assert rig.healthy(GPU) == before
            assert figure(address, "gpuslice_config_last_reload_success") == 0
            assert get(address, "/healthz")[0] == 200

        edit_and_wait(rig, agent, alive)
        assert rig.allocate(GPU, sorted(before)[0])
        eventually(
            lambda: sum(kind == "events" for kind, _ in list(kubernetes.objects)) == len(EDITS),
            "an event for each edit",
        )
        rig.config(GOOD.replace("2}", "3}"))
        rig.kubelet.wait_until(lambda: len(rig.healthy(GPU)) == 6, "a good edit to apply")
        assert figure(address, "gpuslice_config_last_reload_success") == 1


def test_an_api_server_that_hangs_does_not_delay_the_last_good_settings(
    rig: Rig, kubernetes: Kubernetes
) -> None:
    kubeconfig = kubernetes.kubeconfig(rig.directory / "kubeconfig")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        text = re.sub(r"https?://[0-9.]+:[0-9]+", address, kubeconfig.read_text())
        kubeconfig.write_text(text)
        flags = ("--node-name=n1", f"--kubeconfig={kubeconfig}")
        with rig.plugin(rig.config(GOOD), *flags) as agent:
            rig.wait_for_resources(GPU)
            for number in range(1, 4):
                rig.config(f"sharing: [{number}")
                agent.wait_for_code(Code.RECONCILED, times=number)
            assert agent.logged(Code.EVENT_NOT_RECORDED) == 0, "an event was awaited first"


def test_a_configuration_that_cannot_be_checked_in_time_is_rejected(rig: Rig) -> None:
    # Large enough to take longer on any machine.
    patterns = "".join(f"    - {{pattern: 'model {n}', name: gpu}}\n" for n in range(3000))
    large = f"resources:\n  gpus:\n{patterns}"
    with rig.plugin(rig.config(large), env=timing(config_check=0.001)) as agent:
        # Even the first file is not read in time. The agent says so, and ends.
        assert agent.wait() == 1
        assert Code.CONFIGURATION_INVALID in agent.output()
        assert "Traceback" not in agent.output()


def test_a_device_as_machine_type_file_is_not_read(rig: Rig) -> None:
    out = rig.directory / "labels"
    text = f"flags: {{gfd: {{machineTypeFile: %s, outputFile: {out}}}}}"

    def labels() -> str:
        """Empty while the file is replaced: other settings have another publisher."""
        try:
            return out.read_text()
        except FileNotFoundError:
            return ""

    with rig.plugin(rig.config(text % "/dev/zero"), "--labels=file") as agent:
        eventually(lambda: "gpu.machine=unknown" in labels(), "labels")
        assert agent.rss_bytes() < 300 << 20
        machine = rig.directory / "machine"
        machine.write_text("Some Server")
        rig.config(text % machine)
        eventually(lambda: "gpu.machine=Some-Server" in labels(), "the machine")


@needs_root
@pytest.mark.usefixtures("no_daemon_stays")
def test_no_edit_ends_mps_control_daemon_or_the_daemons_that_it_runs(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        before = daemons(rig)
        assert before

        def alive() -> None:
            assert daemons(rig) == before

        edit_and_wait(rig, program, alive)


def test_no_edit_ends_feature_discovery(rig: Rig) -> None:
    out = rig.directory / "labels"
    argv = [str(BIN / "gpuslice"), "labels", "--mode=file", f"--output-file={out}"]
    with rig.run([*argv, rig.config(GOOD)], name="labels") as program:
        eventually(out.exists, "labels")
        before = out.read_text()

        def alive() -> None:
            assert out.read_text() == before

        edit_and_wait(rig, program, alive)


def test_config_manager_ends_with_sigterm_while_it_waits_for_the_api_server(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    """Without a handler, the kernel keeps SIGTERM from the first process of a container."""
    with manager(rig, kubernetes, configs, node_label=0.1) as process:
        kubernetes.stop()
        process.wait_for_code(Code.WAITING_FOR_API_SERVER)
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.output()


@pytest.mark.parametrize(
    ("entry", "args"),
    [
        ("gpuslice", ["agent"]),
        ("gpuslice", ["labels"]),
        ("nvidia_device_plugin", []),
        ("gpushare_device_plugin", []),
        ("gpu_feature_discovery", []),
        ("mps_control_daemon", []),
    ],
)
def test_sighup_is_harmless_before_a_program_imports_its_modules(
    entry: str, args: list[str]
) -> None:
    """Imports take most of the time until a handler is installed."""
    program = f"""
import signal, sys
# Whoever runs the tests may ignore the signal, and a child inherits that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fatal = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            fatal.append(name)
sys.argv = ["program", *{args!r}, "--help"]
sys.meta_path.insert(0, Watch())
from gpuslice.cli import entry_points
try:
    entry_points.{entry}()
finally:
    print("imported before:", *(name for name in fatal if name.startswith("gpuslice")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    before = done.stdout.rpartition("imported before:")[2].split()
    assert before == ["gpuslice", "gpuslice.cli", "gpuslice.cli.entry_points"]


def test_a_file_that_is_not_regular_is_rejected_and_not_read(rig: Rig) -> None:
    config = rig.directory / "config.yaml"
    with rig.plugin(rig.config(GOOD)) as agent:
        rig.wait_for_resources(GPU)
        before = rig.healthy(GPU)
        config.unlink()
        config.symlink_to("/dev/zero")
        agent.wait_for_code(Code.CONFIGURATION_NOT_FOUND)
        assert rig.healthy(GPU) == before
        assert Path(f"/proc/{agent.pid}").exists()


def test_an_edit_that_names_a_resource_of_another_process_is_rejected(rig: Rig) -> None:
    text = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, rename: %s}]}}"
    with rig.plugin(name="other"), rig.plugin(rig.config(text % "gpu.own")) as agent:
        rig.wait_for_resources(GPU, "nvidia.com/gpu.own")
        before = rig.healthy("nvidia.com/gpu.own")
        rig.config(text % "gpu")
        agent.wait_for_code(Code.CONFIGURATION_INVALID, "another process serves nvidia.com/gpu")
        agent.wait_for_code(Code.RECONCILED)
        assert agent.returncode is None
        assert rig.healthy("nvidia.com/gpu.own") == before
        rig.config(text % "gpu.other")
        rig.wait_for_resources("nvidia.com/gpu.other")
