// Programs that hold GPU memory and then misbehave, for a host with a real NVIDIA GPU: `scenarios PART [MIB]`.
//
// Each prints one line of JSON with the PIDs that matter when it is ready, and then waits to be killed by run.py.
// Nothing here changes a setting of the GPU or uses managed memory.
#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <dirent.h>
#include <unistd.h>

static void must(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s failed\n", what);
        exit(1);
    }
}

// Device memory through the runtime API, touched so that it is really there.
static void hold(size_t mib) {
    void *p = nullptr;
    must(cudaMalloc(&p, mib << 20) == cudaSuccess, "cudaMalloc");
    must(cudaMemset(p, 1, mib << 20) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess, "cudaMemset");
}

static void ready(pid_t owner, pid_t other) {
    printf("{\"owner\": %d, \"other\": %d}\n", owner, other);
    fflush(stdout);
}

static void forever() {
    for (;;) pause();
}

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

// A launcher that starts a worker in its own process group and is then killed; the worker has the context.
static void launcher(size_t mib, const char *self) {
    setpgid(0, 0);
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
    must(read(line[0], text, sizeof text) > 0, "read");
    ready(child, getpid());
    forever();
}

static void send_fd(int socket, int fd) {
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {};
    struct iovec io = {&byte, 1};
    struct msghdr message = {};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    must(sendmsg(socket, &message, 0) == 1, "sendmsg");
}

static int receive_fd(int socket) {
    char byte, control[CMSG_SPACE(sizeof(int))] = {};
    struct iovec io = {&byte, 1};
    struct msghdr message = {};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    must(recvmsg(socket, &message, 0) == 1, "recvmsg");
    int fd = -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

// The first descriptor whose path contains `part`.
static int find_fd(const char *part) {
    for (int fd = 3; fd < 256; fd++) {
        char path[64], target[256];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n > 0 && (target[n] = 0, strstr(target, part) != nullptr)) return fd;
    }
    return -1;
}

// Sends its nvidiactl descriptor to a process that was forked before CUDA started and that executes another program.
static void passed(size_t mib, const char *self) {
    int pair[2], done[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(done) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        dup2(pair[1], 0);
        dup2(done[1], 1);
        for (int fd = 3; fd < 64; fd++) close(fd);
        execl(self, self, "receive", nullptr);
        _exit(127);
    }
    close(pair[1]);
    hold(mib);
    send_fd(pair[0], find_fd("nvidiactl"));
    char c;
    must(read(done[0], &c, 1) == 1, "read");
    ready(getpid(), child);
    forever();
}

// An exported allocation sits unread in a socket of a process that never used CUDA.
static void in_flight(size_t mib) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(pair[0]);
        forever();
    }
    close(pair[1]);
    CUdevice device;
    CUcontext context;
    must(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS, "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS, "context");
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle;
    must(cuMemCreate(&handle, mib << 20, &prop, 0) == CUDA_SUCCESS, "cuMemCreate");
    int fd = -1;
    must(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS, "export");
    send_fd(pair[0], fd);
    close(fd);
    ready(getpid(), child);
    forever();
}

// Two programs of one coordinator: the exporter sends the importer a handle; then both wait.
static void ipc(size_t mib, const char *self) {
    signal(SIGCHLD, SIG_IGN); // whoever dies is reaped at once
    int handles[2], lines[2];
    must(pipe(handles) == 0 && pipe(lines) == 0, "pipe");
    pid_t children[2];
    const char *parts[2] = {"export", "import"};
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        must(children[i] >= 0, "fork");
        if (children[i] == 0) {
            dup2(handles[0], 0);
            dup2(i == 0 ? handles[1] : lines[1], 1);
            for (int fd = 3; fd < 64; fd++) close(fd);
            execl(self, self, parts[i], std::to_string(mib).c_str(), nullptr);
            _exit(127);
        }
    }
    char c;
    must(read(lines[0], &c, 1) == 1, "read");
    ready(children[1], children[0]);
    forever();
}

static void export_memory(size_t mib) {
    void *p = nullptr;
    cudaIpcMemHandle_t handle;
    must(cudaMalloc(&p, mib << 20) == cudaSuccess, "cudaMalloc");
    must(cudaIpcGetMemHandle(&handle, p) == cudaSuccess, "cudaIpcGetMemHandle");
    must(write(1, &handle, sizeof handle) == sizeof handle, "write");
    forever();
}

static void import_memory() {
    void *p = nullptr;
    cudaIpcMemHandle_t handle;
    must(read(0, &handle, sizeof handle) == sizeof handle, "read");
    must(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess, "cudaIpcOpenMemHandle");
    must(write(1, "x", 1) == 1, "write");
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
    if (part == "passed") passed(mib, argv[0]);
    if (part == "in-flight") in_flight(mib);
    if (part == "ipc") ipc(mib, argv[0]);
    if (part == "export") export_memory(mib);
    if (part == "import") import_memory();
    if (part == "receive") {
        must(receive_fd(0) >= 0, "receive");
        must(write(1, "x", 1) == 1, "write");
        forever();
    }
    fprintf(stderr, "unknown part %s\n", part.c_str());
    return 2;
}
