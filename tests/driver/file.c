// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: /dev/nvidiactl and /dev/nvidiaN.
 *
 * Always true, as in the real driver: nothing happens at close(), everything at a description's last release. A release of
 * /dev/nvidiactl frees its clients and what was exported to it; one of /dev/nvidiaN drops the /dev/nvidiactl that was registered,
 * and only that kind may be deferred.
 */
#include "standin.h"

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#define MAJOR_NVIDIA 195
#define GPU_MINORS 248
/* The request that wraps another, and the most bytes that any may have. */
#define REQUEST_XFER 211
#define ARGUMENTS_MAX 16384

static_assert(offsetof(struct nv_file, handles) == 0);
static_assert(offsetof(struct nv_file, control) == 88);
static_assert(offsetof(struct nv_file, control_file) == 96);
static_assert(offsetof(struct nv_file, minor) == 112);

unsigned int gpus = 1;
module_param(gpus, uint, 0444);
MODULE_PARM_DESC(gpus, "how many GPUs there seem to be (1 to 8)");

static const struct file_operations nvidia_fops;
static struct kthread_worker *nv_queue;
static struct cdev device;
static struct class *class;

struct xfer {
	u32 number, size;
	u64 address;
};

struct file *nv_control_get(int fd)
{
	struct file *file = fget(fd);

	if (file && file->f_op == &nvidia_fops && ((struct nv_file *)file->private_data)->minor == MINOR_CONTROL)
		return file;
	if (file)
		fput(file);
	return NULL;
}

static noinline void nv_spin_loop(const int *knob)
{
	while (READ_ONCE(*knob)) {
		cpu_relax();
		cond_resched();
	}
}

static noinline void nv_file_release(struct nv_file *file)
{
	u16 at;

	mutex_lock(&rm_lock);
	for (at = 0; at < file->handle_count; at++)
		ref_put_slowly(file->handles[at]);
	clients_release(file);
	mutex_unlock(&rm_lock);
	if (file->control_file)
		fput(file->control_file);
	kfree(file->handles);
	kfree(file);
}

#ifdef BEFORE_545
/* Up to 535 other functions owned the files, and called nvidia_open, nvidia_close and nvidia_ioctl (kernel-open/nvidia/nv-frontend.c). */
#define nvidia_unlocked_ioctl nvidia_ioctl
#define DRIVER_NAME "nvidia-frontend"
noinline int nvidia_frontend_open(struct inode *inode, struct file *filp);
noinline int nvidia_frontend_close(struct inode *inode, struct file *filp);
noinline long nvidia_frontend_unlocked_ioctl(struct file *filp, unsigned int request, unsigned long argument);
#else
#define DRIVER_NAME "nvidia"
#endif
noinline int nvidia_open(struct inode *inode, struct file *filp);
noinline int nvidia_close(struct inode *inode, struct file *filp);
noinline long nvidia_unlocked_ioctl(struct file *filp, unsigned int request, unsigned long argument);
noinline int nvidia_mmap(struct file *filp, struct vm_area_struct *vma);
noinline void nvidia_close_deferred(void *args);

int nvidia_open(struct inode *inode, struct file *filp)
{
	u32 minor = iminor(inode);
	struct nv_file *file;

	if (minor != MINOR_CONTROL && minor >= gpus)
		return -ENODEV;
	if (minor != MINOR_CONTROL && READ_ONCE(knobs.gone))
		return -EIO;
	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return -ENOMEM;
	file->minor = minor;
	file->device_instance = minor;
	filp->private_data = file;
	return 0;
}

/* The argument is the file's private data, as in the real driver (kernel-open/nvidia/nv.c). */
void nvidia_close_deferred(void *args)
{
	struct nv_file *file = args;
	long left = file->deadline - jiffies;

	if (left > 0)
		wait_event_timeout(knobs.changed, !READ_ONCE(knobs.defer_ms), left);
	nv_file_release(file);
}

static void queued(struct kthread_work *work)
{
	nvidia_close_deferred(container_of(work, struct nv_file, work));
}

int nvidia_close(struct inode *inode, struct file *filp)
{
	struct nv_file *file = filp->private_data;
	int defer_ms = READ_ONCE(knobs.defer_ms);

	if (file->minor != MINOR_CONTROL && defer_ms > 0) {
		file->deadline = jiffies + msecs_to_jiffies(defer_ms);
		kthread_init_work(&file->work, queued);
		kthread_queue_work(nv_queue, &file->work);
		return 0;
	}
	if (file->handle_count || has_clients(file)) {
		sleep_while(release_sleep);
		nv_spin_loop(&knobs.release_spin);
	}
	nv_file_release(file);
	return 0;
}

long nvidia_unlocked_ioctl(struct file *filp, unsigned int request, unsigned long argument)
{
	u32 number = _IOC_NR(request), size = _IOC_SIZE(request);
	void __user *place = (void __user *)argument;
	struct xfer inner;
	void *arguments;
	long result;

	sleep_while(ioctl_sleep);
	nv_spin_loop(&knobs.ioctl_spin);
	if (READ_ONCE(knobs.gone))
		return -EIO;
	if (number == REQUEST_XFER && size == sizeof(inner)) {
		if (copy_from_user(&inner, place, sizeof(inner)))
			return -EFAULT;
		number = inner.number;
		size = inner.size;
		place = u64_to_user_ptr(inner.address);
	}
	if (!size || size > ARGUMENTS_MAX)
		return -EINVAL;
	arguments = memdup_user(place, size);
	if (IS_ERR(arguments))
		return PTR_ERR(arguments);
	result = rm_request(filp->private_data, number, size, arguments);
	if (!result && copy_to_user(place, arguments, size))
		result = -EFAULT;
	kfree(arguments);
	return result;
}

