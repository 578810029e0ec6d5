// Ways to allocate GPU memory besides cudaMalloc; the process lives on.
#include "scenarios.h"

void start_context() {
    CUdevice device;
    CUcontext context;
    must(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS, "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS, "context");
}

// Physical memory without an address; it can be exported as a descriptor when it is shareable.
CUmemGenericAllocationHandle create(size_t mib, bool shareable) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    if (shareable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle;
    must(cuMemCreate(&handle, mib << 20, &prop, 0) == CUDA_SUCCESS, "cuMemCreate");
    return handle;
}

// Gives it an address, and touches it.
void map(CUmemGenericAllocationHandle handle, size_t mib) {
    CUdeviceptr address = 0;
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = 0;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    must(cuMemAddressReserve(&address, mib << 20, 0, 0, 0) == CUDA_SUCCESS, "cuMemAddressReserve");
    must(cuMemMap(address, mib << 20, 0, handle, 0) == CUDA_SUCCESS, "cuMemMap");
    must(cuMemSetAccess(address, mib << 20, &access, 1) == CUDA_SUCCESS, "cuMemSetAccess");
    must(cuMemsetD8(address, 1, mib << 20) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS, "cuMemsetD8");
}

void vmm(size_t mib) {
    start_context();
    map(create(mib, false), mib);
    ready(getpid(), 0);
    forever();
}

// Managed memory that lives on the GPU. Never ask for more than a small part of what the GPU has.
void managed(size_t mib) {
    must(mib <= 2048, "managed memory of 2048 MiB or less");
    void *p = nullptr;
    must(cudaMallocManaged(&p, mib << 20) == cudaSuccess, "cudaMallocManaged");
#if CUDART_VERSION >= 13000
    cudaMemLocation gpu = {};
    gpu.type = cudaMemLocationTypeDevice;
    gpu.id = 0;
    must(cudaMemPrefetchAsync(p, mib << 20, gpu, 0) == cudaSuccess, "cudaMemPrefetchAsync");
#else
    must(cudaMemPrefetchAsync(p, mib << 20, 0) == cudaSuccess, "cudaMemPrefetchAsync");
#endif
    must(cudaMemset(p, 1, mib << 20) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess, "cudaMemset");
    ready(getpid(), 0);
    forever();
}

static void *from_pool(size_t mib) {
    void *p = nullptr;
    must(cudaMallocAsync(&p, mib << 20, nullptr) == cudaSuccess, "cudaMallocAsync");
    must(cudaMemsetAsync(p, 1, mib << 20, nullptr) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess, "cudaMemsetAsync");
    return p;
}

void async_pool(size_t mib) {
    from_pool(mib);
    ready(getpid(), 0);
    forever();
}

// The pool keeps what was freed until it is trimmed.
void async_trim(size_t mib) {
    cudaMemPool_t pool;
    unsigned long long keep = ~0ull;
    must(cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess, "cudaDeviceGetDefaultMemPool");
    must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep) == cudaSuccess, "cudaMemPoolSetAttribute");
    void *p = from_pool(mib);
    must(cudaFreeAsync(p, nullptr) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess, "cudaFreeAsync");
    must(cudaMemPoolTrimTo(pool, 0) == cudaSuccess, "cudaMemPoolTrimTo");
    ready(getpid(), 0);
    forever();
}

// Allocates and frees all the time, beside what it holds.
void churn(size_t mib) {
    hold(mib);
    ready(getpid(), 0);
    for (;;) {
        void *p = nullptr;
        must(cudaMalloc(&p, 64 << 20) == cudaSuccess, "cudaMalloc");
        usleep(100000);
        must(cudaFree(p) == cudaSuccess, "cudaFree");
        usleep(100000);
    }
}
