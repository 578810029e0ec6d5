// Writes down every ioctl that a program and its children make on an NVIDIA file.
//
//     cc -shared -fPIC -O1 -o ioctl-log.so ioctl-log.c -ldl
//     LD_PRELOAD=$PWD/ioctl-log.so IOCTL_LOG=/tmp/log program        # writes /tmp/log.PID, one file per process
//
// One line per ioctl on a file whose name begins with /dev/nvidia, in the order in which they returned:
//
//     TIME TID DEVICE FD REQUEST RESULT [FIELD...]
//
// TIME      seconds of CLOCK_MONOTONIC when the call returned, so that logs of several processes can be merged
// TID       thread that called
// DEVICE    path of the file, as readlink says it
// FD        its descriptor
// REQUEST   whole request number, hexadecimal. On nvidia-uvm it is a plain number, elsewhere _IOC-encoded
// RESULT    what ioctl returned; -1 is followed by a colon and errno
//
// A FIELD is one of these; HEX is memory after the call, two digits a byte, in the order of addresses:
//
//     arg=HEX         the argument structure from its start: its whole size, but 256 bytes at most. The size is in the
//                     request, or for nvidia-uvm in the table below; absent when the size is not known
//     arg+N=HEX       bytes of the argument structure from offset N on
//     inner=REQUEST   of NV_ESC_IOCTL_XFER_CMD: command and size that are inside, encoded like a request; its structure
//                     follows as xarg=HEX and xarg+N=HEX, and alloc, params and link are then about it
//     alloc=HEX       of NV_ESC_RM_ALLOC: the first 128 bytes at pAllocParms (absent when it is null); a class whose
//                     parameters are shorter is followed by whatever came after them in memory
//     params=HEX      of NV_ESC_RM_CONTROL with one of the commands below: parameters, 64 bytes at most
//     params+N=HEX    more of them from offset N on
//     link=FD:TARGET  a descriptor named inside the structure, and what readlink says of it after the call; blanks are
//                     written as ?; a target that could not be read is written as -
//
// Memory is read with process_vm_readv, so that a bad pointer costs a field and not the program. The log is opened for
// each line, so that a program which closes all its descriptors does not write into something else.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SHOWN = 256, MAX_ALLOC = 128, MAX_PARAMS = 64 };

// Resource manager escapes (_IOC_NR of type 'F').
enum { RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, REGISTER_FD = 201, XFER = 211, EXPORT_TO_DMABUF_FD = 217 };
enum { UVM_MAP_EXTERNAL_ALLOCATION = 33, UVM_ALLOC_SEMAPHORE_POOL = 68 };

// UVM's requests: a plain number each, so that the size is not in it. `fd` is where a descriptor is inside, or -1.
static const struct uvm {
    uint32_t request;
    uint16_t size;
    int16_t fd;
} UVM[] = {
    {0x30000001, 16, -1}, // INITIALIZE
    {19, 16, -1},         // REGISTER_MPS_CLIENT
    {23, 16, -1},         // CREATE_RANGE_GROUP
    {24, 16, -1},         // DESTROY_RANGE_GROUP
    {25, 32, 16},         // REGISTER_GPU_VASPACE
    {26, 20, -1},         // UNREGISTER_GPU_VASPACE
    {27, 56, 16},         // REGISTER_CHANNEL
    {28, 28, -1},         // UNREGISTER_CHANNEL
    {29, 36, -1},         // ENABLE_PEER_ACCESS
    {30, 36, -1},         // DISABLE_PEER_ACCESS
    {31, 32, -1},         // SET_RANGE_GROUP
    {33, 32, -1},         // MAP_EXTERNAL_ALLOCATION: 9264 bytes, its end is added below
    {34, 24, -1},         // FREE
    {35, 24, -1},         // MEM_MAP
    {37, 40, 24},         // REGISTER_GPU
    {38, 20, -1},         // UNREGISTER_GPU
    {39, 8, -1},          // PAGEABLE_MEM_ACCESS
    {42, 40, -1},         // SET_PREFERRED_LOCATION
    {43, 24, -1},         // UNSET_PREFERRED_LOCATION
    {44, 24, -1},         // ENABLE_READ_DUPLICATION
    {45, 24, -1},         // DISABLE_READ_DUPLICATION
    {46, 40, -1},         // SET_ACCESSED_BY
    {47, 40, -1},         // UNSET_ACCESSED_BY
    {51, 80, -1},         // MIGRATE
    {53, 32, -1},         // MIGRATE_RANGE_GROUP
    {54, 20, -1},         // ENABLE_SYSTEM_WIDE_ATOMICS
    {55, 20, -1},         // DISABLE_SYSTEM_WIDE_ATOMICS
    {56, 56, 44},         // TOOLS_INIT_EVENT_TRACKER
    {65, 40, -1},         // MAP_DYNAMIC_PARALLELISM_REGION
    {66, 40, -1},         // UNMAP_EXTERNAL
    {68, 32, -1},         // ALLOC_SEMAPHORE_POOL: 9248 bytes, its end is added below
    {69, 4, -1},          // CLEAN_UP_ZOMBIE_RESOURCES
    {70, 24, -1},         // PAGEABLE_MEM_ACCESS_ON_GPU
    {71, 24, -1},         // POPULATE_PAGEABLE
    {72, 24, -1},         // VALIDATE_VA_RANGE
    {73, 24, -1},         // CREATE_EXTERNAL_RANGE
    {74, 40, -1},         // MAP_EXTERNAL_SPARSE
    {75, 8, 0},           // MM_INITIALIZE
};

