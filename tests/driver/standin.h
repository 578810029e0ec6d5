/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * STAND-IN for NVIDIA's driver, for tests only: what its parts share.
 *
 * Always true: memory is bookkeeping, nothing is allocated on any device. rm_lock guards clients, objects, memories and their
 * references, and is never held while a knob makes somebody wait, nor while user memory is read: the books can always be read.
 */
#ifndef OUTLIVE_STANDIN_H
#define OUTLIVE_STANDIN_H

#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <linux/version.h>
#include <linux/wait.h>

#define STANDIN_VERSION "580.0-standin"
#define STANDIN_WHAT "STAND-IN for NVIDIA's driver, for outlive's tests only: no device, no memory, only books"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}
#endif

#define GPUS_MAX 8
/* An H200, and the driver's reserve on it. */
#define TOTAL (143771ull << 20)
#define RESERVED (615ull << 20)
#define NO_GPU (~0u)
#define MINOR_CONTROL 255

#define OK 0x00
#define INSERT_DUPLICATE_NAME 0x19
#define INSUFFICIENT_PERMISSIONS 0x1b
#define INVALID_ARGUMENT 0x1f
#define INVALID_CLASS 0x22
#define INVALID_CLIENT 0x23
#define INVALID_DEVICE 0x26
#define INVALID_OBJECT 0x31
#define NO_MEMORY 0x51
#define NOT_SUPPORTED 0x56
#define OBJECT_NOT_FOUND 0x57

/* ---- memory.c: memories and the references that keep them ---- */

/* Bytes of one GPU. Alive while it has a reference. */
struct memory {
	struct list_head all;
	struct list_head refs; /* oldest first */
	u64 bytes;
	u32 gpu;
};

struct client;

/* One reason why a memory is not free. */
struct ref {
	struct list_head node;
	struct memory *memory;
	struct client *client; /* NULL: the driver's own, on behalf of a mapping or an exported handle */
};

extern struct mutex rm_lock;
extern struct list_head memories;
u64 memory_used(u32 gpu);
void memory_find_lost(void);
struct ref *ref_to_new(struct client *client, u32 gpu, u64 bytes);
struct ref *ref_to_same(struct client *client, struct memory *memory);
void ref_put(struct ref *ref);
void ref_put_slowly(struct ref *ref); /* lets go of rm_lock when release_ms says so */

/* ---- client.c: RM clients and their objects ---- */

struct nv_file;

struct client {
	struct list_head all;
	struct list_head objects; /* newest first */
	struct nv_file *owner;    /* the description of /dev/nvidiactl whose last release ends it */
	struct pid *pid;          /* of the process that made it, dead or not */
	u32 handle;
	bool dying;
	bool offered; /* anybody may duplicate its objects */
};

struct object {
	struct list_head node;
	struct ref *ref; /* NULL: not memory */
	u32 handle, parent, class, gpu;
	bool offered, doomed;
};

u32 client_make(struct nv_file *owner, u32 handle, struct client **client);
struct client *client_any(u32 handle);
struct client *client_of(struct nv_file *file, u32 handle);
void client_free(struct client *client);
bool has_clients(struct nv_file *owner);
void clients_release(struct nv_file *owner);
struct object *object_find(struct client *client, u32 handle);
u32 object_gpu(struct client *client, u32 handle);
u32 object_make(struct client *client, u32 parent, u32 handle, u32 class, struct object **object);
void object_free(struct client *client, u32 handle);

/* ---- file.c: descriptions of /dev/nvidiactl and /dev/nvidiaN ---- */

/* Private data. The first members lie as in nv_file_private_t of branches 550 to 595, because tracers read them. */
struct nv_file {
	struct ref **handles; /* exported memory; not NULL: this description is a handle */
	u16 handle_count;
	u32 device_instance;
	u32 gpu_instance;
	u8 metadata[64];
	struct nv_file *control;   /* named by REGISTER_FD ... */
	struct file *control_file; /* ... and kept open until this one is released */
	u32 registered;
	bool cleanup;
	/* Ours. */
	u32 minor;
	unsigned long deadline;
	struct kthread_work work;
};

/* The description behind a descriptor of /dev/nvidiactl, to be put with fput(); NULL if it is not one. */
struct file *nv_control_get(int fd);
extern unsigned int gpus;

/* ---- request.c ---- */

long rm_request(struct nv_file *file, u32 number, u32 size, void *args);

/* ---- books.c ---- */

int books_open(void);
void books_close(void);
const char *gpu_pci(u32 gpu);
u32 gpu_of_uuid(const u8 uuid[16]); /* NO_GPU: none */

/* ---- dmabuf.c ---- */

long dmabuf_export(struct nv_file *file, void *args);

/* ---- knobs.c ---- */

struct knobs {
	wait_queue_head_t changed;
	int release_ms, defer_ms;
	int release_sleep, release_spin, ioctl_sleep, ioctl_spin;
	int lose, gone;
};

extern struct knobs knobs;

/* Asleep, uninterruptibly, until the knob is cleared. A macro, so that the caller is on top of the stack, as wchan shows it. */
#define sleep_while(knob) wait_event(knobs.changed, !READ_ONCE(knobs.knob))

/* ---- for nvidia-uvm ---- */

struct class *standin_class(void);
struct ref *standin_dup(int control_fd, u32 client, u32 object, u32 *status);
struct ref *standin_managed(u32 gpu, u64 bytes);
void standin_put(struct ref *ref);

#endif
