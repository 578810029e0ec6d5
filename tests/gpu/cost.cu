// What a program does that `outlive record` could slow down: `cost PART SECONDS` prints one number.
//
//   malloc64  cudaMalloc and cudaFree of 64 MiB, pairs a second: each pair asks the driver
//   malloc1   the same of 1 MiB, beside another MiB that stays: both are parts of one block that CUDA keeps
//   launch    empty kernels a second, with one wait at the end
//   context   seconds to start CUDA in this process, create its context, and destroy it
//   idle      a context that does nothing until it is killed; prints a line when it is there
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <time.h>
#include <unistd.h>

static void must(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s failed\n", what);
        exit(1);
    }
}

static double now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

__global__ void empty() {}

static void allocate(size_t mib) {
    void *p = nullptr;
    must(cudaMalloc(&p, mib << 20) == cudaSuccess && cudaFree(p) == cudaSuccess, "cudaMalloc and cudaFree");
}

static double allocations(size_t mib, double seconds) {
    void *stays = nullptr;
    must(cudaMalloc(&stays, 1 << 20) == cudaSuccess, "cudaMalloc");
    for (int i = 0; i < 10; i++) allocate(mib);
    long n = 0;
    double began = now(), end = began + seconds;
    for (; now() < end; n++) allocate(mib);
    return n / (now() - began);
}

static double launches(double seconds) {
    empty<<<1, 1>>>();
    must(cudaDeviceSynchronize() == cudaSuccess, "the first kernel");
    long n = 0;
    double began = now(), end = began + seconds;
    while (now() < end) {
        for (int i = 0; i < 100; i++, n++) empty<<<1, 1>>>();
    }
    must(cudaDeviceSynchronize() == cudaSuccess, "kernels");
    return n / (now() - began);
}

static double context() {
    CUdevice device;
    CUcontext context;
    double began = now();
    must(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS, "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS, "cuDevicePrimaryCtxRetain");
    must(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS, "cuDevicePrimaryCtxRelease");
    return now() - began;
}

int main(int argc, char **argv) {
    std::string part = argc > 1 ? argv[1] : "";
    double seconds = argc > 2 ? atof(argv[2]) : 1, result;
    if (part == "malloc64") result = allocations(64, seconds);
    else if (part == "malloc1") result = allocations(1, seconds);
    else if (part == "launch") result = launches(seconds);
    else if (part == "context") result = context();
    else if (part == "idle") {
        must(cudaFree(nullptr) == cudaSuccess, "context");
        puts("ready");
        fflush(stdout);
        for (;;) pause();
    } else {
        fprintf(stderr, "unknown part %s\n", part.c_str());
        return 2;
    }
    printf("%.6f\n", result);
    return 0;
}
