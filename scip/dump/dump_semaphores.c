/*
 * Finds out what a process's end will do to System V semaphores (SEM_UNDO), and which semaphores it was the
 * last to use.
 *
 * The kernel has no call to read a process's adjustments. But it refuses an operation with SEM_UNDO that
 * would move the adjustment out of -32768 .. 32767: it returns ERANGE before it changes anything. And a list
 * of operations is atomic. So a list that ends with an impossible operation (subtract 32768, which no
 * semaphore has: EAGAIN) changes neither values nor sempid, and its error shows whether the adjustment is
 * above or below a bound (ipc/sem.c, perform_atomic_semop_slow()). Two such lists show whether there is an
 * adjustment; only then a binary search finds its value.
 *
 * The threads of a process share their adjustments (CLONE_SYSVSEM), so one thread makes the calls.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "namespace/record.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"

enum {
	VALUE_MAX = 32767, /* SEMVMX, and SEMAEM, which bounds adjustments */
	AT_ONCE = 7,	   /* semaphores in one list: SEMOPM may be as small as 32 */
	OPS_EACH = 4,
	LISTS_AT_ONCE = 256,
};

struct set {
	int real, virtual;
	unsigned n;
	unsigned short *values;
};

/* A list of operations that cannot succeed as a whole. */
struct trial {
	struct sembuf ops[AT_ONCE * OPS_EACH + 1];
	unsigned n;
};

static void trial_add_operation(struct trial *trial, unsigned number, int op, int flags)
{
	if (op)
		trial->ops[trial->n++] = (struct sembuf){(unsigned short)number, (short)op, (short)flags};
}

/* Fails with ERANGE if the adjustment is above VALUE_MAX - `taken`. */
static void add_above(struct trial *trial, const struct set *set, unsigned number, int taken)
{
	trial_add_operation(trial, number, VALUE_MAX - set->values[number], 0);
	trial_add_operation(trial, number, -taken, SEM_UNDO);
}

/* ... if it is below `given` - VALUE_MAX - 1. */
static void add_below(struct trial *trial, const struct set *set, unsigned number, int given)
{
	trial_add_operation(trial, number, -(int)set->values[number], 0);
	trial_add_operation(trial, number, given > VALUE_MAX ? VALUE_MAX : given, SEM_UNDO);
	if (given > VALUE_MAX) {
		trial_add_operation(trial, number, -1, 0);
		trial_add_operation(trial, number, 1, SEM_UNDO);
	}
}

/* Makes up to LISTS_AT_ONCE trials; out[i] is -ERANGE, -EAGAIN or another error of trial i. */
static int run_trials(struct dump *dump, const struct set *set, struct trial *trials, unsigned n,
		      int64_t *out, struct err *err)
{
	struct batch *batch;
	int r = batch_begin(dump->process, &batch, err);

	for (unsigned i = 0; i < n && r >= 0; i++) {
		struct taddr where;

		trials[i].ops[trials[i].n++] = (struct sembuf){0, -VALUE_MAX - 1, IPC_NOWAIT};
		r = batch_data(batch, trials[i].ops, trials[i].n * sizeof(trials[i].ops[0]), &where);
		if (r >= 0)
			r = batch_add(batch, INJECT_CALL_ANY, SYS_semop,
				      remote_args((uint64_t)set->real, where.a, trials[i].n));
	}
	if (r >= 0)
		r = batch_run(batch, dump->caller, err);
	for (unsigned i = 0; i < n && r >= 0; i++)
		out[i] = batch_call(batch, (int)i)->ret;
	if (batch)
		batch_end(batch);
	return r;
}

static int note_undo(struct dump *dump, const struct set *set, unsigned number, int value, bool last)
{
	Pbeam__SysvUndo *out = message_add(dump->out, sysv_undo, pbeam__sysv_undo__descriptor);

	if (!out)
		return -ENOMEM;
	out->id = set->virtual;
	out->number = number;
	out->value = value;
	out->last = last;
	return 0;
}

static bool is_last(const struct dump *dump, const struct set *set, unsigned number)
{
	return semctl(set->real, (int)number, GETPID) == dump->process->pid;
}

/* Finds the value at which trials begin to fail. */
static int search_value(struct dump *dump, const struct set *set, unsigned number, bool positive,
			struct err *err)
{
	int low = 0, high = VALUE_MAX; /* the greatest that does not fail is within */

