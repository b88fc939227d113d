"""A simulated MPS: control daemon, servers and command line.

`launch.MpsDaemon` starts a daemon from Python. `nvidia-cuda-mps-control -d` of a node directory
starts it by `python -I -m gpuslice_sim.mps`.
"""
