/* Memory of a tracee, by process_vm_readv/writev, and by /proc/PID/mem where the protection forbids those. */
#ifndef SCIP_TRACEE_MEMORY_H
#define SCIP_TRACEE_MEMORY_H

#include "scip/tracee/process.h"

/* Copies exactly `len` bytes. 0, or -EFAULT if any of them cannot be read or written. */
must_check int memory_read(const struct process *src_tracee, struct taddr src, void *dest_tracer, size_t len);
must_check int memory_write(const struct process *dest_tracee, struct taddr dest, const void *src_tracer,
			    size_t len);
/* Writes read-only text too, through /proc/PID/mem (FOLL_FORCE). */
must_check int memory_write_force(const struct process *dest_tracee, struct taddr dest,
				  const void *src_tracer, size_t len);
/* Reads a NUL-terminated string of at most size - 1 bytes. Returns its length, -EFAULT or -ENAMETOOLONG. */
must_check ssize_t memory_read_string(const struct process *src_tracee, struct taddr src, char *dest_tracer,
				      size_t size);

#endif
