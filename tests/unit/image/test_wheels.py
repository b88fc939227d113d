"""Python packages, and the programs that start them."""

from __future__ import annotations

from pathlib import Path

from deploy.image.tree import File, read_directory
from deploy.image.wheels import program, tidy


def test_what_only_installers_and_compilers_read_is_left_out(tmp_path: Path) -> None:
    kept = ["one/__init__.py", "one/_fast.so", "one-1.dist-info/METADATA", "one/bin/data"]
    dropped = [
        *("bin/one", ".lock", "one/_fast.pyx", "one/types.pyi"),
        *("one-1.dist-info/RECORD", "one-1.dist-info/INSTALLER", "one-1.dist-info/direct_url.json"),
    ]
    for name in kept + dropped:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    tidy(tmp_path)
    files = {path for path, entry in read_directory(tmp_path, "at").items() if type(entry) is File}
    assert files == {f"at/{name}" for name in kept}
    assert not (tmp_path / "bin").exists()


def test_the_interpreter_of_a_program_gets_no_flags() -> None:
    """config-manager finds the agent by the first two words of its command line."""
    script = program("gpuslice.cli.nvidia:main")
    assert isinstance(script, File)
    assert script.mode == 0o755
    first, *rest = script.content.decode().splitlines()
    assert first == "#!/usr/bin/python3"
    assert rest == ["import sys", "from gpuslice.cli.nvidia import main", "sys.exit(main())"]
