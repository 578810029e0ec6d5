// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: the requests of /dev/nvidiactl and /dev/nvidiaN that say who owns memory.
 *
 * Always true: layouts and numbers are those of tracer-ebpf/src/abi.rs; a request that is understood returns 0 and says in its
 * status whether it was granted; user memory is read before rm_lock is taken and written after it was let go.
 */
#include "standin.h"

#include <linux/file.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#define RM_FREE 0x29
#define RM_CONTROL 0x2a
#define RM_ALLOC 0x2b
#define RM_DUP_OBJECT 0x34
#define RM_SHARE 0x35
#define RM_VID_HEAP_CONTROL 0x4a
#define REGISTER_FD 201
#define EXPORT_TO_DMABUF_FD 217

#define CLASS_ROOT 0x0
#define CLASS_ROOT_NON_PRIV 0x1
#define CLASS_ROOT_CLIENT 0x41
#define CLASS_DEVICE 0x80
#define CLASS_MEMORY 0x40
#define CLASS_FABRIC 0xf8

#define GPU_GET_ID_INFO 0x202
#define GPU_GET_ID_INFO_V2 0x205
#define SET_INHERITED_SHARE_POLICY 0xd04
#define EXPORT_OBJECT_TO_FD 0x3d05
#define IMPORT_OBJECT_FROM_FD 0x3d06
#define EXPORT_OBJECTS_TO_FD 0x3d0b
#define IMPORT_OBJECTS_FROM_FD 0x3d0c
#define CONTROL_PARAMS_MAX 4096
#define TYPE_RM 1
#define EXPORTS_MAX 512
#define IMPORTS_MAX 128

/* Memory comes in pages of this size. */
#define PAGE (64ull << 10)
/* Share types: everybody, everybody of this user. */
#define SHARE_ALL 1
#define SHARE_USER 2
#define VID_HEAP_ALLOC_SIZE 2
#define VID_HEAP_FREE 3

struct args_free {
	u32 client, parent, object, status;
};

struct args_alloc {
	u32 client, parent, object, class;
	u64 params;
	union {
		struct {
			u32 params_size, status;
		} short_form;
		struct {
			u64 rights;
			u32 params_size, flags, status, pad;
		} long_form;
	};
};

struct args_control {
	u32 client, object, command, flags;
	u64 params;
	u32 params_size, status;
};

struct args_dup {
	u32 client, parent, object, from_client, from_object, flags, status;
};

struct args_share {
	u32 client, object, target, mask;
	u16 type;
	u8 action, pad;
	u32 status;
};

struct args_vid_heap {
	u32 client, parent, function, space;
	u32 heap, status;
	u64 total, free;
	u32 owner, memory, type, flags, attributes, format;
	u64 pad[3];
	u64 size;
	u64 rest[11];
};

static_assert(sizeof(struct args_free) == 16 && sizeof(struct args_alloc) == 48 && sizeof(struct args_control) == 32);
static_assert(sizeof(struct args_dup) == 28 && sizeof(struct args_share) == 24 && sizeof(struct args_vid_heap) == 184);
static_assert(offsetof(struct args_vid_heap, size) == 88 && offsetof(struct args_alloc, short_form.status) == 28);

static u32 get(const void *params, u32 at)
{
	return *(const u32 *)(params + at);
}

static void set(void *params, u32 at, u32 value)
{
	*(u32 *)(params + at) = value;
}

/* An object that is memory: new bytes when `same` is NULL, else another reference to that. */
static u32 memory_make(struct client *client, u32 parent, u32 *handle, u32 class, u64 bytes, struct memory *same)
{
	struct object *object;
	u32 status = object_make(client, parent, *handle, class, &object);

	if (status)
		return status;
	if (same)
		object->ref = ref_to_same(client, same);
	else if (object->gpu != NO_GPU)
		object->ref = ref_to_new(client, object->gpu, bytes);
	if (!object->ref) {
		status = object->gpu == NO_GPU ? INVALID_DEVICE : NO_MEMORY;
		object_free(client, object->handle);
		return status;
	}
	object->gpu = object->ref->memory->gpu;
	*handle = object->handle;
	return OK;
}

