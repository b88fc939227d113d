"""`config-manager`, the sidecar in charts for NVIDIA's plugin, with our agent."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.process import BackgroundProcess
from tests.timing import timing
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes

from .rig import BIN, Rig, eventually
from .test_node_config import configs, kubernetes, memory, set_label, wait_for_only

__all__ = ["configs", "kubernetes"]


def manager(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap, *args: str, **times: float
) -> BackgroundProcess:
    variables = {
        "NODE_NAME": "n1",
        "NODE_LABEL": "nvidia.com/device-plugin.config",
        "KUBECONFIG": str(kubernetes.kubeconfig(rig.directory / "kubeconfig")),
        "CONFIG_FILE_SRCDIR": str(configs.directory),
        "CONFIG_FILE_DST": str(rig.directory / "config" / "config.yaml"),
    }
    # By default it would signal the agents of other tests.
    signalled = f"--process-to-signal={rig.directory / 'signalled'}"
    return BackgroundProcess(
        [str(BIN / "config-manager"), signalled, *args],
        env=rig.env() | variables | timing(**times),
        log=rig.directory / "manager.log",
    )


def link(rig: Rig) -> Path:
    return rig.directory / "config" / "config.yaml"


def test_oneshot_links_the_configuration_that_the_label_names_and_exits(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, "a")
    with manager(rig, kubernetes, configs, "--oneshot") as process:
        assert process.wait() == 0
    assert link(rig).readlink() == configs.directory / "a"
    set_label(kubernetes, "b")
    with manager(rig, kubernetes, configs, "--oneshot") as process:
        assert process.wait() == 0
    assert link(rig).read_text() == memory("example.com/b")


def test_the_empty_configuration_is_a_link_to_dev_null(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, None)
    with manager(rig, kubernetes, configs, "--oneshot", "--fallback-strategies=empty") as process:
        assert process.wait() == 0
    assert link(rig).readlink() == Path("/dev/null")


def test_a_dangling_link_is_replaced(rig: Rig, kubernetes: Kubernetes, configs: ConfigMap) -> None:
    link(rig).parent.mkdir()
    link(rig).symlink_to("gone")
    set_label(kubernetes, "a")
    with manager(rig, kubernetes, configs, "--oneshot") as process:
        assert process.wait() == 0
    assert link(rig).readlink() == configs.directory / "a"


def test_a_temporary_link_of_a_killed_sidecar_is_replaced(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    link(rig).parent.mkdir()
    draft = link(rig).with_name(".config.yaml.tmp")
    draft.symlink_to("half")
    set_label(kubernetes, "a")
    with manager(rig, kubernetes, configs, "--oneshot") as process:
        assert process.wait() == 0
    assert link(rig).readlink() == configs.directory / "a"
    assert list(link(rig).parent.iterdir()) == [link(rig)]


def test_a_correct_link_is_not_written_again(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, "a")
    made = []
    for _ in range(2):
        with manager(rig, kubernetes, configs, "--oneshot") as process:
            assert process.wait() == 0
        made.append(link(rig).lstat().st_ino)
    assert made[0] == made[1]


def test_an_agent_that_reads_the_link_follows_the_label_and_edits(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, "a")
    with manager(rig, kubernetes, configs) as process:
        eventually(link(rig).exists, "the link is there")
        with rig.agent(f"--config-file={link(rig)}"):
            wait_for_only(rig, "example.com/a")
            set_label(kubernetes, "b")
            wait_for_only(rig, "example.com/b")
            configs.update(b=memory("example.com/c"))
            wait_for_only(rig, "example.com/c")
        assert process.stop() == 0


def test_the_link_follows_the_label_to_an_equal_configuration(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    configs.update(a=memory("example.com/a"), b=memory("example.com/a"))
    set_label(kubernetes, "a")
    with manager(rig, kubernetes, configs):
        eventually(link(rig).exists, "the link is there")
        set_label(kubernetes, "b")
        eventually(lambda: link(rig).readlink() == configs.directory / "b", "the link moves")


def test_a_label_that_names_no_configuration_leaves_the_link_unchanged(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, "a")
    with manager(rig, kubernetes, configs) as process:
        eventually(link(rig).exists, "the link is there")
        set_label(kubernetes, "absent")
        process.wait_for_code(Code.CONFIGURATION_NOT_FOUND)
        assert link(rig).readlink() == configs.directory / "a"
        set_label(kubernetes, "b")
        eventually(lambda: link(rig).readlink() == configs.directory / "b", "the link moves")


def test_the_named_process_is_signalled_after_a_change(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    program = rig.directory / "signalled"
    program.symlink_to("/bin/sleep")
    set_label(kubernetes, "a")
    with (
        subprocess.Popen([program, "600"]) as sleeper,
        manager(rig, kubernetes, configs, "--signal=15"),
    ):
        eventually(link(rig).exists, "the link is there")
        assert sleeper.poll() is None
        set_label(kubernetes, "b")
        assert sleeper.wait(90) == -signal.SIGTERM


def test_a_process_started_by_its_name_is_found_by_its_path(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    """For example the MPS daemon of NVIDIA's chart."""
    name = f"signalled-{uuid.uuid4()}"
    set_label(kubernetes, "a")
    with (
        subprocess.Popen([name, "60"], executable="/bin/sleep") as sleeper,
        manager(rig, kubernetes, configs, "--signal=15", f"--process-to-signal=/usr/bin/{name}"),
    ):
        eventually(link(rig).exists, "the link is there")
        set_label(kubernetes, "b")
        assert sleeper.wait(20) == -signal.SIGTERM


def test_an_editor_of_a_file_of_that_name_is_not_signalled(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    name = f"signalled-{uuid.uuid4()}"
    (rig.directory / name).write_text("import time\ntime.sleep(60)\n")
    set_label(kubernetes, "a")
    with (
        subprocess.Popen(["vim", rig.directory / name], executable=sys.executable) as editor,
        manager(rig, kubernetes, configs, "--signal=15", f"--process-to-signal={name}") as process,
    ):
        eventually(link(rig).exists, "the link is there")
        set_label(kubernetes, "b")
        process.wait_for_code(Code.SIGNAL_FAILED)
        assert editor.poll() is None
        editor.kill()


@pytest.mark.parametrize("missing", ["NODE_NAME", "CONFIG_FILE_SRCDIR", "CONFIG_FILE_DST"])
def test_a_missing_required_option_is_named(rig: Rig, missing: str) -> None:
    given = {"NODE_NAME": "n1", "CONFIG_FILE_SRCDIR": "/x", "CONFIG_FILE_DST": "/y"}
    del given[missing]
    done = subprocess.run(
        [BIN / "config-manager"], env=rig.env() | given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{missing.lower().replace('_', '-')}: '' is not valid" in done.stderr
