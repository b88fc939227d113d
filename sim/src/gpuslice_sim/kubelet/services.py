"""gRPC services of the kubelet: registration and pod resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import grpc

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.api import podresources_pb2 as pods_api
from gpuslice_sim.kubelet.pods import Allocation


class Devices(Protocol):
    """What the pod resources API shows."""

    def allocations(self) -> list[Allocation]: ...

    def resources(self) -> list[str]: ...

    def devices(self, resource: str) -> dict[str, str]: ...


def registration(
    register: Callable[[api.RegisterRequest, grpc.ServicerContext], api.Empty],
) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "v1beta1.Registration", {"Register": _unary(register, api.RegisterRequest, api.Empty)}
    )


def pod_resources(kubelet: Devices) -> grpc.GenericRpcHandler:
    def list_pods(
        request: pods_api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.ListPodResourcesResponse:
        del request, context
        return pods_api.ListPodResourcesResponse(pod_resources=_by_pod(kubelet.allocations()))

    def get_pod(
        request: pods_api.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.GetPodResourcesResponse:
        for pod in _by_pod(kubelet.allocations()):
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pods_api.GetPodResourcesResponse(pod_resources=pod)
        return context.abort(grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} not found")

    def allocatable(
        request: pods_api.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.AllocatableResourcesResponse:
        del request, context
        return pods_api.AllocatableResourcesResponse(
            devices=[
                pods_api.ContainerDevices(resource_name=resource, device_ids=[device])
                for resource in kubelet.resources()
                for device, health in sorted(kubelet.devices(resource).items())
                if health == "Healthy"
            ]
        )

    return grpc.method_handlers_generic_handler(
        "v1.PodResourcesLister",
        {
            "List": _unary(
                list_pods, pods_api.ListPodResourcesRequest, pods_api.ListPodResourcesResponse
            ),
            "Get": _unary(
                get_pod, pods_api.GetPodResourcesRequest, pods_api.GetPodResourcesResponse
            ),
            "GetAllocatableResources": _unary(
                allocatable,
                pods_api.AllocatableResourcesRequest,
                pods_api.AllocatableResourcesResponse,
            ),
        },
    )


def _by_pod(allocations: Iterable[Allocation]) -> Iterator[pods_api.PodResources]:
    held = list(allocations)
    pods = {id(a.pod): a.pod for a in held}
    for key, pod in pods.items():
        listed = pods_api.PodResources(name=pod.name, namespace=pod.namespace)
        for container in pod.containers:
            if container.init:  # the kubelet does not report init containers
                continue
            entry = listed.containers.add(name=container.name)
            for a in held:
                if id(a.pod) == key and a.container is container:
                    for device in a.ids:
                        entry.devices.add(resource_name=a.resource, device_ids=[device])
        yield listed


def _unary(
    behaviour: Callable[[Any, grpc.ServicerContext], Any], request: type[Any], reply: type[Any]
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=reply.SerializeToString,
    )
