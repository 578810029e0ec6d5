// What the parts of `scenarios` share.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/types.h>
#include <unistd.h>

inline void must(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s failed\n", what);
        exit(1);
    }
}

// One line of JSON: the PIDs that matter, and how many MiB the owner's allocations keep after its death where that is exact.
inline void ready(pid_t owner, pid_t other, size_t mib = 0) {
    printf("{\"owner\": %d, \"other\": %d", owner, other);
    if (mib != 0) printf(", \"mib\": %zu", mib);
    printf("}\n");
    fflush(stdout);
}

// Instead of a line of PIDs: this driver cannot do it.
inline void skip(const std::string &reason) {
    printf("{\"skip\": \"%s\"}\n", reason.c_str());
    fflush(stdout);
    exit(0);
}

inline void forever() {
    for (;;) pause();
}

// Device memory through the runtime API, touched so that it is really there.
inline void hold(size_t mib) {
    void *p = nullptr;
    must(cudaMalloc(&p, mib << 20) == cudaSuccess, "cudaMalloc");
    must(cudaMemset(p, 1, mib << 20) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess, "cudaMemset");
}

// kinds.cu: ways to allocate. The first three are of the driver API.
void start_context();
CUmemGenericAllocationHandle create(size_t mib, bool shareable);
void map(CUmemGenericAllocationHandle handle, size_t mib);
void vmm(size_t mib);
void managed(size_t mib);
void async_pool(size_t mib);
void async_trim(size_t mib);
void churn(size_t mib);

// sharing.cu: memory and descriptors that reach another process. `self` is the path of this program.
void passed(size_t mib, const char *self);
void in_flight(size_t mib);
void exported(size_t mib, const char *self);
void mem_imported(size_t mib, const char *self);
void dma_buf(size_t mib, const char *self);
void ipc(size_t mib, const char *self);
// What the other process executes: `receive`, `receive-import`, `export`, `import`.
void receive();
void receive_import(size_t mib);
void export_memory(size_t mib);
void import_memory();