// RM_CONTROL commands whose parameters are shown; `fd` is where a descriptor is inside, or -1.
static const struct control {
    uint32_t command;
    int fd;
} CONTROLS[] = {
    {0x3d05, 16}, // EXPORT_OBJECT_TO_FD
    {0x3d06, 0},  // IMPORT_OBJECT_FROM_FD
    {0x3d0b, 0},  // EXPORT_OBJECTS_TO_FD
    {0x3d0c, 0},  // IMPORT_OBJECTS_FROM_FD
    {0x205, -1},  // GPU_GET_ID_INFO_V2
    {0x202, -1},  // GPU_GET_ID_INFO
    {0xd04, -1},  // CLIENT_SET_INHERITED_SHARE_POLICY
};

struct line {
    size_t used;
    char text[4096];
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...) {
    va_list list;
    va_start(list, format);
    size_t room = sizeof line->text - line->used;
    int n = vsnprintf(line->text + line->used, room, format, list);
    va_end(list);
    if (n > 0) line->used += (size_t)n < room ? (size_t)n : room - 1;
}

// Bytes of this process' own memory: how many could be read.
static size_t peek(uint64_t from, void *to, size_t size) {
    size_t to_page_end = 4096 - (from & 4095);
    struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
    if (from == 0 || size == 0) return 0;
    ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    if (n <= 0 && to_page_end < size) {
        here.iov_len = there.iov_len = to_page_end;
        n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    }
    return n > 0 ? (size_t)n : 0;
}

static uint32_t peek32(uint64_t from) {
    uint32_t value = 0;
    return peek(from, &value, sizeof value) == sizeof value ? value : 0;
}

static uint64_t peek64(uint64_t from) {
    uint64_t value = 0;
    return peek(from, &value, sizeof value) == sizeof value ? value : 0;
}

static void add_hex(struct line *line, const char *name, uint64_t base, size_t offset, size_t size) {
    unsigned char bytes[MAX_SHOWN];
    size_t n = base == 0 ? 0 : peek(base + offset, bytes, size < sizeof bytes ? size : sizeof bytes);
    if (n == 0) return;
    if (offset == 0) add(line, " %s=", name);
    else add(line, " %s+%zu=", name, offset);
    for (size_t i = 0; i < n; i++) add(line, "%02x", bytes[i]);
}

// What readlink says of a descriptor; false when it says nothing.
static int target_of(int fd, char *target, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, size - 1);
    target[n > 0 ? n : 0] = 0;
    return n > 0;
}

static void add_link(struct line *line, uint64_t address) {
    char target[256];
    int fd = 0;
    if (peek(address, &fd, sizeof fd) != sizeof fd) return;
    if (!target_of(fd, target, sizeof target)) strcpy(target, "-");
    for (char *c = target; *c; c++) if (*c == ' ' || *c == '\n') *c = '?';
    add(line, " link=%d:%s", fd, target);
}

