// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: /dev/nvidia-uvm.
 *
 * Always true, as in the real driver: a description becomes an address space (UVM_INITIALIZE), whose mappings are references to
 * memory that no client is charged for, until it is released; or it keeps another description's address space and its maker's
 * memory map (UVM_MM_INITIALIZE). Private data is a pointer whose three low bits say which, as branches 575 to 595 have it.
 */
#include "standin.h"

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define UVM_INITIALIZE 0x30000001
#define UVM_MAP_EXTERNAL_ALLOCATION 33
#define UVM_FREE 34
#define UVM_REGISTER_GPU 37
#define UVM_UNMAP_EXTERNAL 66
#define UVM_CREATE_EXTERNAL_RANGE 73
#define UVM_MM_INITIALIZE 75

#define TYPE_MASK 7ul
#define TYPE_SPACE 2
#define TYPE_MM 3
#define MINORS 2

struct space {
	struct mutex lock;
	struct list_head maps;
	struct mm_struct *mm; /* mmgrab()bed */
	unsigned long deadline;
	struct kthread_work work;
};

struct map {
	struct list_head node;
	struct ref *ref;
	u64 base, length;
};

/* UVM_MAP_EXTERNAL_ALLOCATION_PARAMS of branches 550 to 595. */
struct args_map {
	u64 base, length, offset;
	u8 per_gpu[9216];
	u64 gpu_count;
	s32 control_fd;
	u32 client, memory, status;
};
static_assert(sizeof(struct args_map) == 9264 && offsetof(struct args_map, control_fd) == 9248);

/* UVM_FREE, UVM_UNMAP_EXTERNAL and UVM_CREATE_EXTERNAL_RANGE begin alike. */
struct args_range {
	u64 base, length;
};

static const struct file_operations uvm_fops;
static struct kthread_worker *release_queue;
static struct cdev device;
static dev_t first;

static unsigned long type_of(struct file *filp)
{
	return (unsigned long)READ_ONCE(filp->private_data) & TYPE_MASK;
}

static struct space *space_of(struct file *filp)
{
	return type_of(filp) == TYPE_SPACE ? (struct space *)((unsigned long)filp->private_data & ~TYPE_MASK) : NULL;
}

static noinline void uvm_spin_loop(const int *knob)
{
	while (READ_ONCE(*knob)) {
		cpu_relax();
		cond_resched();
	}
}

static void map_free(struct map *map)
{
	list_del(&map->node);
	standin_put(map->ref);
	kfree(map);
}

static noinline void uvm_va_space_destroy(struct space *space)
{
	while (!list_empty(&space->maps))
		map_free(list_first_entry(&space->maps, struct map, node));
	mmdrop(space->mm);
	kfree(space);
}

noinline int uvm_open_entry(struct inode *inode, struct file *filp);
noinline int uvm_release_entry(struct inode *inode, struct file *filp);
noinline long uvm_unlocked_ioctl_entry(struct file *filp, unsigned int request, unsigned long argument);
noinline int uvm_mmap_entry(struct file *filp, struct vm_area_struct *vma);
noinline void uvm_release_deferred(void *data);

int uvm_open_entry(struct inode *inode, struct file *filp)
{
	filp->private_data = NULL;
	return 0;
}

/* The argument is the address space, as in the real driver (kernel-open/nvidia-uvm/uvm.c). */
void uvm_release_deferred(void *data)
{
	struct space *space = data;
	long left = space->deadline - jiffies;

	if (left > 0)
		wait_event_timeout(knobs.changed, !READ_ONCE(knobs.defer_ms), left);
	uvm_va_space_destroy(space);
}

static void queued(struct kthread_work *work)
{
	uvm_release_deferred(container_of(work, struct space, work));
}

