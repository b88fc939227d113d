/* A placeholder that can be loaded: the container toolkit needs the file, nothing calls it. */
__attribute__((visibility("default"))) int cuInit(unsigned int flags)
{
    (void)flags;
    return 100; /* CUDA_ERROR_NO_DEVICE */
}
