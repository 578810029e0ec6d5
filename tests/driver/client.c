// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: RM clients and their objects.
 *
 * Always true: a client belongs to a description of /dev/nvidiactl, never to a process, and dies at that description's last
 * release or when it is freed by name; it is usable through that description (or one registered to it) alone.
 */
#include "standin.h"

#include <linux/file.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/slab.h>

#define FIRST_CLIENT 0xc1d00000
#define FIRST_OBJECT 0xcaf00000

static LIST_HEAD(clients);

u32 client_make(struct nv_file *owner, u32 handle, struct client **made)
{
	static u32 next;
	struct client *client;

	lockdep_assert_held(&rm_lock);
	if (handle && client_any(handle))
		return INSERT_DUPLICATE_NAME;
	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		return NO_MEMORY;
	while (!handle || client_any(handle))
		handle = FIRST_CLIENT + (next++ & 0xfffff);
	INIT_LIST_HEAD(&client->objects);
	client->owner = owner;
	client->pid = get_task_pid(current, PIDTYPE_TGID);
	client->handle = handle;
	list_add_tail(&client->all, &clients);
	*made = client;
	return OK;
}

struct client *client_any(u32 handle)
{
	struct client *client;

	list_for_each_entry(client, &clients, all)
		if (client->handle == handle)
			return client;
	return NULL;
}

struct client *client_of(struct nv_file *file, u32 handle)
{
	struct client *client = client_any(handle);

	if (!client || client->dying || client->owner != (file->control ?: file))
		return NULL;
	return client;
}

static void object_drop(struct object *object, bool slowly)
{
	/* Out of the list only when the bytes are gone: they are charged until then. */
	if (object->ref && slowly)
		ref_put_slowly(object->ref);
	else if (object->ref)
		ref_put(object->ref);
	list_del(&object->node);
	kfree(object);
}

static void client_end(struct client *client, bool slowly)
{
	client->dying = true;
	while (!list_empty(&client->objects))
		object_drop(list_first_entry(&client->objects, struct object, node), slowly);
	list_del(&client->all);
	put_pid(client->pid);
	kfree(client);
}

void client_free(struct client *client)
{
	client_end(client, false);
}

/* Even one without memory is work for the driver at a release. */
bool has_clients(struct nv_file *owner)
{
	struct client *client;
	bool found = false;

	mutex_lock(&rm_lock);
	list_for_each_entry(client, &clients, all)
		found |= client->owner == owner;
	mutex_unlock(&rm_lock);
	return found;
}

static struct client *next_of(struct nv_file *owner)
{
	struct client *client;

	list_for_each_entry(client, &clients, all)
		if (client->owner == owner)
			return client;
	return NULL;
}

void clients_release(struct nv_file *owner)
{
	struct client *client;

	lockdep_assert_held(&rm_lock);
	list_for_each_entry(client, &clients, all)
		if (client->owner == owner)
			client->dying = true;
	while ((client = next_of(owner)))
		client_end(client, true);
}

struct object *object_find(struct client *client, u32 handle)
{
	struct object *object;

	list_for_each_entry(object, &client->objects, node)
		if (object->handle == handle)
			return object;
	return NULL;
}

/* The GPU of an object of this handle, which may also be the client itself. */
u32 object_gpu(struct client *client, u32 handle)
{
	struct object *object = object_find(client, handle);

	return object ? object->gpu : NO_GPU;
}

u32 object_make(struct client *client, u32 parent, u32 handle, u32 class, struct object **made)
{
	static u32 next;
	struct object *object;

	lockdep_assert_held(&rm_lock);
	if (parent != client->handle && !object_find(client, parent))
		return OBJECT_NOT_FOUND;
	if (handle && (handle == client->handle || object_find(client, handle)))
		return INSERT_DUPLICATE_NAME;
	object = kzalloc(sizeof(*object), GFP_KERNEL);
	if (!object)
		return NO_MEMORY;
	while (!handle || object_find(client, handle))
		handle = FIRST_OBJECT + (next++ & 0xfffff);
	object->handle = handle;
	object->parent = parent;
	object->class = class;
	object->gpu = object_gpu(client, parent);
	list_add(&object->node, &client->objects);
	*made = object;
	return OK;
}

/* With all that descends from it. A child is newer than its parent, so the list is walked from its old end. */
void object_free(struct client *client, u32 handle)
{
	struct object *object, *next, *parent;

	lockdep_assert_held(&rm_lock);
	list_for_each_entry_reverse(object, &client->objects, node) {
		parent = object_find(client, object->parent);
		object->doomed = object->handle == handle || (parent && parent->doomed);
	}
	list_for_each_entry_safe(object, next, &client->objects, node)
		if (object->doomed)
			object_drop(object, false);
}

/* UVM's own duplicate of what a client named through /dev/nvidiactl. */
struct ref *standin_dup(int control_fd, u32 handle, u32 object_handle, u32 *status)
{
	struct file *control = nv_control_get(control_fd);
	struct object *object = NULL;
	struct client *client;
	struct ref *ref = NULL;

	*status = INVALID_ARGUMENT;
	if (!control)
		return NULL;
	mutex_lock(&rm_lock);
	client = client_of(control->private_data, handle);
	if (client)
		object = object_find(client, object_handle);
	*status = client ? OBJECT_NOT_FOUND : INVALID_CLIENT;
	if (object && object->ref) {
		ref = ref_to_same(NULL, object->ref->memory);
		*status = ref ? OK : NO_MEMORY;
	}
	mutex_unlock(&rm_lock);
	fput(control);
	return ref;
}
EXPORT_SYMBOL_GPL(standin_dup);
