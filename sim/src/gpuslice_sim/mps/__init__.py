"""A stand-in for NVIDIA's MPS: control daemon, servers and the command line.

`launch.MpsDaemon` runs one from Python; everything else is reached through
`python -I -m gpuslice_sim.mps`, which a node directory offers as `nvidia-cuda-mps-control`.
Only the standard library is imported here, because every control command starts an interpreter.
"""
