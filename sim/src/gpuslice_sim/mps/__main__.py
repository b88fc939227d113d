"""Entry point of `nvidia-cuda-mps-control`."""

import sys

from gpuslice_sim.mps.cli import main

sys.exit(main(sys.argv[1:]))
