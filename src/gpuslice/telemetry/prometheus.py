"""Figures in the format of Prometheus. Imported only by an agent that serves metrics."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpuslice.telemetry.metrics import Recorder


class Exposition:
    """Has a registry of its own: the library's global one would be shared by all of a process."""

    def __init__(self, recorder: Recorder) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(recorder))
        ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The figures of this moment and their content type, in the format the reader prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Figures(Collector):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._version = version("gpuslice")

    def collect(self) -> Iterable[Metric]:
        yield self._build()
        yield from _configuration(self._recorder)
        yield from _resources(self._recorder)
        yield _gpus(self._recorder)

    def _build(self) -> Metric:
        build = GaugeMetricFamily(
            "gpuslice_build_info", "What runs here.", labels=["version", "python"]
        )
        build.add_metric([self._version, platform.python_version()], 1)
        return build


def _configuration(recorder: Recorder) -> Iterable[Metric]:
    reloads = CounterMetricFamily(
        "gpuslice_config_reloads",
        "How often the configuration was read, the first time included.",
        labels=["result"],
    )
    for ok in (True, False):
        reloads.add_metric([_result(ok)], recorder.reloads[ok])
    yield reloads
    if recorder.last_reload_ok is not None:
        yield GaugeMetricFamily(
            "gpuslice_config_last_reload_success",
            "1 if the configuration is in force as it was last read, 0 if an older one is.",
            value=recorder.last_reload_ok,
        )
    if recorder.last_good_reload is not None:
        yield GaugeMetricFamily(
            "gpuslice_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read.",
            value=recorder.last_good_reload,
        )


def _resources(recorder: Recorder) -> Iterable[Metric]:
    devices = GaugeMetricFamily(
        "gpuslice_devices", "Devices on offer to the kubelet.", labels=["resource", "health"]
    )
    for resource, (healthy, unhealthy) in sorted(recorder.offered.items()):
        devices.add_metric([resource, "healthy"], healthy)
        devices.add_metric([resource, "unhealthy"], unhealthy)
    yield devices
    in_use = GaugeMetricFamily(
        "gpuslice_devices_in_use",
        "Devices that containers hold. Missing if the kubelet does not tell.",
        labels=["resource"],
    )
    for resource, count in sorted(recorder.used.items()):
        in_use.add_metric([resource], count)
    yield in_use
    registered = GaugeMetricFamily(
        "gpuslice_registered", "1 if the kubelet took the registration.", labels=["resource"]
    )
    for resource, yes in sorted(recorder.registrations.items()):
        registered.add_metric([resource], yes)
    yield registered
    allocations = CounterMetricFamily(
        "gpuslice_allocations",
        "Requests of the kubelet to give devices to containers.",
        labels=["resource", "result"],
    )
    for (resource, ok), count in sorted(recorder.allocations.items()):
        allocations.add_metric([resource, _result(ok)], count)
    yield allocations


def _gpus(recorder: Recorder) -> Metric:
    healthy = GaugeMetricFamily(
        "gpuslice_gpu_healthy", "0 if the GPU takes no new work.", labels=["uuid", "minor"]
    )
    for uuid, (minor, yes) in sorted(recorder.gpus.items()):
        healthy.add_metric([uuid, str(minor)], yes)
    return healthy


def _result(ok: bool) -> str:
    return "ok" if ok else "error"
