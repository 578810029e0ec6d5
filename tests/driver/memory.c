// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: memory, as references to numbers.
 *
 * Always true: a memory lives while it has a reference, whoever's; what dies while the knob `lose` is set stays used until the
 * knob is cleared.
 */
#include "standin.h"

#include <linux/module.h>
#include <linux/slab.h>

/* A slow release lets the memory fall in this many steps. */
#define STEPS 8

DEFINE_MUTEX(rm_lock);
LIST_HEAD(memories);
static u64 lost[GPUS_MAX];

u64 memory_used(u32 gpu)
{
	struct memory *memory;
	u64 sum = lost[gpu];

	list_for_each_entry(memory, &memories, all)
		if (memory->gpu == gpu)
			sum += memory->bytes;
	return sum;
}

void memory_find_lost(void)
{
	mutex_lock(&rm_lock);
	memset(lost, 0, sizeof(lost));
	mutex_unlock(&rm_lock);
}

struct ref *ref_to_same(struct client *client, struct memory *memory)
{
	struct ref *ref = kzalloc(sizeof(*ref), GFP_KERNEL);

	lockdep_assert_held(&rm_lock);
	if (!ref)
		return NULL;
	ref->client = client;
	ref->memory = memory;
	list_add_tail(&ref->node, &memory->refs);
	return ref;
}

/* NULL also when the GPU is full. */
struct ref *ref_to_new(struct client *client, u32 gpu, u64 bytes)
{
	u64 room = TOTAL - RESERVED - memory_used(gpu);
	struct memory *memory;
	struct ref *ref;

	lockdep_assert_held(&rm_lock);
	if (bytes > room)
		return NULL;
	memory = kzalloc(sizeof(*memory), GFP_KERNEL);
	if (!memory)
		return NULL;
	INIT_LIST_HEAD(&memory->refs);
	memory->bytes = bytes;
	memory->gpu = gpu;
	ref = ref_to_same(client, memory);
	if (!ref) {
		kfree(memory);
		return NULL;
	}
	list_add_tail(&memory->all, &memories);
	return ref;
}

void ref_put(struct ref *ref)
{
	struct memory *memory = ref->memory;

	lockdep_assert_held(&rm_lock);
	list_del(&ref->node);
	kfree(ref);
	if (!list_empty(&memory->refs))
		return;
	if (READ_ONCE(knobs.lose))
		lost[memory->gpu] += memory->bytes;
	list_del(&memory->all);
	kfree(memory);
}

void ref_put_slowly(struct ref *ref)
{
	struct memory *memory = ref->memory;
	u64 step = memory->bytes / STEPS;
	int left, ms;

	for (left = STEPS; left > 0; left--) {
		ms = READ_ONCE(knobs.release_ms);
		/* Only the last reference frees bytes, and what will be lost does not fall first. */
		if (ms <= 0 || READ_ONCE(knobs.lose) || !list_is_singular(&memory->refs))
			break;
		mutex_unlock(&rm_lock);
		wait_event_timeout(knobs.changed, READ_ONCE(knobs.release_ms) <= 0, msecs_to_jiffies(ms) / STEPS + 1);
		mutex_lock(&rm_lock);
		memory->bytes -= step;
	}
	ref_put(ref);
}

struct ref *standin_managed(u32 gpu, u64 bytes)
{
	struct ref *ref;

	mutex_lock(&rm_lock);
	ref = ref_to_new(NULL, gpu, bytes);
	mutex_unlock(&rm_lock);
	return ref;
}
EXPORT_SYMBOL_GPL(standin_managed);

void standin_put(struct ref *ref)
{
	mutex_lock(&rm_lock);
	ref_put_slowly(ref);
	mutex_unlock(&rm_lock);
}
EXPORT_SYMBOL_GPL(standin_put);
