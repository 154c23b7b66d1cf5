/*
 * Collects timers. /proc/PID/timers lists the POSIX timers and what they notify. The time left and the
 * overruns can be read only by the process itself, so a batch reads these and the three interval timers.
 */
#include "scip/dump/dump_parts.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "syscalls/clock_id.h"

enum { ITIMERS = 3, TIMERS_TEXT_MAX = 8 << 20, TIMERS_AT_ONCE = 256 };

static const uint64_t NS = 1000000000u;

/* "notify: signal/tid.123" */
static int parse_notify(const char *line, Pbeam__PosixTimer *timer)
{
	char how[16], who[8];
	int number;

	if (sscanf(line, "notify: %15[a-z]/%7[a-z].%d", how, who, &number) != 3)
		return -EINVAL;
	if (!strcmp(how, "signal"))
		timer->notify = SIGEV_SIGNAL;
	else if (!strcmp(how, "none"))
		timer->notify = SIGEV_NONE;
	else if (!strcmp(how, "thread"))
		timer->notify = SIGEV_THREAD;
	else
		return -EINVAL;
	if (!strcmp(who, "tid")) {
		timer->notify |= SIGEV_THREAD_ID;
		timer->notify_vtid = number;
	}
	return 0;
}

static int parse_timer_line(const char *line, Pbeam__PosixTimer **timer, Pbeam__Process *out)
{
	unsigned long long value;
	int number;

	if (sscanf(line, "ID: %d", &number) == 1) {
		*timer = message_add(out, timers, pbeam__posix_timer__descriptor);
		if (!*timer)
			return -ENOMEM;
		(*timer)->id = number;
		return 0;
	}
	if (!*timer)
		return -EINVAL;
	if (sscanf(line, "signal: %d/%llx", &number, &value) == 2) {
		(*timer)->signal = number;
		(*timer)->sigev_value = value;
		return 0;
	}
	if (!strncmp(line, "notify: ", 8))
		return parse_notify(line, *timer);
	if (sscanf(line, "ClockID: %d", &number) == 1) {
		(*timer)->clock = number;
		return 0;
	}
	return -EINVAL;
}

int dump_parse_timers(const char *text, Pbeam__Process *out, struct err *err)
{
	Pbeam__PosixTimer *timer = NULL;

	while (*text) {
		char line[256];
		size_t len = strcspn(text, "\n");

		if (len >= sizeof(line))
			return err_set(err, -EINVAL, "a line of the timer list is too long");
		memcpy(line, text, len);
		line[len] = '\0';
		text += len + (text[len] == '\n');
		if (len) {
			int r = parse_timer_line(line, &timer, out);

			if (r < 0)
				return err_code(err, r, "timer list: '%s'", line);
		}
	}
	return 0;
}

static int read_list(struct dump *dump, struct err *err)
{
	auto_free char *text = NULL;
	char path[64];
	int r;

	snprintf(path, sizeof(path), "/proc/%d/timers", dump->process->pid);
	r = io_slurp(-100, path, TIMERS_TEXT_MAX, &text, NULL);
	if (r == -ENOENT)
		return 0; /* a kernel without CONFIG_CHECKPOINT_RESTORE lists none: refused by the doctor */
	if (r < 0)
		return err_code(err, r, "read %s", path);
	r = dump_parse_timers(text, dump->out, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < dump->out->n_timers; i++) {
		Pbeam__PosixTimer *timer = dump->out->timers[i];

		if (clock_id_number(timer->clock) > 0)
			timer->clock = clock_id_of(timer->clock,
						   names_virtual(dump->process->names,
								 (struct rpid){clock_id_number(timer->clock)})
							   .n);
		if (timer->notify_vtid)
			timer->notify_vtid =
				names_virtual(dump->process->names, (struct rpid){timer->notify_vtid}).n;
	}
	return 0;
}

static uint64_t to_nanoseconds(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * NS + (uint64_t)t->tv_nsec;
}

int dump_ask_itimers(struct dump *dump, struct batch *batch, struct dump_asked *asked)
{
	int r = batch_data(batch, NULL, ITIMERS * sizeof(struct itimerval), &asked->at);

	for (unsigned which = 0; which < ITIMERS && r >= 0; which++)
		r = batch_add(batch, 0, SYS_getitimer,
			      remote_args(which, asked->at.a + which * sizeof(struct itimerval)));
	return r;
}

int dump_take_itimers(struct dump *dump, struct batch *batch, const struct dump_asked *asked)
{
	const struct itimerval *got = batch_local(batch, asked->at);

	for (unsigned which = 0; which < ITIMERS; which++) {
		const struct itimerval *it = &got[which];
		Pbeam__IntervalTimer *out;

		if (!it->it_value.tv_sec && !it->it_value.tv_usec && !it->it_interval.tv_sec &&
		    !it->it_interval.tv_usec)
			continue;
		out = message_add(dump->out, itimers, pbeam__interval_timer__descriptor);
		if (!out)
			return -ENOMEM;
		out->which = which;
		out->value_us = (uint64_t)it->it_value.tv_sec * 1000000u + (uint64_t)it->it_value.tv_usec;
		out->interval_us =
			(uint64_t)it->it_interval.tv_sec * 1000000u + (uint64_t)it->it_interval.tv_usec;
	}
	return 0;
}

/* Reads the times of up to TIMERS_AT_ONCE timers, from number `from` of the list on. */
static int ask_timers(struct dump *dump, size_t from, size_t n, struct err *err)
{
	struct batch *batch;
	struct itimerspec *got;
	struct taddr at;
	int overrun[TIMERS_AT_ONCE];
	int r = batch_begin(dump->process, &batch, err);

	if (r < 0)
		return r;
	r = batch_data(batch, NULL, n * sizeof(*got), &at);
	for (size_t i = 0; i < n && r >= 0; i++) {
		uint64_t id = (uint64_t)dump->out->timers[from + i]->id;

		r = batch_add(batch, 0, SYS_timer_gettime, remote_args(id, at.a + i * sizeof(*got)));
		if (r >= 0)
			r = overrun[i] =
				batch_add(batch, INJECT_CALL_ANY, SYS_timer_getoverrun, remote_args(id));
	}
	if (r >= 0)
		r = batch_run(batch, dump->caller, err);
	got = r >= 0 ? batch_local(batch, at) : NULL;
	for (size_t i = 0; i < n && r >= 0; i++) {
		Pbeam__PosixTimer *timer = dump->out->timers[from + i];

		timer->value_ns = to_nanoseconds(&got[i].it_value);
		timer->interval_ns = to_nanoseconds(&got[i].it_interval);
		timer->overrun = (int32_t)batch_call(batch, overrun[i])->ret;
	}
	batch_end(batch);
	return r;
}

int dump_timers(struct dump *dump, struct err *err)
{
	int r = read_list(dump, err);

	for (size_t from = 0; from < dump->out->n_timers && r >= 0; from += TIMERS_AT_ONCE) {
		size_t n = dump->out->n_timers - from;

		r = ask_timers(dump, from, n < TIMERS_AT_ONCE ? n : TIMERS_AT_ONCE, err);
	}
	return r < 0 ? err_wrap(err, r, "timers") : 0;
}
