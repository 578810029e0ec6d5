/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * STAND-IN for NVIDIA's driver, for tests only: its tracepoint nvidia:nvidia_dev_xid.
 *
 * Always true: name and fields are those that the real driver's format file shows.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nvidia

#if !defined(OUTLIVE_XID_H) || defined(TRACE_HEADER_MULTI_READ)
#define OUTLIVE_XID_H

#include <linux/pci.h>
#include <linux/tracepoint.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define xid_assign_str(field, text) __assign_str(field)
#else
#define xid_assign_str(field, text) __assign_str(field, text)
#endif

TRACE_EVENT(nvidia_dev_xid,
	TP_PROTO(const struct pci_dev *pdev, u32 error_code, const char *msg),
	TP_ARGS(pdev, error_code, msg),
	TP_STRUCT__entry(__string(dev, pci_name(pdev)) __field(u32, error_code) __string(msg, msg)),
	TP_fast_assign(
		xid_assign_str(dev, pci_name(pdev));
		__entry->error_code = error_code;
		xid_assign_str(msg, msg);
	),
	TP_printk("Dev: %s - Xid: %u - Message: %s", __get_str(dev), __entry->error_code, __get_str(msg))
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE xid
#include <trace/define_trace.h>
