"""A simulated kubelet: its side of the device plugin protocol, for demos, tests and benchmarks.

    with Kubelet(directory) as kubelet:              # serves directory/kubelet.sock
        endpoint = kubelet.wait_for("aliyun.com/gpu-mem")
        pod = kubelet.admit(Pod("demo", [Container("main", {"aliyun.com/gpu-mem": 6})]))
        answer = kubelet.start_container(pod, "main")   # PreStartContainer, then the cached answer

It chooses devices like the real kubelet, and is as strict: registration connects to the plugin
before it answers, every device list replaces the previous one, messages over 4 MiB break the
stream, and a restart deletes every socket in the directory. Tests with the real kubelet are in
tests/cluster.
"""

from gpuslice_sim.kubelet.cdi_runtime import CdiRuntime
from gpuslice_sim.kubelet.endpoint import Endpoint
from gpuslice_sim.kubelet.kubelet import Kubelet
from gpuslice_sim.kubelet.pods import AdmissionError, Allocation, Container, Pod, StartError

__all__ = [
    "AdmissionError",
    "Allocation",
    "CdiRuntime",
    "Container",
    "Endpoint",
    "Kubelet",
    "Pod",
    "StartError",
]