static u32 alloc_object(struct client *client, struct args_alloc *args, const void *params)
{
	struct object *object, *of;
	u32 status;

	if (args->class == CLASS_FABRIC && get(params, 40)) {
		of = object_find(client, get(params, 40));
		if (!of || !of->ref)
			return INVALID_OBJECT;
		return memory_make(client, args->parent, &args->object, args->class, 0, of->ref->memory);
	}
	status = object_make(client, args->parent, args->object, args->class, &object);
	if (status)
		return status;
	if (args->class == CLASS_DEVICE)
		object->gpu = get(params, 0);
	if (args->class == CLASS_DEVICE && object->gpu >= gpus) {
		object_free(client, object->handle);
		return INVALID_DEVICE;
	}
	args->object = object->handle;
	return OK;
}

static long rm_alloc(struct nv_file *file, u32 size, struct args_alloc *args)
{
	bool wide = size == sizeof(*args);
	u32 *status = wide ? &args->long_form.status : &args->short_form.status;
	u64 params[16] = { 0 }, bytes;
	u32 params_size = args->class == CLASS_MEMORY ? 128 : args->class == CLASS_DEVICE ? 56 : args->class == CLASS_FABRIC ? 48 : 0;
	struct client *client;

	if (args->params && params_size && copy_from_user(params, u64_to_user_ptr(args->params), params_size))
		return -EFAULT;
	bytes = params[8];
	if (args->class == CLASS_MEMORY && (!bytes || bytes > U64_MAX - PAGE)) {
		*status = INVALID_ARGUMENT;
		return 0;
	}
	bytes = round_up(bytes, PAGE);

	mutex_lock(&rm_lock);
	if (args->class == CLASS_ROOT || args->class == CLASS_ROOT_NON_PRIV || args->class == CLASS_ROOT_CLIENT) {
		*status = client_make(file->control ?: file, args->object, &client);
		if (!*status)
			args->object = client->handle;
		args->class = CLASS_ROOT_CLIENT;
	} else if (!(client = client_of(file, args->client))) {
		*status = INVALID_CLIENT;
	} else if (args->class == CLASS_MEMORY) {
		*status = memory_make(client, args->parent, &args->object, args->class, bytes, NULL);
	} else {
		*status = alloc_object(client, args, params);
	}
	mutex_unlock(&rm_lock);

	if (args->class == CLASS_MEMORY && put_user(bytes, (u64 __user *)u64_to_user_ptr(args->params + 64)))
		return -EFAULT;
	return 0;
}

static u32 rm_free(struct nv_file *file, u32 handle, u32 object)
{
	struct client *client;
	u32 status = INVALID_CLIENT;

	mutex_lock(&rm_lock);
	client = client_of(file, handle);
	if (client && object == handle) {
		client_free(client);
		status = OK;
	} else if (client && !object_find(client, object)) {
		status = OBJECT_NOT_FOUND;
	} else if (client) {
		object_free(client, object);
		status = OK;
	}
	mutex_unlock(&rm_lock);
	return status;
}

static u32 rm_dup(struct nv_file *file, struct args_dup *args)
{
	struct client *client = client_of(file, args->client), *from = client_any(args->from_client);
	struct object *object, *copy;
	u32 status;

	if (!client || !from || from->dying)
		return INVALID_CLIENT;
	object = object_find(from, args->from_object);
	if (!object)
		return OBJECT_NOT_FOUND;
	/* By default only to clients that the same process made. */
	if (from->pid != client->pid && !from->offered && !object->offered)
		return INSUFFICIENT_PERMISSIONS;
	if (object->ref)
		return memory_make(client, args->parent, &args->object, object->class, 0, object->ref->memory);
	status = object_make(client, args->parent, args->object, object->class, &copy);
	if (!status)
		args->object = copy->handle;
	return status;
}

