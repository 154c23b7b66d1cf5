#include "proto/remote_call.h"

#include <sys/syscall.h>

#define NUMBER	REMOTE_CALL_NUMBER
#define WHICH	REMOTE_CALL_WHICH
#define PROCESS REMOTE_CALL_PROCESS
#define IN	REMOTE_CALL_IN
#define OUT	REMOTE_CALL_OUT

enum {
	PRIORITY = 4 /* struct sched_param */,
	TIME = 16 /* struct timespec */,
	LIMIT = 16 /* struct rlimit64 */,
	ATTRIBUTES = 56 /* struct sched_attr, Linux 5.3 */
};

static const struct remote_call_row rows[] = {
	{.number = SYS_getpgid, .args = {PROCESS}, .gives_process = true},
	{.number = SYS_getsid, .args = {PROCESS}, .gives_process = true},
	{.number = SYS_getpriority, .args = {WHICH, PROCESS}},
	{.number = SYS_setpriority, .args = {WHICH, PROCESS, NUMBER}},
	{.number = SYS_ioprio_get, .args = {WHICH, PROCESS}},
	{.number = SYS_ioprio_set, .args = {WHICH, PROCESS, NUMBER}},
	{.number = SYS_sched_getscheduler, .args = {PROCESS}},
	{.number = SYS_sched_setscheduler, .args = {PROCESS, NUMBER, IN}, .in = PRIORITY},
	{.number = SYS_sched_getparam, .args = {PROCESS, OUT}, .out = PRIORITY},
	{.number = SYS_sched_setparam, .args = {PROCESS, IN}, .in = PRIORITY},
	{.number = SYS_sched_rr_get_interval, .args = {PROCESS, OUT}, .out = TIME},
	{.number = SYS_sched_getaffinity, .args = {PROCESS, NUMBER, OUT}, .size = 1},
	{.number = SYS_sched_setaffinity, .args = {PROCESS, NUMBER, IN}, .size = 1},
	{.number = SYS_sched_getattr, .args = {PROCESS, OUT, NUMBER, NUMBER}, .size = 2},
	{.number = SYS_sched_setattr, .args = {PROCESS, IN, NUMBER}, .in = ATTRIBUTES},
	{.number = SYS_prlimit64, .args = {PROCESS, NUMBER, IN, OUT}, .in = LIMIT, .out = LIMIT},
};

const struct remote_call_row *remote_call_find(int64_t number)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].number == number)
			return &rows[i];
	return NULL;
}

int remote_call_arg(const struct remote_call_row *row, enum remote_call_arg kind)
{
	for (int i = 0; i < 6; i++)
		if (row->args[i] == kind)
			return i;
	return -1;
}

size_t remote_call_bytes(const struct remote_call_row *row, enum remote_call_arg kind, const int64_t args[6])
{
	size_t fixed = kind == IN ? row->in : row->out, n = (uint32_t)args[row->size];

	if (remote_call_arg(row, kind) < 0)
		return 0;
	if (fixed)
		return fixed;
	return n < REMOTE_CALL_BYTES ? n : REMOTE_CALL_BYTES;
}
