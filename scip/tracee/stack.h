/*
 * Stacks of threads, unwound with libunwind from registers and memory of a stopped process or an image.
 */
#ifndef SCIP_TRACEE_STACK_H
#define SCIP_TRACEE_STACK_H

#include <stdio.h>

#include "scip/tracee/process.h"

/* One mapping of the program. Sorted by address. */
struct stack_mapping {
	uint64_t start, end, offset;
	const char *name; /* path, "[vdso]", or "" */
	const char *file; /* to read symbols from; NULL if the file is deleted or changed */
};

/* A program whose stacks are shown. `read` copies `len` bytes of its memory, 0 or -EFAULT. For an image it
 * takes the pages of the image and, where those are clean, of the files. */
struct stack_program {
	const struct stack_mapping *mappings;
	size_t nmappings;
	int (*read)(void *arg, uint64_t address, void *buf, size_t len);
	void *arg;
};

/* Writes one thread's frames, innermost first, a line for each:
 *   #3  0x00007f32c8a4d1f7 nanosleep+0x17 (/lib/x86_64-linux-gnu/libc.so.6)
 * Stops where unwinding fails; the only errors are those of the stream. Hostile memory can only produce wrong
 * frames.
 */
must_check int stack_write_thread(const struct stack_program *program, const struct user_regs_struct *regs,
				  FILE *out);

/* Writes the stacks of all threads of a live process. For running threads only the name is written. */
must_check int stack_write(struct process *process, FILE *out, struct err *err);

#endif
