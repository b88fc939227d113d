"""Metrics in the format of Prometheus. Imported only by an agent that serves metrics."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpuslice.telemetry.metrics import Recorder

_TEXT = "text/plain; version=0.0.4"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Exposition:
    """Has its own registry: the global one of the library is shared by the whole process."""

    def __init__(self, recorder: Recorder, cache_seconds: float) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_AgentMetrics(recorder))
        ProcessCollector(registry=self._registry)
        self._cache_seconds = cache_seconds
        # Format -> when it was rendered, the metrics, and their content type.
        self._rendered: dict[str, tuple[float, bytes, str]] = {}

    def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics and their content type, in the format that the client prefers.

        They are rendered once in a while, however many clients there are: Allocate waits meanwhile.
        """
        wanted = _OPENMETRICS if _prefers_openmetrics(accept) else _TEXT
        now = time.monotonic()
        moment, content, content_type = self._rendered.get(wanted, (-math.inf, b"", ""))
        if now - moment >= self._cache_seconds:
            encode, content_type = choose_encoder(wanted)
            content = encode(self._registry)
            self._rendered[wanted] = now, content, content_type
        return content, content_type


def _prefers_openmetrics(accept: str) -> bool:
    """The library raises errors for versions that it does not know, and repeats them in answers."""
    for accepted in accept.split(","):
        kind, *parameters = (part.strip().replace(" ", "") for part in accepted.split(";"))
        versions = [one for one in parameters if one.startswith("version=")]
        if kind == "application/openmetrics-text" and versions in ([], ["version=1.0.0"]):
            return True
    return False


class _AgentMetrics(Collector):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._version = version("gpuslice")

    def collect(self) -> Iterable[Metric]:
        yield self._build()
        yield from _configuration(self._recorder)
        yield from _resources(self._recorder)
        yield _gpus(self._recorder)
        yield _binding(self._recorder)
        yield _namespaces(self._recorder)
        yield from _tiers(self._recorder)
        if self._recorder.is_watching is not None:
            yield from _watchdog(self._recorder)

    def _build(self) -> Metric:
        build = GaugeMetricFamily(
            "gpuslice_build_info", "Versions of gpuslice and Python.", labels=["version", "python"]
        )
        build.add_metric([self._version, platform.python_version()], 1)
        return build


def _configuration(recorder: Recorder) -> Iterable[Metric]:
    reloads = CounterMetricFamily(
        "gpuslice_config_reloads",
        "Number of times that the configuration was loaded, including the first.",
        labels=["result"],
    )
    for ok in (True, False):
        reloads.add_metric([_result(ok)], recorder.reloads[ok])
    yield reloads
    if recorder.last_reload_ok is not None:
        yield GaugeMetricFamily(
            "gpuslice_config_last_reload_success",
            "1 if the configuration that was loaded last is in force, 0 if an older one is.",
            value=recorder.last_reload_ok,
        )
    if recorder.last_good_reload is not None:
        yield GaugeMetricFamily(
            "gpuslice_config_last_reload_success_timestamp_seconds",
            "Time at which the configuration in force was loaded.",
            value=recorder.last_good_reload,
        )


def _resources(recorder: Recorder) -> Iterable[Metric]:
    devices = GaugeMetricFamily(
        "gpuslice_devices",
        "Devices of the resource. The kubelet counts those that are healthy. Withheld devices are "
        "free, but on another GPU than the free ones that are advertised.",
        labels=["resource", "health"],
    )
    for resource, counts in sorted(recorder.counts.items()):
        devices.add_metric([resource, "healthy"], counts.healthy)
        devices.add_metric([resource, "unhealthy"], counts.unhealthy)
        devices.add_metric([resource, "withheld"], counts.withheld)
    yield devices
    free = GaugeMetricFamily(
        "gpuslice_devices_free",
        "Healthy devices that no container holds. Missing if the kubelet does not tell.",
        labels=["resource", "uuid"],
    )
    for resource, counts in sorted(recorder.counts.items()):
        for uuid, count in sorted(counts.free.items()):
            free.add_metric([resource, uuid], count)
    yield free
    in_use = GaugeMetricFamily(
        "gpuslice_devices_in_use",
        "Devices that containers hold. Missing if the kubelet does not tell.",
        labels=["resource"],
    )
    for resource, counts in sorted(recorder.counts.items()):
        if counts.in_use is not None:
            in_use.add_metric([resource], counts.in_use)
    yield in_use
    registered = GaugeMetricFamily(
        "gpuslice_registered",
        "1 if the resource is registered with the kubelet.",
        labels=["resource"],
    )
    for resource, is_registered in sorted(recorder.registrations.items()):
        registered.add_metric([resource], is_registered)
    yield registered
    allocations = CounterMetricFamily(
        "gpuslice_allocations",
        "Requests of the kubelet to allocate devices.",
        labels=["resource", "result"],
    )
    for (resource, ok), count in sorted(recorder.allocations.items()):
        allocations.add_metric([resource, _result(ok)], count)
    yield allocations


