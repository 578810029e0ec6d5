// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: memory exported as a dma-buf, by a request of /dev/nvidiaN.
 *
 * Always true: the buffer keeps the memory until its last reference is gone; nobody can attach to it, because there is nothing.
 */
#include "standin.h"

#include <linux/dma-buf.h>
#include <linux/fcntl.h>
#include <linux/module.h>
#include <linux/slab.h>

#define HANDLES_MAX 128

/* nv_ioctl_export_to_dma_buf_fd_t of branches 570 to 595. */
struct args_export {
	s32 fd;
	u32 client, total_objects, objects, index;
	u64 total_size;
	u8 mapping_type, allow_mmap, pad[2];
	u32 handles[HANDLES_MAX];
	u64 offsets[HANDLES_MAX], sizes[HANDLES_MAX];
	u32 status;
};
static_assert(sizeof(struct args_export) == 2608 && offsetof(struct args_export, handles) == 36);
static_assert(offsetof(struct args_export, status) == 2600);

struct exported {
	u32 count;
	struct ref *refs[HANDLES_MAX];
};

static void exported_free(struct exported *exported)
{
	u32 at;

	mutex_lock(&rm_lock);
	for (at = 0; at < exported->count; at++)
		ref_put_slowly(exported->refs[at]);
	mutex_unlock(&rm_lock);
	kfree(exported);
}

static void nv_dma_buf_release(struct dma_buf *buffer)
{
	exported_free(buffer->priv);
}

static struct sg_table *no_map(struct dma_buf_attachment *attachment, enum dma_data_direction direction)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void no_unmap(struct dma_buf_attachment *attachment, struct sg_table *table, enum dma_data_direction direction)
{
}

static const struct dma_buf_ops nv_dma_buf_ops = {
	.map_dma_buf = no_map,
	.unmap_dma_buf = no_unmap,
	.release = nv_dma_buf_release,
};

/* References to all objects, or NULL and why. */
static struct exported *collect(struct nv_file *file, const struct args_export *args, u32 *status)
{
	struct exported *exported = kzalloc(sizeof(*exported), GFP_KERNEL);
	struct object *object = NULL;
	struct client *client;
	struct ref *ref;
	u32 at;

	*status = exported ? OK : NO_MEMORY;
	if (!exported)
		return NULL;
	mutex_lock(&rm_lock);
	client = client_of(file, args->client);
	if (!client)
		*status = INVALID_CLIENT;
	for (at = 0; !*status && at < args->objects; at++) {
		object = object_find(client, args->handles[at]);
		ref = object && object->ref ? ref_to_same(NULL, object->ref->memory) : NULL;
		if (ref)
			exported->refs[exported->count++] = ref;
		else
			*status = INVALID_OBJECT;
	}
	mutex_unlock(&rm_lock);
	if (!*status)
		return exported;
	exported_free(exported);
	return NULL;
}

long dmabuf_export(struct nv_file *file, void *arguments)
{
	struct args_export *args = arguments;
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct exported *exported;
	struct dma_buf *buffer;

	args->status = INVALID_ARGUMENT;
	/* One step only: a buffer is never added to. */
	if (args->fd != -1 || !args->objects || args->objects > HANDLES_MAX || args->objects != args->total_objects)
		return 0;
	exported = collect(file, args, &args->status);
	if (!exported)
		return 0;
	info.exp_name = "nv_dmabuf";
	info.ops = &nv_dma_buf_ops;
	info.size = round_up(args->total_size ?: 1, PAGE_SIZE);
	info.flags = O_RDWR;
	info.priv = exported;
	buffer = dma_buf_export(&info);
	if (IS_ERR(buffer)) {
		exported_free(exported);
		return PTR_ERR(buffer);
	}
	args->fd = dma_buf_fd(buffer, O_CLOEXEC);
	if (args->fd < 0) {
		dma_buf_put(buffer);
		return args->fd;
	}
	return 0;
}

MODULE_IMPORT_NS(DMA_BUF);
