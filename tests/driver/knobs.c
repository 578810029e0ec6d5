// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: how it is made to misbehave, /sys/module/nvidia/parameters/.
 *
 * Always true: whoever waits for a knob goes on as soon as it is cleared (0); nothing else has to be undone.
 */
#include "standin.h"

#include <linux/module.h>

struct knobs knobs = { .changed = __WAIT_QUEUE_HEAD_INITIALIZER(knobs.changed) };
EXPORT_SYMBOL_GPL(knobs);

static int knob_set(const char *text, const struct kernel_param *param)
{
	int error = param_set_int(text, param);

	if (error)
		return error;
	if (!READ_ONCE(knobs.lose))
		memory_find_lost();
	wake_up_all(&knobs.changed);
	return 0;
}

static const struct kernel_param_ops knob_ops = { .set = knob_set, .get = param_get_int };

#define KNOB(name, what) \
	module_param_cb(name, &knob_ops, &knobs.name, 0644); \
	MODULE_PARM_DESC(name, what)

KNOB(release_ms, "milliseconds that freeing each memory takes at a last release; the bytes fall in eight steps");
KNOB(defer_ms, "releases of /dev/nvidiaN and /dev/nvidia-uvm are left to a kernel thread, and done that much later");
KNOB(release_sleep, "last releases of what holds memory sleep, uninterruptibly, until cleared");
KNOB(release_spin, "last releases of what holds memory spin until cleared");
KNOB(ioctl_sleep, "requests sleep, uninterruptibly, until cleared");
KNOB(ioctl_spin, "requests spin until cleared");
KNOB(lose, "memory freed while set stays used, and is listed under nobody, until cleared");
KNOB(gone, "the GPU has fallen off the bus: requests fail with EIO, and NVML says GPU_IS_LOST");
