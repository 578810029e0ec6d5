// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: an Xid, when /sys/module/nvidia/parameters/xid is written.
 *
 *     echo "79 1234 python3 GPU has fallen off the bus." > xid      (number, PID, name, message; a number alone will do)
 *
 * Always true: the first GPU reports it, in the kernel log and by the tracepoint, as the real driver does.
 */
#include "standin.h"

#define CREATE_TRACE_POINTS
#include "xid.h"

#include <linux/module.h>

static int xid_set(const char *text, const struct kernel_param *param)
{
	/* There is no such device; what a tracer gets is a name. */
	static struct pci_dev nowhere;
	char name[32] = "", message[96] = "stand-in";
	unsigned int number, pid = 0;
	int fields = sscanf(text, "%u %u %31s %95[^\n]", &number, &pid, name, message);

	if (fields < 1)
		return -EINVAL;
	if (fields < 3)
		printk(KERN_ERR "NVRM: Xid (PCI:%.10s): %u, %s\n", gpu_pci(0), number, message);
	else
		printk(KERN_ERR "NVRM: Xid (PCI:%.10s): %u, pid=%u, name=%s, %s\n", gpu_pci(0), number, pid, name, message);
	nowhere.dev.init_name = gpu_pci(0);
	trace_nvidia_dev_xid(&nowhere, number, message);
	return 0;
}

static const struct kernel_param_ops xid_ops = { .set = xid_set };
module_param_cb(xid, &xid_ops, NULL, 0200);
MODULE_PARM_DESC(xid, "written: report this Xid, \"NUMBER PID NAME MESSAGE\"");
