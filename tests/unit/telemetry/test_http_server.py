from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuslice.config.errors import ConfigError
from gpuslice.telemetry.http_server import metrics_at
from gpuslice.telemetry.metrics import ContainerMemory, DeviceCounts, Metrics, NoMetrics
from tests.surroundings import free_address


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    text: str


def ask(tell: Callable[[Metrics], None], path: str, **headers: str) -> Answer:
    """What a reader gets from an agent that was told something."""

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(url: str) -> Answer:
        try:
            with direct.open(urllib.request.Request(url, headers=headers)) as found:
                return Answer(found.status, found.headers["Content-Type"], found.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers["Content-Type"], error.read().decode())

    async def main() -> Answer:
        address = free_address()
        async with metrics_at(address) as metrics:
            tell(metrics)
            return await asyncio.to_thread(get, f"http://{address}{path}")

    return asyncio.run(main())


def samples(answer: Answer) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith("gpuslice_")
    }


def busy(metrics: Metrics) -> None:
    metrics.reloaded(True)
    counts = DeviceCounts(healthy=3, unhealthy=1, withheld=2, in_use=1, free={"GPU-1": 2})
    metrics.devices("nvidia.com/gpu", counts)
    metrics.registered("nvidia.com/gpu", True)
    metrics.allocated("nvidia.com/gpu", True)
    metrics.allocated("nvidia.com/gpu", True)
    metrics.allocated("nvidia.com/gpu", False)
    metrics.gpu("GPU-1", 0, True)
    metrics.gpu("GPU-2", 1, False)
    metrics.watching(True)
    metrics.container_memory([ContainerMemory("ns", "pod", "main", "GPU-1", 300, 200, 250)], 4)
    metrics.memory_exceeded("GPU-1")
    metrics.watchdog_acted("terminate", True)
    metrics.watchdog_acted("kill", False)


def test_all_metrics_are_exposed() -> None:
    answer = ask(busy, "/metrics")
    assert answer.status == 200
    found = samples(answer)
    assert found["gpuslice_config_last_reload_success_timestamp_seconds",] > 1.7e9
    assert {key: value for key, value in found.items() if "_seconds" not in key[0]} == {
        next(key for key in found if key[0] == "gpuslice_build_info"): 1,
        ("gpuslice_config_reloads_total", "ok"): 1,
        ("gpuslice_config_reloads_total", "error"): 0,
        ("gpuslice_config_last_reload_success",): 1,
        ("gpuslice_devices", "healthy", "nvidia.com/gpu"): 3,
        ("gpuslice_devices", "unhealthy", "nvidia.com/gpu"): 1,
        ("gpuslice_devices", "withheld", "nvidia.com/gpu"): 2,
        ("gpuslice_devices_free", "nvidia.com/gpu", "GPU-1"): 2,
        ("gpuslice_devices_in_use", "nvidia.com/gpu"): 1,
        ("gpuslice_registered", "nvidia.com/gpu"): 1,
        ("gpuslice_allocations_total", "nvidia.com/gpu", "ok"): 2,
        ("gpuslice_allocations_total", "nvidia.com/gpu", "error"): 1,
        ("gpuslice_gpu_healthy", "0", "GPU-1"): 1,
        ("gpuslice_gpu_healthy", "1", "GPU-2"): 0,
        ("gpuslice_watchdog_watching",): 1,
        ("gpuslice_container_memory_bytes", "main", "ns", "pod", "GPU-1"): 300,
        ("gpuslice_container_memory_granted_bytes", "main", "ns", "pod", "GPU-1"): 200,
        ("gpuslice_container_memory_allowed_bytes", "main", "ns", "pod", "GPU-1"): 250,
        ("gpuslice_unattributed_processes",): 4,
        ("gpuslice_memory_violations_total", "GPU-1"): 1,
        ("gpuslice_watchdog_actions_total", "terminate", "ok"): 1,
        ("gpuslice_watchdog_actions_total", "kill", "error"): 1,
    }


