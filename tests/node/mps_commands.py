"""Commands to an MPS daemon, by its control program. The daemon serves one program at a time."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuslice_sim.process import PATIENCE_SECONDS, as_user

# A command that always has an answer.
PROOF = "get_default_active_thread_percentage\n"


def send(argv: Sequence[str | Path], pipe: Path | str, line: str, user: int | None = None) -> str:
    """The answer. Repeated while the daemon serves another program."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        done = subprocess.run(
            as_user(user, *map(str, argv)),
            env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
            input=f"{line}\n{PROOF}",
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        if done.stdout:
            return done.stdout.strip().rpartition("\n")[0]
        assert "Cannot find" not in done.stderr, done.stderr
        assert time.monotonic() < deadline, f"{line!r}: no answer"
        time.sleep(0.01)


@contextlib.contextmanager
def occupied(control: Path, pipe: Path) -> Iterator[None]:
    """A program that keeps its connection to the daemon."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (program := _connected(control, pipe)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with program:
        yield
        assert program.stdin is not None
        program.stdin.close()


def _connected(control: Path, pipe: Path) -> subprocess.Popen[str] | None:
    """None if the daemon dropped it. Its output shows that only when it ends."""
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
    program = subprocess.Popen(
        [control],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )
    assert program.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        program.stdin.write(PROOF)
    time.sleep(0.1)
    other = subprocess.run(
        [control], env=env, input=PROOF, capture_output=True, text=True, check=False
    )
    if program.poll() is None and not other.stdout:
        return program
    program.kill()
    with contextlib.suppress(BrokenPipeError):
        program.communicate()
    return None
