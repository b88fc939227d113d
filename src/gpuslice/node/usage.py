"""Which devices containers hold: known from Allocate at once, and from the kubelet as the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

# A device that was allocated and is missing from this many lists is not in use: the pod was
# rejected after all, or its container has ended.
_LISTS_UNTIL_FREE = 2

_Device = tuple[str, str]


class Usage:
    """Values only; whoever polls the kubelet passes its lists on."""

    def __init__(self) -> None:
        self._listed: Mapping[str, frozenset[str]] | None = None
        # Allocated, and not in a list of the kubelet so far: how many lists missed it.
        self._pending: Counter[_Device] = Counter()
        # Allocated while the kubelet was writing the list, which cannot contain it.
        self._during_list: set[_Device] = set()

    @property
    def in_use(self) -> dict[str, frozenset[str]] | None:
        """Device ids by resource; None: unknown, because the kubelet was never read."""
        if self._listed is None:
            return None
        found = {resource: set(ids) for resource, ids in self._listed.items()}
        for resource, device_id in self._pending:
            found.setdefault(resource, set()).add(device_id)
        return {resource: frozenset(ids) for resource, ids in sorted(found.items())}

    def allocated(self, resource: str, ids: Iterable[str]) -> None:
        for device_id in ids:
            self._pending[resource, device_id] = 0
            self._during_list.add((resource, device_id))

    def available(self, resource: str, ids: Collection[str]) -> None:
        """The kubelet regards these devices as free."""
        for device in [one for one in self._pending if one[0] == resource and one[1] in ids]:
            del self._pending[device]
        if self._listed is not None and resource in self._listed:
            free = self._listed[resource].difference(ids)
            self._listed = {**self._listed, resource: free}

    def list_started(self) -> None:
        self._during_list.clear()

    def listed(self, devices: Mapping[str, frozenset[str]]) -> None:
        """The kubelet's answer to the list that started last."""
        self._listed = devices
        for device in list(self._pending):
            resource, device_id = device
            if device_id in devices.get(resource, frozenset()):
                del self._pending[device]
            elif device not in self._during_list:
                self._pending[device] += 1
                if self._pending[device] >= _LISTS_UNTIL_FREE:
                    del self._pending[device]

    def unknown(self) -> None:
        """The kubelet cannot be read any more."""
        self._listed = None
