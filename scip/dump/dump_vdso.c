/*
 * Makes an image independent of this kernel's vdso.
 *
 * A thread that was stopped inside the vdso is stepped out of it: on another kernel the instructions and the
 * data behind it are others (scip/rebuild/rebuild_vdso.c). It has then called the function before the
 * checkpoint instead of after it. A call takes some 300 instructions; getrandom() of a large buffer can take
 * more than STEPS_MAX, and the checkpoint is refused.
 *
 * A program may have written to its vdso, which is private memory. Then the text is saved with its mapping.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "scip/tracee/map_query.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/vdso.h"

enum {
	STEPS_MAX = 30000, /* about 0.1 s */
	TEXT_MAX = 1 << 20,
	SPIN_BYTES = 2, /* at the end of the last page, written by scip (handoff.c) */
};

/* The range that was found last: most threads are stopped in the same one. */
struct found {
	struct taddr start, end;
	bool is_vdso;
};

static int leave_vdso(struct dump *dump, struct tracee *tracee, struct found *found, struct err *err)
{
	struct user_regs_struct regs;
	struct taddr at;
	int r = regs_get(tracee, &regs);

	if (r < 0)
		return err_code(err, r, "registers of thread %d", tracee->tid);
	at.a = regs.rip;
	if (at.a < found->start.a || at.a >= found->end.a)
		found->is_vdso = map_query_is(dump->caller->tid, at, "[vdso]", &found->start, &found->end);
	return found->is_vdso ? remote_step_out(tracee, found->start, found->end, STEPS_MAX, err) : 0;
}

int dump_leave_vdso(struct dump *dump, struct err *err)
{
	struct found found = {{0}, {0}, false};

	for (struct tracee *t = dump->process->tracees; t; t = t->next) {
		int r;

		if (t->stop == TRACEE_RUNNING || t->stop == TRACEE_EXITED)
			continue;
		r = leave_vdso(dump, t, &found, err);
		if (r < 0)
			return err_wrap(err, r, "leave the vdso");
	}
	return 0;
}

int dump_vdso_text(const struct process *process, Pbeam__Mapping *out, struct err *err)
{
	uint64_t bytes = out->end - out->start;
	auto_free uint8_t *text = NULL, *usual = NULL;
	const void *vdso;
	size_t len;
	int r;

	if (bytes > TEXT_MAX || bytes < SPIN_BYTES)
		return 0;
	text = malloc(bytes);
	usual = calloc(1, bytes);
	if (!text || !usual)
		return -ENOMEM;
	r = memory_read(process, (struct taddr){out->start}, text, bytes);
	if (r < 0)
		return err_code(err, r, "read the vdso at %#lx", (unsigned long)out->start);
	memset(text + bytes - SPIN_BYTES, 0, SPIN_BYTES);
	vdso = vdso_bytes(&len);
	bytes_copy(usual, vdso, len < bytes ? len : bytes);
	return bytes_equal(text, usual, bytes) ? 0 : message_bytes(&out->text, text, bytes);
}
