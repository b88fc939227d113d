"""`gpuslice agent`: advertises the node's GPUs to the kubelet and allocates them."""