static vm_fault_t no_page(struct vm_fault *fault)
{
	return VM_FAULT_SIGBUS;
}

/* Like the real driver's: an open and a close that do nothing here but are there for tracers. */
static void nvidia_vma_open(struct vm_area_struct *vma)
{
}

static void nvidia_vma_release(struct vm_area_struct *vma)
{
}

static const struct vm_operations_struct nvidia_vm_ops = {
	.open = nvidia_vma_open,
	.close = nvidia_vma_release,
	.fault = no_page,
};

int nvidia_mmap(struct file *filp, struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND);
	vma->vm_ops = &nvidia_vm_ops;
	return 0;
}

#ifdef BEFORE_545
int nvidia_frontend_open(struct inode *inode, struct file *filp)
{
	int result = nvidia_open(inode, filp);

	barrier(); /* no tail call */
	return result;
}

int nvidia_frontend_close(struct inode *inode, struct file *filp)
{
	int result = nvidia_close(inode, filp);

	barrier();
	return result;
}

long nvidia_frontend_unlocked_ioctl(struct file *filp, unsigned int request, unsigned long argument)
{
	long result = nvidia_ioctl(filp, request, argument);

	barrier();
	return result;
}
#define OWNS(function) nvidia_frontend_##function
#else
#define OWNS(function) nvidia_##function
#endif

static const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.open = OWNS(open),
	.release = OWNS(close),
	.unlocked_ioctl = OWNS(unlocked_ioctl),
	.compat_ioctl = OWNS(unlocked_ioctl),
	.mmap = nvidia_mmap,
};

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static char *for_everybody(const struct device *device, umode_t *mode)
#else
static char *for_everybody(struct device *device, umode_t *mode)
#endif
{
	if (mode)
		*mode = 0666;
	return NULL;
}

/* nvidia-uvm puts its nodes here too. */
struct class *standin_class(void)
{
	return class;
}
EXPORT_SYMBOL_GPL(standin_class);

static int nodes_make(void)
{
	u32 gpu;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	class = class_create("nvidia-standin");
#else
	class = class_create(THIS_MODULE, "nvidia-standin");
#endif
	if (IS_ERR(class))
		return PTR_ERR(class);
	class->devnode = for_everybody;
	device_create(class, NULL, MKDEV(MAJOR_NVIDIA, MINOR_CONTROL), NULL, "nvidiactl");
	for (gpu = 0; gpu < gpus; gpu++)
		device_create(class, NULL, MKDEV(MAJOR_NVIDIA, gpu), NULL, "nvidia%u", gpu);
	return 0;
}

static void nodes_remove(void)
{
	u32 gpu;

	for (gpu = 0; gpu < gpus; gpu++)
		device_destroy(class, MKDEV(MAJOR_NVIDIA, gpu));
	device_destroy(class, MKDEV(MAJOR_NVIDIA, MINOR_CONTROL));
	class_destroy(class);
}

static int __init standin_init(void)
{
	int error;

	gpus = clamp(gpus, 1u, (unsigned int)GPUS_MAX);
	nv_queue = kthread_create_worker(0, "nv_queue");
	if (IS_ERR(nv_queue))
		return PTR_ERR(nv_queue);
	error = books_open();
	if (error)
		goto no_books;
	error = register_chrdev_region(MKDEV(MAJOR_NVIDIA, 0), GPU_MINORS, DRIVER_NAME);
	if (error)
		goto no_gpus;
	error = register_chrdev_region(MKDEV(MAJOR_NVIDIA, MINOR_CONTROL), 1, "nvidiactl");
	if (error)
		goto no_control;
	cdev_init(&device, &nvidia_fops);
	device.owner = THIS_MODULE;
	error = cdev_add(&device, MKDEV(MAJOR_NVIDIA, 0), 256);
	if (error)
		goto no_device;
	error = nodes_make();
	if (error)
		goto no_nodes;
	pr_info("nvidia: %s\n", STANDIN_WHAT);
	return 0;
no_nodes:
	cdev_del(&device);
no_device:
	unregister_chrdev_region(MKDEV(MAJOR_NVIDIA, MINOR_CONTROL), 1);
no_control:
	unregister_chrdev_region(MKDEV(MAJOR_NVIDIA, 0), GPU_MINORS);
no_gpus:
	books_close();
no_books:
	kthread_destroy_worker(nv_queue);
	return error;
}

static void __exit standin_exit(void)
{
	nodes_remove();
	cdev_del(&device);
	unregister_chrdev_region(MKDEV(MAJOR_NVIDIA, MINOR_CONTROL), 1);
	unregister_chrdev_region(MKDEV(MAJOR_NVIDIA, 0), GPU_MINORS);
	books_close();
	kthread_destroy_worker(nv_queue);
}

module_init(standin_init);
module_exit(standin_exit);
MODULE_DESCRIPTION(STANDIN_WHAT);
MODULE_VERSION(STANDIN_VERSION);
MODULE_LICENSE("Dual MIT/GPL");