int uvm_release_entry(struct inode *inode, struct file *filp)
{
	struct space *space = space_of(filp);
	int defer_ms = READ_ONCE(knobs.defer_ms);
	struct file *kept;

	if (type_of(filp) == TYPE_MM) {
		kept = (struct file *)((unsigned long)filp->private_data & ~TYPE_MASK);
		mmput(space_of(kept)->mm);
		fput(kept);
		return 0;
	}
	if (!space)
		return 0;
	if (defer_ms > 0) {
		space->deadline = jiffies + msecs_to_jiffies(defer_ms);
		kthread_init_work(&space->work, queued);
		kthread_queue_work(release_queue, &space->work);
		return 0;
	}
	if (!list_empty(&space->maps)) {
		sleep_while(release_sleep);
		uvm_spin_loop(&knobs.release_spin);
	}
	uvm_va_space_destroy(space);
	return 0;
}

/* One description becomes one thing, once. */
static u32 become(struct file *filp, void *pointer, unsigned long type)
{
	void *tagged = (void *)((unsigned long)pointer | type);

	return cmpxchg(&filp->private_data, NULL, tagged) ? INVALID_ARGUMENT : OK;
}

static long uvm_initialize(struct file *filp, void *args)
{
	u32 *status = args + 8;
	struct space *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space)
		return -ENOMEM;
	mutex_init(&space->lock);
	INIT_LIST_HEAD(&space->maps);
	space->mm = current->mm;
	mmgrab(space->mm);
	*status = become(filp, space, TYPE_SPACE);
	if (*status)
		uvm_va_space_destroy(space);
	return 0;
}

static long uvm_mm_initialize(struct file *filp, void *args)
{
	u32 *status = args + 4;
	struct file *kept = fget(*(int *)args);
	struct space *space = kept && kept->f_op == &uvm_fops ? space_of(kept) : NULL;

	*status = INVALID_ARGUMENT;
	if (space && mmget_not_zero(space->mm)) {
		*status = become(filp, kept, TYPE_MM);
		if (!*status)
			return 0;
		mmput(space->mm);
	}
	if (kept)
		fput(kept);
	return 0;
}

static long uvm_register_gpu(struct space *space, void *args)
{
	u32 *status = args + 36;

	*status = gpu_of_uuid(args) == NO_GPU ? INVALID_DEVICE : OK;
	return 0;
}

static long uvm_map(struct space *space, void *arguments)
{
	struct args_map *args = arguments;
	struct map *map = kzalloc(sizeof(*map), GFP_KERNEL);

	if (!map)
		return -ENOMEM;
	map->ref = standin_dup(args->control_fd, args->client, args->memory, &args->status);
	if (!map->ref) {
		kfree(map);
		return 0;
	}
	map->base = args->base;
	map->length = args->length;
	mutex_lock(&space->lock);
	list_add_tail(&map->node, &space->maps);
	mutex_unlock(&space->lock);
	return 0;
}

/* All mappings that begin in the range go. */
static long uvm_unmap(struct space *space, void *arguments, u32 status)
{
	struct args_range *args = arguments;
	struct map *map, *next;

	mutex_lock(&space->lock);
	list_for_each_entry_safe(map, next, &space->maps, node)
		if (map->base >= args->base && map->base - args->base < args->length)
			map_free(map);
	mutex_unlock(&space->lock);
	*(u32 *)(arguments + status) = OK;
	return 0;
}

static u32 size_of(unsigned int request)
{
	switch (request) {
	case UVM_INITIALIZE:
		return 16;
	case UVM_MM_INITIALIZE:
		return 8;
	case UVM_MAP_EXTERNAL_ALLOCATION:
		return sizeof(struct args_map);
	case UVM_CREATE_EXTERNAL_RANGE:
	case UVM_FREE:
		return 24;
	case UVM_REGISTER_GPU:
	case UVM_UNMAP_EXTERNAL:
		return 40;
	default:
		return 0;
	}
}

