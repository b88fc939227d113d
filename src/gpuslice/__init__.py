"""Any-size slices of NVIDIA GPUs for Kubernetes pods, with limits that hold."""
