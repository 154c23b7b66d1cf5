/* The guest keeper's part of its remote console. */
#include "scip/job/remote_console.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/job/user_terminal.h"

enum { FLUSH_MS = 5000, NAP_NS = 1000000 };

static enum _Pbeam__ConsoleStream__Kind stream_kind_at_home(const Pbeam__MigrateBegin *begin, int stream)
{
	for (size_t i = 0; i < begin->job->n_console; i++)
		if (begin->job->console[i]->index == stream)
			return begin->job->console[i]->kind;
	return PBEAM__CONSOLE_STREAM__KIND__CLOSED;
}

static int remote_console_make_pipe(struct job *job, int stream, struct err *err)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(err, "make a pipe");
	job->console[stream] = ends[stream ? 1 : 0];
	job->console_ends[stream] = ends[stream ? 0 : 1];
	return 0;
}

static int remote_console_make_stream(struct job *job, int stream, enum _Pbeam__ConsoleStream__Kind kind,
				      int slave, struct err *err)
{
	switch (kind) {
	case PBEAM__CONSOLE_STREAM__KIND__TTY:
		job->console[stream] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
		break;
	case PBEAM__CONSOLE_STREAM__KIND__PIPE:
	case PBEAM__CONSOLE_STREAM__KIND__SOCKET:
		return remote_console_make_pipe(job, stream, err);
	case PBEAM__CONSOLE_STREAM__KIND__NULLDEV:
		job->console[stream] = open("/dev/null", O_RDWR | O_CLOEXEC);
		break;
	case PBEAM__CONSOLE_STREAM__KIND__FILE: /* opened by its path */
	case PBEAM__CONSOLE_STREAM__KIND__CLOSED:
	case _PBEAM__CONSOLE_STREAM__KIND_IS_INT_SIZE:
		return 0;
	}
	return job->console[stream] < 0 ? err_sys(err, "make standard stream %d", stream) : 0;
}

int remote_console_make_streams(struct job *job, const Pbeam__MigrateBegin *begin, struct err *err)
{
	auto_close int slave = -1;
	bool terminal = false;
	int r = 0;

	job->remote_console = calloc(1, sizeof(*job->remote_console));
	if (!job->remote_console)
		return err_code(err, -ENOMEM, "make the console");
	*job->remote_console = (struct remote_console){.wake = -1};
	for (int i = 0; i < 3; i++)
		terminal |= stream_kind_at_home(begin, i) == PBEAM__CONSOLE_STREAM__KIND__TTY;
	if (terminal)
		r = terminal_make_pty(-1, &job->pty_master, &slave, err);
	for (int i = 0; i < 3 && r == 0; i++)
		r = remote_console_make_stream(job, i, stream_kind_at_home(begin, i), slave, err);
	return r;
}

static void note_home(struct remote_console_shared *shared, const char *home)
{
	uint32_t turn = atomic_load(&shared->turn) + 1;

	snprintf(shared->homes[turn % 2], sizeof(shared->homes[0]), "%s", home);
	atomic_store(&shared->turn, turn);
}

const char *remote_console_home(const struct remote_console_shared *shared)
{
	return shared->homes[atomic_load(&shared->turn) % 2];
}

void remote_console_set_home(struct job *job, const char *home)
{
	char *own = job->home && strcmp(job->home, home) != 0 ? strdup(home) : NULL;

	if (!own)
		return;
	log_info("job %s: its console is on %s now, not on %s", job->entry.uuid, own, job->home);
	job->home = own; /* the name before belongs to the migration */
	if (job->remote_console && job->remote_console->shared)
		note_home(job->remote_console->shared, own);
}

int remote_console_prepare(struct job *job, struct err *err)
{
	struct remote_console *console = job->remote_console;

	if (!console || console->shared)
		return 0;
	if (job->pty_master < 0 && job->console_ends[0] < 0 && job->console_ends[1] < 0 &&
	    job->console_ends[2] < 0)
		return 0;
	console->shared = mmap(NULL, sizeof(*console->shared), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	console->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (console->shared == MAP_FAILED || console->wake < 0) {
		console->shared = NULL;
		return err_sys(err, "make the console");
	}
	note_home(console->shared, job->home);
	return 1;
}

void remote_console_close(struct job *job, int stream)
{
	if (stream >= 0 && stream < 3 && job->console_ends[stream] >= 0)
		close(steal_fd(&job->console_ends[stream]));
}

void remote_console_free(struct job *job)
{
	struct remote_console *console = job->remote_console;

	job->remote_console = NULL;
	if (!console)
		return;
	for (int i = 0; i < 3; i++)
		remote_console_close(job, i);
	if (console->shared)
		munmap(console->shared, sizeof(*console->shared));
	if (console->wake >= 0)
		close(console->wake);
	free(console);
}

/* Home has it, or will have it as soon as its console is read. */
static bool is_under_way(const struct remote_console_shared *shared)
{
	pid_t pid = atomic_load(&shared->pid);

	return atomic_load(&shared->listens) && pid > 0 && kill(pid, 0) == 0;
}

int remote_console_flush(const struct job *job, bool last, struct err *err)
{
	struct remote_console_shared *shared = job->remote_console ? job->remote_console->shared : NULL;
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + FLUSH_MS * 1000000ull;
	uint32_t wanted;

	if (!shared)
		return 0;
	wanted = atomic_fetch_add(&shared->wanted, 1) + 1;
	if (write(job->remote_console->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0)
		return err_sys(err, "flush the console");
	while ((int32_t)(atomic_load(&shared->done) - wanted) < 0 && !atomic_load(&shared->ended)) {
		if (io_now_ns(CLOCK_MONOTONIC) >= end && !(last && is_under_way(shared)))
			return err_set(
				err, -ETIMEDOUT,
				"the console on %s does not take what was written to it; read it there "
				"and try again",
				job->home);
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	return 0;
}

void remote_console_set_departing(const struct job *job, bool departing)
{
	if (job->remote_console && job->remote_console->shared)
		atomic_store(&job->remote_console->shared->departing, departing);
}

bool remote_console_moves_here(const struct job *job, const Pbeam__MigrateBegin *begin)
{
	char own[NAME_TEXT_MAX];

	return job->home && begin->cut && names_cluster(job->names, own) && !strcmp(begin->home, own);
}

int remote_console_cut_pipes(const struct job *job, struct err *err)
{
	struct stat st;

	for (int i = 0; i < 3; i++) {
		auto_close int null = -1;

		if (job->console[i] < 0 || fstat(job->console[i], &st) < 0 || !S_ISFIFO(st.st_mode))
			continue;
		null = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (null < 0 || dup3(null, job->console[i], O_CLOEXEC) < 0)
			return err_sys(err, "open /dev/null");
	}
	return 0;
}
