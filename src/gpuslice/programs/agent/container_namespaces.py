"""Gives each container a namespace of MPS with its limits.

The CDI specification of a container has all that its namespace needs, so it is made again from it
after the daemon lost it, and nothing else has to be remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gpuslice.codes import Code
from gpuslice.config.settings import MpsNamespaces
from gpuslice.config.timing import Timing
from gpuslice.inject.container import Injection
from gpuslice.kubelet.plugin_service import Refused
from gpuslice.mps.control import MpsUnavailable
from gpuslice.mps.daemons import Daemon
from gpuslice.mps.namespace_control import NamespaceControl
from gpuslice.mps.namespace_marker import in_namespaces
from gpuslice.mps.namespaces import Namespace, namespace_in, unused_namespaces
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# The variables of all specifications, by name. Blocks.
Environments = Callable[[], Mapping[str, Mapping[str, str]]]


class ContainerNamespaces:
    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._controls: dict[str, NamespaceControl] = {}
        # One at a time, for each pipe directory.
        self._locks: dict[str, asyncio.Lock] = {}
        # Those that no specification may have yet, and when they were made.
        self._new: dict[tuple[str, str], float] = {}

    def injection(self, injection: Injection, name: str) -> Injection:
        """For the container with this name: each daemon with namespaces has one for it."""
        daemons = {
            key: replace(daemon, namespace=name) if in_namespaces(daemon) else daemon
            for key, daemon in injection.daemons.items()
        }
        return replace(injection, daemons=daemons)

    async def require(self, resource: str, variables: Mapping[str, str]) -> str | None:
        """Call it before each start of a container with these variables. Raises Refused.

        Returns its namespace; None: it has none.
        """
        namespace = namespace_in(variables)
        if namespace is None:
            return None
        key = namespace.pipe, namespace.name
        # First: a collection that runs meanwhile must know it.
        self._new[key] = asyncio.get_running_loop().time()
        try:
            async with self._lock(namespace.pipe):
                await self._control(namespace.pipe).put(namespace.name, namespace.limits)
        except MpsUnavailable as error:
            raise Refused(
                Code.MPS_NAMESPACE_FAILED,
                f"{resource}: the container waits because it gets no namespace of MPS with its "
                f"limits: {error}",
            ) from error
        return namespace.name

    async def reconcile(self, daemons: Iterable[Daemon], environments: Environments) -> None:
        """Makes namespaces again that a daemon lost, and deletes those of containers that are gone.

        The next round repairs what fails: no container starts without its namespace.
        """
        pipes = [daemon.pipe for daemon in daemons if in_namespaces(daemon)]
        if not pipes:
            return
        found = (await asyncio.to_thread(environments)).values()
        wanted = [one for variables in found if (one := namespace_in(variables)) is not None]
        now = asyncio.get_running_loop().time()
        keep = self._timing.bound_spec_keep
        self._new = {key: made for key, made in self._new.items() if now - made < keep}
        for pipe in pipes:
            try:
                async with self._lock(pipe):
                    await self._reconcile(pipe, [one for one in wanted if one.pipe == pipe])
            except MpsUnavailable:
                continue  # it is probed elsewhere

    async def _reconcile(self, pipe: str, wanted: list[Namespace]) -> None:
        control = self._control(pipe)
        listed = await control.namespaces()
        made = 0
        for one in wanted:
            found = listed.get(one.name)
            # That of a container that starts may differ from its last specification.
            is_new = (pipe, one.name) in self._new
            if found is None or not (is_new or found.holds(one.limits)):
                await control.put(one.name, one.limits)
                made += 1
        needed = {one.name for one in wanted} | {name for at, name in self._new if at == pipe}
        unused = unused_namespaces(listed, needed)
        for name in unused:
            await control.delete(name)
        for code, text, count in (
            (Code.MPS_NAMESPACE_PUT, "made namespaces of MPS again", made),
            (
                Code.MPS_NAMESPACE_REMOVED,
                "removed namespaces of containers that are gone",
                len(unused),
            ),
        ):
            if count:
                log.info(code, text, pipe=pipe, count=count)

    def _control(self, pipe: str) -> NamespaceControl:
        return self._controls.setdefault(pipe, NamespaceControl(pipe, self._timing.mps_command))

    def _lock(self, pipe: str) -> asyncio.Lock:
        return self._locks.setdefault(pipe, asyncio.Lock())


def have_namespaces(daemons: Iterable[Daemon]) -> bool | None:
    """Whether all daemons have them that can; None: none can."""
    possible = [one for one in daemons if one.namespace_use is not MpsNamespaces.OFF]
    return all(map(in_namespaces, possible)) if possible else None
