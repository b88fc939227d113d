"""Device ids -> the container that holds them: which container is starting?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Holder:
    """A container, and the devices of one resource that it holds."""

    # Namespace and name in the kubelet's list, the UID in its checkpoint. Never both in one list.
    pod: str
    container: str
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Starting:
    """The container that starts."""

    pod: str
    # None: an init container, whose name is not known.
    container: str | None
    # The devices of the resource that all containers of the pod hold together.
    pod_count: int
    # Whether `pod` is a name, and not a UID.
    is_named: bool = True


def starting_container(
    ids: Collection[str],
    listed: Sequence[Holder],
    recorded: Callable[[], Sequence[Holder]],
) -> Starting | None:
    """None: unknown.

    `listed` is what the kubelet lists. It has no init containers: an init container of the same
    size as the app container holds the same ids, and otherwise some of them. It may still have a
    pod that has ended, whose ids another pod holds now. In both cases the kubelet's checkpoint
    decides, which `recorded` reads.
    """
    wanted = frozenset(ids)
    exact = [holder for holder in listed if holder.ids == wanted]
    if len(exact) == 1:
        return _starting(exact[0].pod, exact[0].container, wanted, listed)
    if not exact:
        pods = {holder.pod for holder in listed if holder.ids & wanted}
        if len(pods) == 1:
            return _starting(pods.pop(), None, wanted, listed)
    known = recorded()
    same = [holder for holder in known if holder.ids == wanted]
    if len({holder.pod for holder in same}) != 1:
        return None
    # An init container and an app container of the same size.
    container = same[0].container if len(same) == 1 else None
    return replace(_starting(same[0].pod, container, wanted, known), is_named=False)


def holds(ids: Collection[str], holders: Iterable[Holder]) -> bool:
    """Whether a container holds these devices, among others or not."""
    wanted = frozenset(ids)
    return any(wanted & holder.ids for holder in holders)


def other_resources(
    resource: str,
    ids: Collection[str],
    holders: Mapping[str, Sequence[Holder]],
    limited: Collection[str],
) -> set[str]:
    """The other limited resources of the container that holds exactly these devices.

    `holders` is by resource. An init container and an app container can hold the same devices; what
    one of them holds counts for both, because one of them does not start in any case.
    """
    wanted = frozenset(ids)
    same = {(one.pod, one.container) for one in holders.get(resource, ()) if one.ids == wanted}
    return {
        other
        for other in limited
        if other != resource
        and any((one.pod, one.container) in same for one in holders.get(other, ()))
    }


def pod_uid(ids: Collection[str], recorded: Iterable[Holder]) -> str | None:
    """The UID of the pod that holds exactly these devices. None: unknown.

    `recorded` is the checkpoint of the kubelet. The kubelet's list has no UIDs.
    """
    wanted = frozenset(ids)
    uids = {holder.pod for holder in recorded if holder.ids == wanted}
    return uids.pop() if len(uids) == 1 else None


def _starting(
    pod: str, container: str | None, ids: frozenset[str], holders: Iterable[Holder]
) -> Starting:
    """Init containers leave their devices to the other containers, so each id counts once."""
    held = ids.union(*(holder.ids for holder in holders if holder.pod == pod))
    return Starting(pod, container, len(held))
