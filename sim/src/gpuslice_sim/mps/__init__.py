"""A stand-in for NVIDIA's MPS: control daemon, servers and the command line.

`launch.MpsDaemon` runs one from Python; everything else starts it through
`python -I -m gpuslice_sim.mps`, as `nvidia-cuda-mps-control -d` of a node directory does.
"""
