"""Refusals that follow each other are delayed."""

from __future__ import annotations

import asyncio
import selectors

import pytest

from gpuslice.kubelet.refusal_delay import RefusalDelay


class _NoWait(selectors.DefaultSelector):
    """Time passes as fast as nothing happens."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _NoWait()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


@pytest.mark.parametrize(
    ("pauses", "expected"),
    [
        ((0.0, 0.1, 0.1, 0.1, 0.1), [0, 1, 2, 4, 4]),
        ((0.0, 20.0, 20.0), [0, 1, 2]),
        ((0.0, 0.1, 60.0, 0.1), [0, 1, 0, 1]),
    ],
)
def test_each_refusal_waits_twice_as_long_as_the_one_before(
    pauses: tuple[float, ...], expected: list[int]
) -> None:
    async def waits() -> list[float]:
        delay, clock = RefusalDelay(1.0), asyncio.get_running_loop().time
        found = []
        for pause in pauses:
            await asyncio.sleep(pause)
            began = clock()
            await delay.wait()
            found.append(clock() - began)
        return found

    with asyncio.Runner(loop_factory=_Loop) as runner:
        assert runner.run(waits()) == pytest.approx(expected)
