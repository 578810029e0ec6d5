// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * STAND-IN for NVIDIA's driver, for tests only: the books, as the JSON that the NVML double reads, in
 * /proc/driver/nvidia-standin; and the few lines of /proc/driver/nvidia that a tracer reads.
 *
 * Always true, as seen on an H200: memory is charged to the oldest client that still has it, under the PID that made that client,
 * dead or not; what only mappings and exported handles keep is used and charged to nobody.
 */
#include "standin.h"

#include <linux/module.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#define NAME "NVIDIA H200 (stand-in)"

static struct proc_dir_entry *folder;

/* NVML's spelling: eight digits of domain, capitals. */
static void show_pci(struct seq_file *out, u32 gpu)
{
	seq_printf(out, "0000%.5s%02X:00.0", gpu_pci(gpu), 0x0b + gpu);
}

const char *gpu_pci(u32 gpu)
{
	static const char *const names[GPUS_MAX] = { "0000:0b:00.0", "0000:0c:00.0", "0000:0d:00.0", "0000:0e:00.0",
						     "0000:0f:00.0", "0000:10:00.0", "0000:11:00.0", "0000:12:00.0" };

	return names[gpu];
}

u32 gpu_of_uuid(const u8 uuid[16])
{
	static const u8 start[15] = { 0x57, 0xa4, 0xd1, 0x70 };

	return memcmp(uuid, start, sizeof(start)) || uuid[15] >= gpus ? NO_GPU : uuid[15];
}
EXPORT_SYMBOL_GPL(gpu_of_uuid);

/* Who is charged; NULL: nobody. */
static struct pid *payer(struct memory *memory)
{
	struct ref *ref;

	list_for_each_entry(ref, &memory->refs, node)
		if (ref->client)
			return ref->client->pid;
	return NULL;
}

static bool listed_before(struct memory *memory, struct pid *pid)
{
	struct memory *before = memory;

	list_for_each_entry_continue_reverse(before, &memories, all)
		if (before->gpu == memory->gpu && payer(before) == pid)
			return true;
	return false;
}

static void show_processes(struct seq_file *out, u32 gpu)
{
	struct memory *memory, *same;
	const char *comma = "";
	struct pid *pid;
	u64 bytes;

	list_for_each_entry(memory, &memories, all) {
		pid = memory->gpu == gpu ? payer(memory) : NULL;
		/* The reader's PID namespace, as the real driver answers; who is not in it is not listed. */
		if (!pid || !pid_vnr(pid) || listed_before(memory, pid))
			continue;
		bytes = 0;
		list_for_each_entry(same, &memories, all)
			if (same->gpu == gpu && payer(same) == pid)
				bytes += same->bytes;
		seq_printf(out, "%s\n    {\"pid\": %d, \"bytes\": %llu, \"use\": \"compute\"}", comma, pid_vnr(pid), bytes);
		comma = ",";
	}
}

static int show_books(struct seq_file *out, void *unused)
{
	u32 gpu;

	mutex_lock(&rm_lock);
	seq_printf(out, "{\"driver\": \"580.0-double\", \"gpus\": [");
	for (gpu = 0; gpu < gpus; gpu++) {
		seq_printf(out, "%s\n  {\"name\": \"" NAME "\", \"uuid\": \"GPU-57a4d170-0000-0000-0000-%012x\", \"minor\": %u, \"pci\": \"",
			   gpu ? "," : "", gpu, gpu);
		show_pci(out, gpu);
		seq_printf(out, "\",\n   \"total\": %llu, \"reserved\": %llu, \"used\": %llu, \"processes\": [", TOTAL, RESERVED,
			   memory_used(gpu));
		show_processes(out, gpu);
		seq_puts(out, "]}");
	}
	seq_puts(out, "]");
	mutex_unlock(&rm_lock);
	/* NVML_ERROR_GPU_IS_LOST. */
	if (READ_ONCE(knobs.gone))
		seq_puts(out, ",\n \"errors\": {\"nvmlDeviceGetMemoryInfo\": 15, \"nvmlDeviceGetMemoryInfo_v2\": 15, "
			      "\"nvmlDeviceGetComputeRunningProcesses_v3\": 15, \"nvmlDeviceGetGraphicsRunningProcesses_v3\": 15, "
			      "\"nvmlDeviceGetMPSComputeRunningProcesses_v3\": 15}");
	seq_puts(out, "}\n");
	return 0;
}

static int show_information(struct seq_file *out, void *unused)
{
	unsigned long number = (unsigned long)out->private;

	seq_printf(out, "Model: \t\t " NAME "\nGPU UUID: \t GPU-57a4d170-0000-0000-0000-%012lx\n", number);
	seq_printf(out, "Bus Location: \t %s\nDevice Minor: \t %lu\n", gpu_pci(number), number);
	return 0;
}

static int show_version(struct seq_file *out, void *unused)
{
	seq_puts(out, "NVRM version: " STANDIN_VERSION ": " STANDIN_WHAT "\n");
	return 0;
}

int books_open(void)
{
	struct proc_dir_entry *cards;
	unsigned long gpu;

	folder = proc_mkdir("driver/nvidia", NULL);
	if (!folder || !proc_create_single("driver/nvidia-standin", 0444, NULL, show_books))
		goto failed;
	proc_create_single("version", 0444, folder, show_version);
	cards = proc_mkdir("gpus", folder);
	for (gpu = 0; cards && gpu < gpus; gpu++)
		proc_create_single_data("information", 0444, proc_mkdir(gpu_pci(gpu), cards), show_information, (void *)gpu);
	return 0;
failed:
	books_close();
	return -ENOMEM;
}

void books_close(void)
{
	remove_proc_entry("driver/nvidia-standin", NULL);
	proc_remove(folder);
}
