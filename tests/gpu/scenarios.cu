// Programs that hold GPU memory and then misbehave, for a host with a real NVIDIA GPU: `scenarios PART [MIB]`.
//
// Each prints one line of JSON with the PIDs that matter when it is ready, and then waits to be killed by run.py.
// Nothing here changes a setting of the GPU. Built from scenarios.cu, sharing.cu and kinds.cu.
#include "scenarios.h"
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

// Closes every NVIDIA descriptor whose path does not contain `keep`.
static void keep_only(const char *keep) {
    DIR *dir = opendir("/proc/self/fd");
    must(dir != nullptr, "opendir");
    for (struct dirent *e; (e = readdir(dir)) != nullptr;) {
        char path[64], target[256];
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n < 0) continue;
        target[n] = 0;
        if (strncmp(target, "/dev/nvidia", 11) == 0 && strstr(target, keep) == nullptr) close(atoi(e->d_name));
    }
    closedir(dir);
}

// The owner forks a child that executes nothing; the child keeps the descriptors whose path contains `keep`.
static void fork_child(size_t mib, const char *keep) {
    hold(mib);
    int done[2];
    must(pipe(done) == 0, "pipe");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        keep_only(keep);
        must(write(done[1], "x", 1) == 1, "write");
        forever();
    }
    char c;
    must(read(done[0], &c, 1) == 1, "read");
    ready(getpid(), child);
    forever();
}

static void fork_exec(size_t mib) {
    hold(mib);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        execlp("sleep", "sleep", "600", nullptr);
        _exit(127);
    }
    ready(getpid(), child);
    forever();
}

static void *worker(void *) {
    forever();
    return nullptr;
}

// The main thread ends; a worker thread lives and holds everything.
static void leader(size_t mib) {
    hold(mib);
    pthread_t thread;
    must(pthread_create(&thread, nullptr, worker, nullptr) == 0, "pthread_create");
    ready(getpid(), 0);
    pthread_exit(nullptr);
}

// Crashes with a large core.
static void crash(size_t mib) {
    struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    must(setrlimit(RLIMIT_CORE, &unlimited) == 0, "setrlimit");
    hold(mib);
    size_t ballast = 16ull << 30; // about ten seconds of writing
    char *p = static_cast<char *>(malloc(ballast));
    must(p != nullptr, "malloc");
    for (size_t i = 0; i < ballast; i += 4096) p[i] = static_cast<char>(i >> 12);
    ready(getpid(), 0);
    usleep(500000);
    abort();
}

// Pinned host memory makes the exit slow.
static void pinned(size_t mib) {
    hold(512);
    void *p = nullptr;
    must(cudaMallocHost(&p, mib << 20) == cudaSuccess, "cudaMallocHost");
    memset(p, 1, mib << 20);
    ready(getpid(), 0);
    forever();
}

// SIGTERM is blocked, ignored or handled.
static void on_term(int) {}
static void stubborn(size_t mib, const char *how) {
    // Before CUDA starts its threads, so that they inherit the mask.
    if (strcmp(how, "term-ignored") == 0) signal(SIGTERM, SIG_IGN);
    if (strcmp(how, "term-handled") == 0) signal(SIGTERM, on_term);
    if (strcmp(how, "term-blocked") == 0) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigprocmask(SIG_BLOCK, &set, nullptr);
    }
    hold(mib);
    ready(getpid(), 0);
    forever();
}

// A process that executes `hold` and holds memory when this returns.
static pid_t start_hold(size_t mib, const char *self) {
    int line[2];
    must(pipe(line) == 0, "pipe");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        dup2(line[1], 1);
        execl(self, self, "hold", std::to_string(mib).c_str(), nullptr);
        _exit(127);
    }
    char text[128];
    close(line[1]);
    must(read(line[0], text, sizeof text) > 0, "read");
    return child;
}

// A launcher that starts a worker in its own process group and is then killed; the worker has the context.
static void launcher(size_t mib, const char *self) {
    setpgid(0, 0);
    pid_t child = start_hold(mib, self);
    ready(child, getpid());
    forever();
}

// Two programs hold memory at once, the second half as much.
static void two(size_t mib, const char *self) {
    pid_t first = start_hold(mib, self), second = start_hold(mib / 2, self);
    ready(first, second);
    forever();
}

int main(int argc, char **argv) {
    std::string part = argc > 1 ? argv[1] : "";
    size_t mib = argc > 2 ? strtoull(argv[2], nullptr, 10) : 2048;
    if (part == "hold") hold(mib), ready(getpid(), 0), forever();
    if (part == "fork-all") fork_child(mib, "/dev/nvidia");
    if (part == "fork-ctl") fork_child(mib, "nvidiactl");
    if (part == "fork-uvm") fork_child(mib, "nvidia-uvm");
    if (part == "fork-gpu") fork_child(mib, "nvidia0");
    if (part == "fork-exec") fork_exec(mib);
    if (part == "leader") leader(mib);
    if (part == "crash") crash(mib);
    if (part == "pinned") pinned(mib);
    if (part.rfind("term-", 0) == 0) stubborn(mib, part.c_str());
    if (part == "launcher") launcher(mib, argv[0]);
    if (part == "two") two(mib, argv[0]);
    if (part == "vmm") vmm(mib);
    if (part == "managed") managed(mib);
    if (part == "async-pool") async_pool(mib);
    if (part == "churn") churn(mib);
    if (part == "async-trim") async_trim(mib);
    if (part == "passed") passed(mib, argv[0]);
    if (part == "in-flight") in_flight(mib);
    if (part == "exported") exported(mib, argv[0]);
    if (part == "mem-imported") mem_imported(mib, argv[0]);
    if (part == "dma-buf") dma_buf(mib, argv[0]);
    if (part == "ipc") ipc(mib, argv[0]);
    if (part == "export") export_memory(mib);
    if (part == "import") import_memory();
    if (part == "receive") receive();
    if (part == "receive-import") receive_import(mib);
    fprintf(stderr, "unknown part %s\n", part.c_str());
    return 2;
}
