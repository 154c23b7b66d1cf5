/* Parsers of /proc files. All reads are bounded: the text of another process is hostile. */
#ifndef SCIP_TRACEE_PROCFS_H
#define SCIP_TRACEE_PROCFS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "scip/tracee/process.h"

/* One line of /proc/PID/smaps (or maps). */
struct procfs_map {
	uint64_t start, end, offset, ino;
	uint32_t dev_major, dev_minor;
	int prot;	   /* PROT_* */
	bool shared;	   /* MAP_SHARED */
	char vm_flags[96]; /* "rd wr mr ... gd", with smaps; each two letters and a space */
	uint64_t locked_bytes;
	uint64_t anonymous_bytes, swap_bytes; /* smaps: Anonymous, Swap */
	uint64_t shared_bytes;		      /* smaps: Shared_Clean + Shared_Dirty */
	uint64_t page_bytes;		      /* smaps: KernelPageSize */
	uint32_t pkey;			      /* smaps: ProtectionKey */
	char *name;   /* path, [heap], [anon:...], or ""; owned by the list; octal escapes undone */
	bool deleted; /* " (deleted)" was there; it is cut off */
};
struct procfs_maps {
	struct procfs_map *v;
	size_t n;
};
must_check int procfs_maps_read(pid_t pid, bool smaps, struct procfs_maps *out, struct err *err);
void procfs_maps_free(struct procfs_maps *maps);
/* Parses the text of maps or smaps; public for the fuzzer. */
must_check int procfs_maps_parse(const char *text, size_t len, struct procfs_maps *out, struct err *err);

/* /proc/PID/stat and status. */
struct procfs_stat {
	char state; /* R S D T t Z X */
	char comm[64];
	pid_t ppid, pgrp, session, tpgid;
	uint64_t tty_nr;
	int exit_signal, processor, exit_code;
	uint64_t cpu_ns[CPU_TIMES]; /* in steps of a clock tick */
	uint64_t start_time, arg_start, arg_end, env_start, env_end, start_code, end_code, start_stack,
		start_data, end_data, start_brk;
	long nice, num_threads;
};
must_check int procfs_stat_read(pid_t pid, pid_t tid, struct procfs_stat *out, struct err *err);

/* The value of a "Key:\tvalue" line of status or fdinfo text, or NULL. */
const char *procfs_field(const char *text, const char *key);
/* The value of a "Key: N kB" line of /proc/PID/FILE in bytes, 0 if it cannot be read. */
uint64_t procfs_bytes(pid_t pid, const char *file, const char *key);
/* The resident memory of a process in bytes, 0 if it has ended. */
uint64_t procfs_resident(pid_t pid);

/* Calls `each` for every entry of the directory that is a number (task, fd, ...). Stops at a non-zero
 * return and returns it. */
must_check int procfs_each_number(const char *dir, int (*each)(int number, void *arg), void *arg);

/* Lists the children of all threads, including zombies, from task/TID/children. The caller frees *out.
 * Returns their number. */
must_check int procfs_children(pid_t pid, pid_t **out, struct err *err);

#endif