static void add_control(struct line *line, uint64_t arg) {
    uint32_t command = peek32(arg + 8), size = peek32(arg + 24);
    uint64_t params = peek64(arg + 16);
    for (size_t i = 0; i < sizeof CONTROLS / sizeof *CONTROLS; i++) {
        if (CONTROLS[i].command != command || params == 0) continue;
        add_hex(line, "params", params, 0, size < MAX_PARAMS ? size : MAX_PARAMS);
        if (command == 0x3d0b && size >= 2128) {
            add_hex(line, "params", params, 76, 64);  // the first objects
            add_hex(line, "params", params, 2124, 4); // how many, and from which on
        }
        if (command == 0x3d0c && size >= 652) {
            add_hex(line, "params", params, 520, 16); // the first types
            add_hex(line, "params", params, 648, 4);  // how many, and from which on
        }
        if (CONTROLS[i].fd >= 0) add_link(line, params + (uint64_t)CONTROLS[i].fd);
    }
}

// The argument structure of a resource manager escape, and what it points to.
static void add_rm(struct line *line, const char *name, uint32_t nr, size_t size, uint64_t arg) {
    add_hex(line, name, arg, 0, size);
    if (nr == EXPORT_TO_DMABUF_FD && size == 2608) {
        add_hex(line, name, arg, 552, 16);  // offsets
        add_hex(line, name, arg, 1576, 16); // sizes
        add_hex(line, name, arg, 2600, 8);  // status
    }
    if (nr == RM_ALLOC && size >= 32) add_hex(line, "alloc", peek64(arg + 16), 0, MAX_ALLOC);
    if (nr == RM_CONTROL && size >= 32) add_control(line, arg);
    if (nr == REGISTER_FD || nr == EXPORT_TO_DMABUF_FD) add_link(line, arg);
}

static void add_uvm(struct line *line, uint32_t request, uint64_t arg) {
    for (size_t i = 0; i < sizeof UVM / sizeof *UVM; i++) {
        if (UVM[i].request != request) continue;
        add_hex(line, "arg", arg, 0, UVM[i].size);
        if (request == UVM_MAP_EXTERNAL_ALLOCATION) {
            add_hex(line, "arg", arg, 9240, 24);
            add_link(line, arg + 9248);
        }
        if (request == UVM_ALLOC_SEMAPHORE_POOL) add_hex(line, "arg", arg, 9232, 16);
        if (UVM[i].fd >= 0) add_link(line, arg + (uint64_t)UVM[i].fd);
    }
}

static void log_call(const char *device, int fd, unsigned long request, uint64_t arg, int result, int error) {
    const char *prefix = getenv("IOCTL_LOG");
    if (prefix == NULL) return;
    struct line line = {0};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    add(&line, "%lld.%09ld %ld %s %d 0x%lx %d", (long long)now.tv_sec, now.tv_nsec, syscall(SYS_gettid), device, fd, request, result);
    if (result < 0) add(&line, ":%d", error);
    if (strncmp(device, "/dev/nvidia-uvm", 15) == 0) {
        add_uvm(&line, (uint32_t)request, arg);
    } else if (_IOC_TYPE(request) == 'F' && _IOC_NR(request) == XFER) {
        uint32_t nr = peek32(arg), size = peek32(arg + 4);
        add_hex(&line, "arg", arg, 0, _IOC_SIZE(request));
        add(&line, " inner=0x%lx", (unsigned long)_IOC(_IOC_READ | _IOC_WRITE, 'F', nr & 0xff, size & _IOC_SIZEMASK));
        add_rm(&line, "xarg", nr, size, peek64(arg + 8));
    } else {
        // nvidia-modeset and nvidia-caps have numbers of their own: only the structure is shown.
        uint32_t nr = _IOC_TYPE(request) == 'F' ? _IOC_NR(request) : 0;
        add_rm(&line, "arg", nr, _IOC_SIZE(request), arg);
    }
    line.text[line.used < sizeof line.text - 1 ? line.used++ : line.used - 1] = '\n';

    char path[4096];
    snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) return;
    if (write(log, line.text, line.used) < 0) {} // nothing could be done about it
    close(log);
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) {
    static int (*real)(int, unsigned long, ...);
    va_list list;
    va_start(list, request);
    void *arg = va_arg(list, void *);
    va_end(list);
    if (real == NULL) real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    if (real == NULL) return (int)syscall(SYS_ioctl, fd, request, arg);

    int before = errno;
    char device[256];
    int ours = target_of(fd, device, sizeof device) && strncmp(device, "/dev/nvidia", 11) == 0;
    errno = before;
    int result = real(fd, request, arg);
    if (ours) {
        int error = errno;
        log_call(device, fd, request, (uint64_t)(uintptr_t)arg, result, error);
        errno = error;
    }
    return result;
}