static u32 rm_share(struct nv_file *file, struct args_share *args)
{
	struct client *client = client_of(file, args->client);
	struct object *object = client ? object_find(client, args->object) : NULL;

	if (!client)
		return INVALID_CLIENT;
	if (!object)
		return OBJECT_NOT_FOUND;
	object->offered = args->type == SHARE_ALL || args->type == SHARE_USER;
	return OK;
}

static long rm_vid_heap(struct nv_file *file, struct args_vid_heap *args)
{
	struct client *client;
	u64 bytes = args->size;

	if (args->function == VID_HEAP_FREE) {
		args->status = rm_free(file, args->client, args->memory);
		return 0;
	}
	args->status = INVALID_ARGUMENT;
	if (args->function != VID_HEAP_ALLOC_SIZE || !bytes || bytes > U64_MAX - PAGE)
		return 0;
	args->size = round_up(bytes, PAGE);
	mutex_lock(&rm_lock);
	client = client_of(file, args->client);
	args->memory = 0;
	args->status = client ? memory_make(client, args->parent, &args->memory, CLASS_MEMORY, args->size, NULL) : INVALID_CLIENT;
	mutex_unlock(&rm_lock);
	return 0;
}

/* Makes another /dev/nvidiactl a handle of memory. */
static u32 export_to(struct client *client, int fd, const u32 *objects, u32 count)
{
	struct file *filp = nv_control_get(fd);
	struct nv_file *to = filp ? filp->private_data : NULL;
	struct ref **handles = kcalloc(count, sizeof(*handles), GFP_KERNEL);
	struct object *object;
	u32 at, status = OK;

	if (!to || !handles || to->handles || !count)
		status = INVALID_ARGUMENT;
	for (at = 0; !status && at < count; at++) {
		object = object_find(client, objects[at]);
		handles[at] = object && object->ref ? ref_to_same(NULL, object->ref->memory) : NULL;
		if (!handles[at]) {
			status = INVALID_OBJECT;
			while (at-- > 0)
				ref_put(handles[at]);
			break;
		}
	}
	if (status) {
		kfree(handles);
	} else {
		to->handle_count = count;
		to->handles = handles;
	}
	if (filp)
		fput(filp);
	return status;
}

static u32 import_from(struct client *client, u32 parent, int fd, u32 *objects, u32 count)
{
	struct file *filp = nv_control_get(fd);
	struct nv_file *from = filp ? filp->private_data : NULL;
	u32 at, status = from && count && count <= from->handle_count ? OK : INVALID_ARGUMENT;

	for (at = 0; !status && at < count; at++)
		status = memory_make(client, parent, &objects[at], CLASS_MEMORY, 0, from->handles[at]->memory);
	if (filp)
		fput(filp);
	return status;
}

static u32 command_run(struct client *client, u32 command, void *params)
{
	u16 count;
	u32 gpu;

	switch (command) {
	case GPU_GET_ID_INFO:
	case GPU_GET_ID_INFO_V2:
		/* A gpuId is the bus, shifted. */
		gpu = (get(params, 0) >> 8) - 0x0b;
		if (gpu >= gpus)
			return INVALID_ARGUMENT;
		set(params, 8, gpu);
		return OK;
	case SET_INHERITED_SHARE_POLICY:
		count = get(params, 8) & 0xffff;
		client->offered |= count == SHARE_ALL || count == SHARE_USER;
		return OK;
	case EXPORT_OBJECT_TO_FD:
		return get(params, 0) == TYPE_RM ? export_to(client, get(params, 16), params + 12, 1) : NOT_SUPPORTED;
	case IMPORT_OBJECT_FROM_FD:
		return get(params, 4) == TYPE_RM ? import_from(client, get(params, 12), get(params, 0), params + 16, 1) : NOT_SUPPORTED;
	case EXPORT_OBJECTS_TO_FD:
		count = get(params, 2124) & 0xffff;
		return count <= EXPORTS_MAX ? export_to(client, get(params, 0), params + 76, count) : INVALID_ARGUMENT;
	case IMPORT_OBJECTS_FROM_FD:
		count = get(params, 648) & 0xffff;
		return count <= IMPORTS_MAX ? import_from(client, get(params, 4), get(params, 0), params + 8, count) : INVALID_ARGUMENT;
	default:
		/* Whatever else is asked is granted and does nothing. */
		return OK;
	}
}