	while (low < high) {
		int middle = (low + high + 1) / 2, r;
		struct trial trial = {.n = 0};
		int64_t ret;

		if (positive)
			add_above(&trial, set, number, middle);
		else
			add_below(&trial, set, number, middle);
		r = run_trials(dump, set, &trial, 1, &ret, err);
		if (r < 0)
			return r;
		if (ret == -ERANGE)
			high = middle - 1;
		else
			low = middle;
	}
	return note_undo(dump, set, number, positive ? VALUE_MAX - low : low - VALUE_MAX - 1,
			 is_last(dump, set, number));
}

static int look_closer(struct dump *dump, const struct set *set, unsigned number, struct err *err)
{
	struct trial trials[2] = {{.n = 0}, {.n = 0}};
	int64_t ret[2];
	int r;

	add_above(&trials[0], set, number, VALUE_MAX);
	add_below(&trials[1], set, number, VALUE_MAX + 1);
	r = run_trials(dump, set, trials, 2, ret, err);
	if (r < 0)
		return r;
	if (ret[0] == -ERANGE || ret[1] == -ERANGE)
		return search_value(dump, set, number, ret[0] == -ERANGE, err);
	return is_last(dump, set, number) ? note_undo(dump, set, number, 0, true) : 0;
}

/* Semaphores first .. first + LISTS_AT_ONCE / 2 * AT_ONCE - 1. */
static int look_at_some(struct dump *dump, const struct set *set, unsigned first, struct err *err)
{
	auto_free struct trial *trials = calloc(LISTS_AT_ONCE, sizeof(*trials));
	auto_free int64_t *ret = calloc(LISTS_AT_ONCE, sizeof(*ret));
	unsigned n = 0;
	int r;

	if (!trials || !ret)
		return -ENOMEM;
	for (unsigned i = first; i < set->n && n < LISTS_AT_ONCE; i += AT_ONCE, n += 2)
		for (unsigned j = i; j < set->n && j < i + AT_ONCE; j++) {
			add_above(&trials[n], set, j, VALUE_MAX);
			add_below(&trials[n + 1], set, j, VALUE_MAX + 1);
		}
	r = run_trials(dump, set, trials, n, ret, err);
	for (unsigned i = 0; i < n / 2 && r >= 0; i++)
		for (unsigned j = first + i * AT_ONCE; j < set->n && j < first + (i + 1) * AT_ONCE && r >= 0;
		     j++) {
			if (ret[2 * i] == -ERANGE || ret[2 * i + 1] == -ERANGE)
				r = look_closer(dump, set, j, err);
			else if (is_last(dump, set, j))
				r = note_undo(dump, set, j, 0, true);
		}
	return r;
}

static int look_at_set(struct dump *dump, int real, struct err *err)
{
	struct semid_ds ds;
	struct set set = {.real = real,
			  .virtual = names_ipc_virtual(dump->process->names, NAMES_IPC_SEM, real)};
	int r = 0;

	if (semctl(real, 0, IPC_STAT, &ds) < 0)
		return 0; /* removed */
	set.n = (unsigned)ds.sem_nsems;
	auto_free unsigned short *values = calloc(set.n + 1, sizeof(*values));
	if (!values)
		return -ENOMEM;
	if (semctl(real, 0, GETALL, values) < 0)
		return 0; /* the coordinator, which saves the set, reports the error */
	set.values = values;
	for (unsigned first = 0; first < set.n && r >= 0; first += LISTS_AT_ONCE / 2 * AT_ONCE)
		r = look_at_some(dump, &set, first, err);
	return r;
}

int dump_semaphores(struct dump *dump, struct err *err)
{
	auto_free int32_t *sets = NULL;
	size_t n;
	int r = record_ipc_list(dump->process->keeper, NAMES_IPC_SEM, &sets, &n);

	if (r >= 0 && n && !dump_may_call(dump, SYS_semop)) {
		log_warn("vpid %d: its seccomp filter forbids semop, so what SEM_UNDO does at its end is not "
			 "known and not saved",
			 dump->process->vpid.n);
		return 0;
	}
	for (size_t i = 0; i < n && r >= 0; i++)
		r = look_at_set(dump, sets[i], err);
	return r < 0 ? err_wrap(err, r, "semaphores") : 0;
}