static long run(struct file *filp, unsigned int request, void *args)
{
	struct space *space = space_of(filp);

	if (request == UVM_INITIALIZE)
		return uvm_initialize(filp, args);
	if (request == UVM_MM_INITIALIZE)
		return uvm_mm_initialize(filp, args);
	if (!space)
		return -EINVAL;
	switch (request) {
	case UVM_MAP_EXTERNAL_ALLOCATION:
		return uvm_map(space, args);
	case UVM_FREE:
		return uvm_unmap(space, args, 16);
	case UVM_UNMAP_EXTERNAL:
		return uvm_unmap(space, args, 32);
	case UVM_REGISTER_GPU:
		return uvm_register_gpu(space, args);
	default: /* UVM_CREATE_EXTERNAL_RANGE: only addresses */
		*(u32 *)(args + 16) = OK;
		return 0;
	}
}

long uvm_unlocked_ioctl_entry(struct file *filp, unsigned int request, unsigned long argument)
{
	u32 size = size_of(request);
	void *args;
	long result;

	sleep_while(ioctl_sleep);
	uvm_spin_loop(&knobs.ioctl_spin);
	if (READ_ONCE(knobs.gone))
		return -EIO;
	if (!size)
		return -EINVAL;
	args = memdup_user((void __user *)argument, size);
	if (IS_ERR(args))
		return PTR_ERR(args);
	result = run(filp, request, args);
	if (!result && copy_to_user((void __user *)argument, args, size))
		result = -EFAULT;
	kfree(args);
	return result;
}

static void managed_close(struct vm_area_struct *vma)
{
	standin_put(vma->vm_private_data);
}

static int managed_may_split(struct vm_area_struct *vma, unsigned long address)
{
	return -EINVAL;
}

static vm_fault_t no_page(struct vm_fault *fault)
{
	return VM_FAULT_SIGBUS;
}

static const struct vm_operations_struct managed_ops = {
	.close = managed_close,
	.may_split = managed_may_split,
	.fault = no_page,
};

/* Managed memory: used by nobody's client, from here (the real driver: from the first touch) until it is unmapped. */
int uvm_mmap_entry(struct file *filp, struct vm_area_struct *vma)
{
	struct ref *ref;

	if (!space_of(filp))
		return -EBADFD;
	ref = standin_managed(0, vma->vm_end - vma->vm_start);
	if (!ref)
		return -ENOMEM;
	vma->vm_private_data = ref;
	vma->vm_ops = &managed_ops;
	vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTCOPY);
	return 0;
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = uvm_open_entry,
	.release = uvm_release_entry,
	.unlocked_ioctl = uvm_unlocked_ioctl_entry,
	.compat_ioctl = uvm_unlocked_ioctl_entry,
	.mmap = uvm_mmap_entry,
};

static int __init uvm_init(void)
{
	int error;

	release_queue = kthread_create_worker(0, "UVM deferred release queue");
	if (IS_ERR(release_queue))
		return PTR_ERR(release_queue);
	error = alloc_chrdev_region(&first, 0, MINORS, "nvidia-uvm");
	if (error)
		goto no_numbers;
	cdev_init(&device, &uvm_fops);
	device.owner = THIS_MODULE;
	error = cdev_add(&device, first, MINORS);
	if (error)
		goto no_device;
	device_create(standin_class(), NULL, first, NULL, "nvidia-uvm");
	device_create(standin_class(), NULL, first + 1, NULL, "nvidia-uvm-tools");
	return 0;
no_device:
	unregister_chrdev_region(first, MINORS);
no_numbers:
	kthread_destroy_worker(release_queue);
	return error;
}

static void __exit uvm_exit(void)
{
	device_destroy(standin_class(), first + 1);
	device_destroy(standin_class(), first);
	cdev_del(&device);
	unregister_chrdev_region(first, MINORS);
	kthread_destroy_worker(release_queue);
}

module_init(uvm_init);
module_exit(uvm_exit);
MODULE_DESCRIPTION(STANDIN_WHAT);
MODULE_VERSION(STANDIN_VERSION);
MODULE_LICENSE("Dual MIT/GPL");
