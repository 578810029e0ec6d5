// Memory and descriptors that reach another process, which outlives the owner.
#include "scenarios.h"
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

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
    must(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != nullptr, "recvmsg");
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

// A process that executes another part, forked before CUDA starts here: it has a socket from us as its stdin, and writes one
// byte when it is ready.
struct Receiver {
    pid_t pid;
    int socket, done;

    Receiver(const char *self, const char *part, size_t mib) {
        int pair[2], ends[2];
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(ends) == 0, "socketpair");
        pid = fork();
        must(pid >= 0, "fork");
        if (pid == 0) {
            dup2(pair[1], 0);
            dup2(ends[1], 1);
            for (int fd = 3; fd < 64; fd++) close(fd);
            execl(self, self, part, std::to_string(mib).c_str(), nullptr);
            _exit(127);
        }
        close(pair[1]);
        close(ends[1]);
        socket = pair[0];
        done = ends[0];
    }

    // Hands it a descriptor and waits until it says that it is ready.
    void give(int fd) {
        char c;
        send_fd(socket, fd);
        must(read(done, &c, 1) == 1, "the receiver");
    }
};

// Sends its nvidiactl descriptor to a process that never used CUDA.
void passed(size_t mib, const char *self) {
    Receiver receiver(self, "receive", mib);
    hold(mib);
    receiver.give(find_fd("nvidiactl"));
    ready(getpid(), receiver.pid);
    forever();
}

// The descriptor of an export of `handle`.
static int export_fd(CUmemGenericAllocationHandle handle) {
    int fd = -1;
    must(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS, "export");
    return fd;
}

// An exported allocation sits unread in a socket of a process that never used CUDA.
void in_flight(size_t mib) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        close(pair[0]);
        forever();
    }
    close(pair[1]);
    start_context();
    int fd = export_fd(create(mib, true));
    send_fd(pair[0], fd);
    close(fd);
    ready(getpid(), child, mib);
    forever();
}

// An exported allocation, mapped here too, whose descriptor `part` received.
static void send_exported(size_t mib, const char *self, const char *part) {
    Receiver receiver(self, part, mib);
    start_context();
    CUmemGenericAllocationHandle handle = create(mib, true);
    map(handle, mib);
    int fd = export_fd(handle);
    receiver.give(fd);
    close(fd);
    ready(getpid(), receiver.pid, mib);
    forever();
}

// The receiver never used CUDA.
void exported(size_t mib, const char *self) {
    send_exported(mib, self, "receive");
}

// The receiver imports and maps it, and closes the descriptor.
void mem_imported(size_t mib, const char *self) {
    send_exported(mib, self, "receive-import");
}

// The same with a dma-buf, as a network card would import it.
void dma_buf(size_t mib, const char *self) {
    Receiver receiver(self, "receive", mib);
    start_context();
    int supported = 0, fd = -1;
    cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0);
    CUdeviceptr address = 0;
    must(cuMemAlloc(&address, mib << 20) == CUDA_SUCCESS, "cuMemAlloc");
    must(cuMemsetD8(address, 1, mib << 20) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS, "cuMemsetD8");
    CUresult result = cuMemGetHandleForAddressRange(&fd, address, mib << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (result != CUDA_SUCCESS) {
        const char *name = nullptr;
        cuGetErrorName(result, &name);
        kill(receiver.pid, SIGKILL);
        skip(std::string("cuMemGetHandleForAddressRange: ") + (name == nullptr ? "unknown error" : name) +
             ", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is " + std::to_string(supported));
    }
    receiver.give(fd);
    close(fd);
    ready(getpid(), receiver.pid, mib);
    forever();
}

void receive() {
    must(receive_fd(0) >= 0, "receive");
    must(write(1, "x", 1) == 1, "write");
    forever();
}

void receive_import(size_t mib) {
    int fd = receive_fd(0);
    start_context();
    CUmemGenericAllocationHandle handle;
    void *descriptor = reinterpret_cast<void *>(static_cast<intptr_t>(fd));
    must(cuMemImportFromShareableHandle(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS, "import");
    close(fd);
    map(handle, mib);
    must(write(1, "x", 1) == 1, "write");
    forever();
}

// Two programs of one coordinator: the exporter (owner) sends the importer (other) a handle; then both wait.
void ipc(size_t mib, const char *self) {
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
    close(handles[0]); // so that the end of a child is seen by whoever reads from it
    close(handles[1]);
    close(lines[1]);
    char c;
    must(read(lines[0], &c, 1) == 1, "read");
    ready(children[0], children[1], mib);
    forever();
}

void export_memory(size_t mib) {
    void *p = nullptr;
    cudaIpcMemHandle_t handle;
    must(cudaMalloc(&p, mib << 20) == cudaSuccess, "cudaMalloc");
    must(cudaIpcGetMemHandle(&handle, p) == cudaSuccess, "cudaIpcGetMemHandle");
    must(write(1, &handle, sizeof handle) == sizeof handle, "write");
    forever();
}

void import_memory() {
    void *p = nullptr;
    cudaIpcMemHandle_t handle;
    must(read(0, &handle, sizeof handle) == sizeof handle, "read");
    must(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess, "cudaIpcOpenMemHandle");
    must(write(1, "x", 1) == 1, "write");
    forever();
}
