"""`python -m gpuslice`."""

from gpuslice.cli.entry_points import gpuslice

if __name__ == "__main__":
    gpuslice()
