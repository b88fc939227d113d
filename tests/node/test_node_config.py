"""The agent follows the configuration of its node: file, ConfigMap, label, probes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpuslice.codes import Code
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address, open_directly
from tests.timing import timing
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes

from .rig import ALL, RESOURCE, Rig, eventually

LABEL = "nvidia.com/device-plugin.config"


def memory(resource: str) -> str:
    return f"version: v1\nsharing: {{memory: {{resource: {resource}}}}}\n"


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    cluster = Kubernetes()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def configs(rig: Rig) -> ConfigMap:
    return ConfigMap(
        rig.directory / "configs", a=memory("example.com/a"), b=memory("example.com/b")
    )


def set_label(kubernetes: Kubernetes, value: str | None) -> None:
    labels = {} if value is None else {LABEL: value}
    kubernetes.put("nodes", "n1", metadata={"labels": labels})


def labelled_agent(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap, *args: str, **times: float
) -> BackgroundProcess:
    return rig.agent(
        f"--config-file-srcdir={configs.directory}",
        "--node-name=n1",
        f"--kubeconfig={kubernetes.kubeconfig(rig.directory / 'kubeconfig')}",
        *args,
        env=timing(**times),
    )


def get(address: str, path: str) -> tuple[int, str]:
    try:
        return open_directly(f"http://{address}{path}")
    except OSError as error:
        return 0, str(error)


def wait_for_only(rig: Rig, resource: str) -> None:
    """Until this resource has healthy devices and no other has."""
    rig.kubelet.wait_for(resource)
    rig.kubelet.wait_until(
        lambda: (
            {name for name in rig.kubelet.resources() if rig.kubelet.allocatable(name)}
            == {resource}
        ),
        f"only {resource}",
    )


def test_an_edit_of_the_file_is_followed_without_a_signal(rig: Rig) -> None:
    file = rig.directory / "config.yaml"
    file.write_text(memory("example.com/a"))
    with rig.agent(f"--config-file={file}"):
        wait_for_only(rig, "example.com/a")
        file.write_text(memory("example.com/b"))
        wait_for_only(rig, "example.com/b")


def test_changes_of_the_label_and_of_the_file_are_followed(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, "a")
    with labelled_agent(rig, kubernetes, configs):
        wait_for_only(rig, "example.com/a")
        set_label(kubernetes, "b")
        wait_for_only(rig, "example.com/b")
        configs.update(a=memory("example.com/a"), b=memory("example.com/edited"))
        wait_for_only(rig, "example.com/edited")


def test_a_label_that_names_no_configuration_changes_nothing_and_causes_an_event(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, "a")
    with labelled_agent(rig, kubernetes, configs) as agent:
        wait_for_only(rig, "example.com/a")
        set_label(kubernetes, "typo")
        agent.wait_for_code(Code.CONFIGURATION_NOT_FOUND)
        eventually(
            lambda: any(
                kind == "events" and "'typo'" in found["message"]
                for (kind, _), found in list(kubernetes.objects.items())
            ),
            "an event about the label",
        )
        wait_for_only(rig, "example.com/a")
        set_label(kubernetes, "b")
        wait_for_only(rig, "example.com/b")


def test_an_agent_starts_with_its_default_while_the_api_server_is_down(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, "b")
    kubernetes.refuse_with = 503
    default = "--default-config=a"
    with labelled_agent(rig, kubernetes, configs, default, node_label=1) as agent:
        agent.wait_for_code(Code.API_SERVER_UNAVAILABLE)
        agent.wait_for_code(Code.NODE_LABEL_UNKNOWN)
        wait_for_only(rig, "example.com/a")
        kubernetes.refuse_with = None
        rig.kubelet.wait_until(lambda: "example.com/b" in rig.kubelet.resources(), "b")


def test_an_agent_that_cannot_select_a_configuration_exits_and_lists_them(
    rig: Rig, kubernetes: Kubernetes, configs: ConfigMap
) -> None:
    set_label(kubernetes, None)
    with labelled_agent(rig, kubernetes, configs) as agent:
        assert agent.wait() == 1
        assert "choose one of a, b" in agent.output()


def test_probes_and_metrics_show_an_invalid_configuration_until_it_is_corrected(rig: Rig) -> None:
    file = rig.directory / "config.yaml"
    file.write_text(memory(RESOURCE))
    address = free_address()
    with rig.agent(ALL, f"--config-file={file}", f"--metrics-address={address}"):
        rig.kubelet.wait_for(RESOURCE)
        eventually(lambda: get(address, "/readyz") == (200, "ok\n"), "ready")
        assert get(address, "/healthz") == (200, "ok\n")
        file.write_text("version: v1\nsharding: {}\n")
        eventually(lambda: get(address, "/readyz")[0] == 503, "not ready")
        assert get(address, "/healthz")[0] == 200
        assert rig.kubelet.allocatable(RESOURCE) == 30
        metrics = get(address, "/metrics")[1]
        assert "gpuslice_config_last_reload_success 0.0\n" in metrics
        assert 'gpuslice_config_reloads_total{result="error"} 1.0\n' in metrics
        file.write_text(memory(RESOURCE))
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready again")


def test_metrics_count_devices_and_allocations(rig: Rig) -> None:
    address = free_address()
    with rig.agent(ALL, f"--metrics-address={address}"):
        rig.kubelet.wait_for(RESOURCE)
        rig.admit(4)
        # The kubelet may call before its answer to the registration has arrived.
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready")
        metrics = get(address, "/metrics")[1]
        for line in (
            f'gpuslice_registered{{resource="{RESOURCE}"}} 1.0',
            f'gpuslice_devices{{health="healthy",resource="{RESOURCE}"}} 30.0',
            f'gpuslice_devices{{health="unhealthy",resource="{RESOURCE}"}} 0.0',
            f'gpuslice_allocations_total{{resource="{RESOURCE}",result="ok"}} 1.0',
        ):
            assert line in metrics.splitlines()
        uuids = {device.split("-_-")[0] for device in rig.kubelet.devices(RESOURCE)}
        for uuid in uuids:
            assert any(
                line.startswith("gpuslice_gpu_healthy{") and uuid in line and line.endswith(" 1.0")
                for line in metrics.splitlines()
            )


def test_an_address_in_use_ends_the_agent_with_the_name_of_the_option(rig: Rig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with rig.agent(f"--metrics-address={address}") as agent:
            assert agent.wait() == 1
            assert "metrics-address" in agent.output()


def test_the_api_client_and_the_metrics_library_are_loaded_only_if_they_are_used() -> None:
    program = (
        "import sys, gpuslice.programs.agent.daemon\n"
        "print([n for n in ('lightkube', 'httpx2', 'prometheus_client') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_named_pipe_instead_of_the_file_does_not_block_the_agent(
    rig: Rig,
) -> None:
    file = rig.directory / "config.yaml"
    file.write_text(memory("example.com/a"))
    address = free_address()
    with rig.agent(f"--config-file={file}", f"--metrics-address={address}") as agent:
        wait_for_only(rig, "example.com/a")
        file.unlink()
        os.mkfifo(file)
        agent.wait_for_code(Code.CONFIGURATION_NOT_FOUND, "it is a pipe")
        agent.send(signal.SIGHUP)
        agent.wait_for_code(Code.CONFIGURATION_INVALID, "it is a pipe")
        assert get(address, "/healthz")[0] == 200
        assert get(address, "/readyz")[0] == 503
        wait_for_only(rig, "example.com/a")
        file.unlink()
        file.write_text(memory("example.com/b"))
        wait_for_only(rig, "example.com/b")
        assert agent.stop() == 0


def test_a_configuration_that_can_be_read_only_once_is_rejected_at_the_start(rig: Rig) -> None:
    receiver, sender = os.pipe()
    with os.fdopen(receiver), os.fdopen(sender, "w") as writing:
        writing.write(memory("example.com/a"))
        writing.flush()
        with rig.agent(f"--config-file=/proc/{os.getpid()}/fd/{receiver}") as agent:
            assert agent.wait() == 1
            assert f"config-file: '/proc/{os.getpid()}/fd/{receiver}'" in agent.output()
            assert "it is a pipe" in agent.output()
            assert "use a regular file" in agent.output()
            assert "Traceback" not in agent.output()
    assert rig.kubelet.registrations == 0


def test_the_null_device_is_the_empty_configuration_at_a_reload(rig: Rig) -> None:
    with rig.agent(ALL, "--config-file=/dev/null") as agent:
        rig.kubelet.wait_for(RESOURCE)
        agent.send(signal.SIGHUP)
        agent.wait_for_code(Code.RECONCILED)
        assert rig.kubelet.allocatable(RESOURCE) == 30