def _namespaces(recorder: Recorder) -> Metric:
    metric = GaugeMetricFamily(
        "gpuslice_mps_namespaces",
        "1 if containers with slices are in namespaces of MPS, 0 if they are not.",
    )
    if recorder.has_namespaces is not None:
        metric.add_metric([], recorder.has_namespaces)
    return metric


def _binding(recorder: Recorder) -> Metric:
    binding = GaugeMetricFamily(
        "gpuslice_limits_bound",
        "1 for the way in which containers get their limits: cdi, or env, which pods can override.",
        labels=["by"],
    )
    if recorder.binding_mode is not None:
        for mode in ("cdi", "env"):
            binding.add_metric([mode], recorder.binding_mode == mode)
    return binding


def _tiers(recorder: Recorder) -> Iterable[Metric]:
    node = GaugeMetricFamily(
        "gpuslice_limits_tier",
        "1 for the tier of the node: how firmly the limits of containers hold at least.",
        labels=["tier"],
    )
    if recorder.node_tier is not None:
        node.add_metric([recorder.node_tier], 1)
    yield node
    resources = GaugeMetricFamily(
        "gpuslice_resource_limits_tier",
        "1 for the tier of the resource: how firmly the limits of its containers hold.",
        labels=["resource", "tier"],
    )
    for resource, tier in sorted(recorder.resource_tiers.items()):
        resources.add_metric([resource, tier], 1)
    yield resources
    limited = CounterMetricFamily(
        "gpuslice_memory_limits_set",
        "Memory limits of cgroups that were set in the driver.",
        labels=["result"],
    )
    for ok, count in sorted(recorder.memory_limits.items()):
        limited.add_metric([_result(ok)], count)
    yield limited


def _gpus(recorder: Recorder) -> Metric:
    gpus = GaugeMetricFamily(
        "gpuslice_gpu_healthy", "1 if the GPU is healthy, 0 if it is not.", labels=["uuid", "minor"]
    )
    for uuid, (minor, healthy) in sorted(recorder.gpus.items()):
        gpus.add_metric([uuid, str(minor)], healthy)
    return gpus


def _watchdog(recorder: Recorder) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "gpuslice_watchdog_watching",
        "1 if the watchdog compares the memory of containers with their grants.",
        value=bool(recorder.is_watching),
    )
    labels = ["namespace", "pod", "container", "uuid"]
    used = GaugeMetricFamily(
        "gpuslice_container_memory_bytes",
        "Memory of the GPU that all processes of the container use together.",
        labels=labels,
    )
    granted = GaugeMetricFamily(
        "gpuslice_container_memory_granted_bytes",
        "Memory of the GPU that the container was granted.",
        labels=labels,
    )
    allowed = GaugeMetricFamily(
        "gpuslice_container_memory_allowed_bytes",
        "Memory of the GPU beyond which the watchdog acts: what was granted, and slack.",
        labels=labels,
    )
    for one in recorder.container_memories:
        names = [one.namespace, one.pod, one.container, one.gpu]
        used.add_metric(names, one.used_bytes)
        granted.add_metric(names, one.granted_bytes)
        allowed.add_metric(names, one.allowed_bytes)
    yield used
    yield granted
    yield allowed
    yield GaugeMetricFamily(
        "gpuslice_unattributed_processes",
        "Processes on GPUs that belong to no container with shares. The watchdog ignores them.",
        value=recorder.unattributed_processes,
    )
    violations = CounterMetricFamily(
        "gpuslice_memory_violations",
        "Number of times that a container began to use more memory than it was granted.",
        labels=["uuid"],
    )
    for uuid, count in sorted(recorder.violations.items()):
        violations.add_metric([uuid], count)
    yield violations
    actions = CounterMetricFamily(
        "gpuslice_watchdog_actions",
        "What the watchdog did about containers that use too much memory.",
        labels=["action", "result"],
    )
    for (action, ok), count in sorted(recorder.watchdog_actions.items()):
        actions.add_metric([action, _result(ok)], count)
    yield actions


def _result(ok: bool) -> str:
    return "ok" if ok else "error"