def test_openmetrics_is_used_if_the_client_prefers_it() -> None:
    answer = ask(busy, "/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert answer.content_type.startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_a_withdrawn_resource_has_no_gauges_and_keeps_its_counters() -> None:
    def tell(metrics: Metrics) -> None:
        busy(metrics)
        metrics.forget("nvidia.com/gpu")
        metrics.forget_gpu("GPU-1")
        metrics.forget_gpu("GPU-2")

    names = {key[0] for key in samples(ask(tell, "/metrics"))}
    assert "gpuslice_allocations_total" in names
    assert names.isdisjoint({"gpuslice_devices", "gpuslice_registered", "gpuslice_gpu_healthy"})


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (lambda metrics: metrics.reloaded(False), "the last good one is in force"),
        (
            lambda metrics: metrics.devices("nvidia.com/mig-1g.5gb", DeviceCounts(7, 0)),
            "not registered with the kubelet: nvidia.com/mig-1g.5gb",
        ),
        (
            lambda metrics: metrics.registered("nvidia.com/gpu", False),
            "not registered with the kubelet: nvidia.com/gpu",
        ),
    ],
)
def test_readyz_states_why_an_agent_is_not_ready(
    tell: Callable[[Metrics], None], reason: str
) -> None:
    def then(metrics: Metrics) -> None:
        busy(metrics)
        tell(metrics)

    answer = ask(then, "/readyz")
    assert answer.status == 503
    assert reason in answer.text


def test_an_agent_is_not_ready_before_it_has_read_its_configuration() -> None:
    answer = ask(lambda metrics: None, "/readyz")
    assert (answer.status, answer.text) == (503, "the configuration is not loaded yet\n")


def test_an_agent_is_ready_when_its_resources_are_registered() -> None:
    assert ask(busy, "/readyz").status == 200


def test_a_node_without_gpus_is_ready() -> None:
    assert ask(lambda metrics: metrics.reloaded(True), "/readyz").status == 200


def test_an_agent_is_live_even_if_it_is_not_ready() -> None:
    assert ask(lambda metrics: metrics.reloaded(False), "/healthz").status == 200


def test_other_paths_are_not_found_and_query_parameters_are_ignored() -> None:
    assert ask(busy, "/").status == 404
    assert ask(busy, "/healthz?verbose=1").status == 200


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"hello\r\n\r\n", 400),
        (b"\xff\x00\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000, 400),
    ],
)
def test_invalid_requests_get_a_response(request_line: bytes, status: int) -> None:
    async def main() -> bytes:
        address = free_address()
        async with metrics_at(address):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(request_line)
            head = await reader.readline()
            writer.close()
            return head

    assert re.match(rb"HTTP/1.1 (\d+)", asyncio.run(main()))[1] == str(status).encode()  # type: ignore[index]


def test_a_client_that_stays_connected_does_not_block_shutdown() -> None:
    async def main() -> None:
        address = free_address()
        async with metrics_at(address):
            _, writer = await asyncio.open_connection(*address.split(":"))
            await asyncio.sleep(0.05)
        writer.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_error_names_an_address_that_is_in_use() -> None:
    async def main(address: str) -> None:
        async with metrics_at(address), metrics_at(address):
            raise AssertionError

    with pytest.raises(
        ConfigError, match=r"metrics-address: '127\.[\d.]+:\d+'.*use a free address"
    ):
        asyncio.run(main(free_address()))


def test_without_metrics_the_library_is_not_loaded() -> None:
    async def main() -> None:
        async with metrics_at(None) as metrics:
            assert isinstance(metrics, NoMetrics)
            busy(metrics)
            metrics.forget("nvidia.com/gpu")
            metrics.forget_gpu("GPU-1")

    asyncio.run(main())
    program = (
        "import sys, gpuslice.telemetry.http_server, gpuslice.telemetry.metrics\n"
        "print('prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
