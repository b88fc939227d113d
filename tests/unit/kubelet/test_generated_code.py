import subprocess
import sys
from pathlib import Path

import pytest

import gpuslice

SOURCE = Path(gpuslice.__file__).parent.parent
API = Path("gpuslice/kubelet/api")


@pytest.mark.parametrize("proto", sorted(p.name for p in (SOURCE / API).glob("*.proto")))
def test_the_generated_code_is_that_of_the_proto_files(proto: str, tmp_path: Path) -> None:
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, str(API / proto)],
        cwd=SOURCE,
        check=True,
    )
    made = list((tmp_path / API).iterdir())
    assert len(made) == 2
    for path in made:
        assert path.read_text() == (SOURCE / API / path.name).read_text(), "run: make proto"
