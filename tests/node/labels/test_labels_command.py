"""`gpuslice labels` and `gpu-feature-discovery` as processes on a simulated node."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.node import SimNode
from tests.unit.cluster.kubernetes import Kubernetes

from .conftest import Once, Start

GFD = "gpu-feature-discovery"
SHARED = """
version: v1
sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}
"""


def labels(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def has_line(path: Path, line: str) -> Callable[[], bool]:
    return lambda: path.exists() and line in path.read_text().splitlines()


def test_labels_are_printed_once(once: Once) -> None:
    done = once("gpuslice", "labels", "--oneshot", "--output-file", "", "--no-timestamp")
    assert done.returncode == 0, done.stderr
    found = labels(done.stdout)
    assert list(found) == sorted(found)
    assert found["nvidia.com/gpu.product"] == "Tesla-T4"
    assert found["nvidia.com/gpu.sharing-strategy"] == "memory"
    assert found["gpuslice.io/resource.aliyun.com_gpu-mem.capacity"] == "30"
    assert "nvidia.com/gfd.timestamp" not in found


def test_nvidias_command_line_labels_whole_gpus(once: Once, tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    done = once(
        GFD, "-oneshot", "--use-node-feature-api=false", "-o", str(path),
        GFD_MACHINE_TYPE_FILE="/dev/null",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = labels(path.read_text())
    assert found["nvidia.com/gpu.replicas"] == "1"
    assert found["nvidia.com/gpu.machine"] == ""
    assert abs(int(found["nvidia.com/gfd.timestamp"]) - time.time()) < 600
    assert path.stat().st_mode & 0o777 == 0o644


def test_variables_set_options_without_a_flag(once: Once, tmp_path: Path) -> None:
    variables = {
        "GFD_ONESHOT": "true",
        "GFD_NO_TIMESTAMP": "1",
        "GFD_USE_NODE_FEATURE_API": "false",
        "GFD_OUTPUT_FILE": str(tmp_path / "by-variable"),
        "GFD_MIG_STRATEGY": "mixed",
        "MIG_STRATEGY": "single",
    }
    assert once(GFD, **variables).returncode == 0
    found = labels((tmp_path / "by-variable").read_text())
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert "nvidia.com/gfd.timestamp" not in found
    assert once(GFD, "--output", str(tmp_path / "by-flag"), **variables).returncode == 0
    assert (tmp_path / "by-flag").exists()


def test_the_configuration_file_sets_options_without_a_flag_or_variable(
    once: Once, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "version: v1\n"
        "flags:\n"
        "  useNodeFeatureAPI: false\n"
        f"  gfd: {{oneshot: true, noTimestamp: true, outputFile: {tmp_path / 'gfd'}}}\n"
    )
    done = once(GFD, f"--config-file={config}")
    assert done.returncode == 0, done.stderr
    assert "nvidia.com/gfd.timestamp" not in labels((tmp_path / "gfd").read_text())


def test_the_file_follows_the_node_and_is_removed_with_the_process(
    node: SimNode, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "gfd"
    process = start("gpuslice", "labels", "--sleep-interval=100ms", f"--output-file={path}")
    wait_until(has_line(path, "nvidia.com/gpu.count=2"))
    before = path.stat().st_mtime_ns
    time.sleep(0.3)
    assert path.stat().st_mtime_ns == before, "equal labels are not written again"
    node.faults.lost(1)
    wait_until(has_line(path, "nvidia.com/gpu.count=1"))
    node.faults.restore(1)
    wait_until(has_line(path, "nvidia.com/gpu.count=2"))
    assert process.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("flag", ["--sleep-interval=infinite", "--oneshot"])
def test_a_file_that_is_written_once_stays(start: Start, tmp_path: Path, flag: str) -> None:
    path = tmp_path / "gfd"
    process = start("gpuslice", "labels", flag, f"--output-file={path}")
    wait_until(path.exists)
    if flag != "--oneshot":
        process.wait_for_output(Code.LABELS_PUBLISHED)
        process.send(signal.SIGTERM)
    assert process.wait() == 0
    assert path.exists()


@pytest.mark.parametrize("signalled", [True, False], ids=["SIGHUP", "watched"])
def test_the_configuration_file_is_reloaded_and_the_last_good_settings_are_kept(
    start: Start, tmp_path: Path, signalled: bool
) -> None:
    path, config = tmp_path / "gfd", tmp_path / "config.yaml"
    config.write_text(SHARED.format(replicas=4))
    process = start(
        GFD, "--use-node-feature-api=false", f"--output-file={path}", f"--config-file={config}"
    )
    wait_until(has_line(path, "nvidia.com/gpu.replicas=4"))

    def rewrite(text: str) -> None:
        config.write_text(text)
        if signalled:
            process.send(signal.SIGHUP)

    rewrite(SHARED.format(replicas="many"))
    process.wait_for_output(Code.CONFIGURATION_INVALID)
    assert has_line(path, "nvidia.com/gpu.replicas=4")()
    rewrite(SHARED.format(replicas=5))
    wait_until(has_line(path, "nvidia.com/gpu.replicas=5"))
    assert process.stop() == 0


def test_sighup_reloads_settings_that_have_not_changed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    process = start("gpuslice", "labels", f"--output-file={path}")
    wait_until(path.exists)
    before = labels(path.read_text())["nvidia.com/gfd.timestamp"]
    time.sleep(1.1)
    process.send(signal.SIGHUP)
    wait_until(lambda: labels(path.read_text())["nvidia.com/gfd.timestamp"] != before)
    assert process.stop() == 0


def test_labels_move_with_the_setting_of_their_file(start: Start, tmp_path: Path) -> None:
    first, second, config = tmp_path / "first", tmp_path / "second", tmp_path / "config.yaml"
    settings = "flags: {{useNodeFeatureAPI: false, gfd: {{outputFile: {file}}}}}\n"
    config.write_text(settings.format(file=first))
    process = start(GFD, f"--config-file={config}")
    wait_until(first.exists)
    config.write_text(settings.format(file=second))
    wait_until(lambda: second.exists() and not first.exists())
    config.write_text(settings.format(file=second).replace("false", "true"))
    # The API needs the name of the node.
    process.wait_for_output(f"{Code.CONFIGURATION_INVALID}.*NODE_NAME")
    assert second.exists()
    assert process.stop() == 0
    assert not second.exists()


def test_labels_stay_while_the_driver_is_missing(
    node: SimNode, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "gfd"
    process = start("gpuslice", "labels", "--sleep-interval=100ms", f"--output-file={path}")
    wait_until(path.exists)
    state = node.directory / "state" / "node"
    away = state.rename(state.with_suffix(".away"))
    process.wait_for_output(f"{Code.RECONCILE_FAILED}.*the NVIDIA driver cannot be used")
    assert has_line(path, "nvidia.com/gpu.count=2")()
    away.rename(state)
    process.wait_for_output(Code.RECOVERED)
    assert process.stop() == 0


def test_without_a_driver_it_exits_or_publishes_what_is_known(once: Once, tmp_path: Path) -> None:
    args = ("--oneshot", "--use-node-feature-api=false", f"--output-file={tmp_path / 'gfd'}")
    no_driver = {"LD_LIBRARY_PATH": ""}
    failed = once(GFD, *args, **no_driver)
    assert failed.returncode == 1
    assert "the NVIDIA driver cannot be used" in failed.stderr
    assert "Traceback" not in failed.stderr
    done = once(GFD, *args, "--fail-on-init-error=false", **no_driver)
    assert done.returncode == 0
    assert "nvidia.com/gpu.count" not in labels((tmp_path / "gfd").read_text())


def test_the_error_names_a_missing_directory(once: Once, tmp_path: Path) -> None:
    done = once("gpuslice", "labels", "--oneshot", f"--output-file={tmp_path / 'no' / 'gfd'}")
    assert done.returncode == 1
    assert str(tmp_path / "no" / "gfd") in done.stderr
    assert "--output-file" in done.stderr


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (["--mode=off"], "choose one of file, node-feature, node"),
        (["--sleep-interval=soon", "--mode=file"], "use a duration"),
        ([], "NODE_NAME"),
        (["--mode=node", "--node-name=worker-1"], "kubeconfig"),
    ],
)
@pytest.mark.parametrize("driver", [True, False], ids=["driver", "no driver"])
def test_invalid_options_end_the_program_with_one_line(
    once: Once, args: list[str], remedy: str, driver: bool
) -> None:
    environment = {} if driver else {"LD_LIBRARY_PATH": ""}
    done = once("gpuslice", "labels", "--oneshot", *args, **environment)
    assert done.returncode == 1
    *log, error = done.stderr.splitlines()
    assert error.startswith("gpuslice labels: ")
    assert remedy in error
    assert all(Code.CONFIGURATION_SELECTED in line for line in log)


def test_the_clique_of_the_fabric_is_labelled(node: SimNode, once: Once) -> None:
    for index in range(2):
        node.set(
            {
                f"gpu.{index}.fabric.state": 3,
                f"gpu.{index}.fabric.cluster": "5e5c2d80-1234-4000-8000-00000000abcd",
                f"gpu.{index}.fabric.clique": 9,
            }
        )
    done = once("gpuslice", "labels", "--oneshot", "--output-file", "")
    expected = "nvidia.com/gpu.clique=5e5c2d80-1234-4000-8000-00000000abcd.9"
    assert expected in done.stdout.splitlines()


class TestCluster:
    def test_the_node_is_labelled_and_outdated_labels_are_removed(
        self, kubernetes: Kubernetes, once: Once, tmp_path: Path
    ) -> None:
        kubernetes.put(
            "nodes",
            "worker-1",
            metadata={
                "labels": {
                    "nvidia.com/gpu.present": "true",
                    "nvidia.com/mig-1g.5gb.count": "7",
                    "nvidia.com/gpu.count": "9",
                }
            },
        )
        args = (
            "labels", "--oneshot", "--no-timestamp", "--mode=node", "--node-name=worker-1",
            f"--kubeconfig={kubernetes.kubeconfig(tmp_path / 'kubeconfig')}",
        )  # fmt: skip
        done = once("gpuslice", *args)
        assert done.returncode == 0, done.stderr
        found = kubernetes.objects["nodes", "worker-1"]["metadata"]["labels"]
        assert found["nvidia.com/gpu.present"] == "true"
        assert found["nvidia.com/gpu.count"] == "2"
        assert "nvidia.com/mig-1g.5gb.count" not in found
        assert once("gpuslice", *args).returncode == 0
        assert kubernetes.count("PATCH") == 1

    def test_a_node_feature_is_created_and_follows_the_node(
        self, kubernetes: Kubernetes, node: SimNode, start: Start, tmp_path: Path
    ) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "gfd", "uid": "uid-set"}
        kubernetes.put("pods", "gfd-x", metadata={"uid": "uid-pod", "ownerReferences": [owner]})
        process = start(
            GFD, "--sleep-interval=100ms", "--node-name=worker-1", "--namespace=gpu",
            "--pod-name=gfd-x", f"--kubeconfig={kubernetes.kubeconfig(tmp_path / 'kubeconfig')}",
        )  # fmt: skip
        feature = ("nodefeatures", "nvidia-features-for-worker-1")
        wait_until(lambda: feature in kubernetes.objects)
        metadata = kubernetes.objects[feature]["metadata"]
        assert metadata["labels"] == {"nfd.node.kubernetes.io/node-name": "worker-1"}
        assert [o["kind"] for o in metadata["ownerReferences"]] == ["DaemonSet", "Pod"]

        def count() -> str:
            return str(kubernetes.objects[feature]["spec"]["labels"]["nvidia.com/gpu.count"])

        assert count() == "2"
        node.faults.lost(0)
        wait_until(lambda: count() == "1")
        assert process.stop() == 0
        assert feature in kubernetes.objects, "the cluster removes it with its owners"

    def test_labels_are_published_when_the_api_server_is_back(
        self, kubernetes: Kubernetes, node: SimNode, start: Start, tmp_path: Path
    ) -> None:
        kubernetes.put("nodes", "worker-1", metadata={"labels": {}})
        process = start(
            "gpuslice", "labels", "--sleep-interval=100ms", "--mode=node", "--node-name=worker-1",
            f"--kubeconfig={kubernetes.kubeconfig(tmp_path / 'kubeconfig')}",
        )  # fmt: skip
        process.wait_for_output(Code.LABELS_PUBLISHED)
        kubernetes.refuse_with = 503
        process.wait_for_output(f"{Code.RECONCILE_FAILED}.*worker-1")
        kubernetes.refuse_with = None
        node.faults.lost(0)
        process.send(signal.SIGHUP)

        def count() -> str:
            return str(
                kubernetes.objects["nodes", "worker-1"]["metadata"]["labels"][
                    "nvidia.com/gpu.count"
                ]
            )

        wait_until(lambda: count() == "1")
        assert process.stop() == 0


def test_rules_that_do_not_fit_the_node_are_a_warning_and_shown_by_the_labels(
    once: Once, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}\n")
    done = once("gpuslice", "labels", "--oneshot", "--output-file=", f"--config-file={config}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"WARNING {Code.INVALID_REPLICAS}: ") == 1
    found = labels(done.stdout)
    assert found["nvidia.com/gpu.replicas"] == "0"
    assert not [key for key in found if key.startswith("gpuslice.io/resource.")]