static u32 command_size(u32 command)
{
	switch (command) {
	case GPU_GET_ID_INFO:
	case GPU_GET_ID_INFO_V2:
	case SET_INHERITED_SHARE_POLICY:
		return 12;
	case EXPORT_OBJECT_TO_FD:
		return 24;
	case IMPORT_OBJECT_FROM_FD:
		return 20;
	case EXPORT_OBJECTS_TO_FD:
		return 2128;
	case IMPORT_OBJECTS_FROM_FD:
		return 652;
	default:
		return 0;
	}
}

static long rm_control(struct nv_file *file, struct args_control *args)
{
	struct client *client;
	void *params = NULL;
	long error = 0;

	if (args->params_size < command_size(args->command) || args->params_size > CONTROL_PARAMS_MAX) {
		args->status = INVALID_ARGUMENT;
		return 0;
	}
	if (args->params_size) {
		params = memdup_user(u64_to_user_ptr(args->params), args->params_size);
		if (IS_ERR(params))
			return PTR_ERR(params);
	}
	mutex_lock(&rm_lock);
	client = client_of(file, args->client);
	args->status = client ? command_run(client, args->command, params) : INVALID_CLIENT;
	mutex_unlock(&rm_lock);
	if (params && copy_to_user(u64_to_user_ptr(args->params), params, args->params_size))
		error = -EFAULT;
	kfree(params);
	return error;
}

/* A description keeps one /dev/nvidiactl, which keeps none itself: so they never keep each other. */
static long register_fd(struct nv_file *file, int fd)
{
	struct file *control = nv_control_get(fd);
	long error = -EINVAL;

	if (!control)
		return -EINVAL;
	mutex_lock(&rm_lock);
	if (!file->control && control->private_data != file && !((struct nv_file *)control->private_data)->control && !file->registered) {
		file->control = control->private_data;
		file->control_file = control;
		file->control->registered = 1;
		error = 0;
	}
	mutex_unlock(&rm_lock);
	if (error)
		fput(control);
	return error;
}

long rm_request(struct nv_file *file, u32 number, u32 size, void *args)
{
	bool control = file->minor == MINOR_CONTROL;
	struct args_free *free = args;

	if (number == REGISTER_FD && size == 4)
		return register_fd(file, *(int *)args);
	if (number == EXPORT_TO_DMABUF_FD && size == 2608 && !control)
		return dmabuf_export(file, args);
	if (!control)
		return -EINVAL;
	if (number == RM_ALLOC && (size == 32 || size == sizeof(struct args_alloc)))
		return rm_alloc(file, size, args);
	if (number == RM_FREE && size == sizeof(*free)) {
		free->status = rm_free(file, free->client, free->object);
		return 0;
	}
	if (number == RM_CONTROL && size == sizeof(struct args_control))
		return rm_control(file, args);
	if (number == RM_VID_HEAP_CONTROL && size == sizeof(struct args_vid_heap))
		return rm_vid_heap(file, args);
	if (number == RM_DUP_OBJECT && size == sizeof(struct args_dup)) {
		mutex_lock(&rm_lock);
		((struct args_dup *)args)->status = rm_dup(file, args);
		mutex_unlock(&rm_lock);
		return 0;
	}
	if (number == RM_SHARE && size == sizeof(struct args_share)) {
		mutex_lock(&rm_lock);
		((struct args_share *)args)->status = rm_share(file, args);
		mutex_unlock(&rm_lock);
		return 0;
	}
	return -EINVAL;
}
