#include "scip/supervisor/successor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parse.h"
#include "proto/message.h"

enum { STATE_MAX = 64 << 20, CHECK_TIMEOUT_MS = 10000 };

static int parse_descriptor(const char *text, int *out)
{
	uint64_t n;

	if (parse_number(text, 0, INT_MAX, &n, NULL) < 0 || fcntl((int)n, F_GETFD) < 0)
		return -EBADF;
	*out = (int)n;
	return 0;
}

int successor_parse(struct successor *out, int argc, char **argv)
{
	if (argc < 3 || argc > 4 || parse_descriptor(argv[1], &out->state) < 0 ||
	    parse_descriptor(argv[2], &out->self) < 0)
		return -EINVAL;
	out->role = argv[0];
	out->refused = argc == 4 ? argv[3] : NULL;
	return 0;
}

static const char able[] = "scip can take over\n";

/* In the child. */
_Noreturn static void ask_program(const char *program, const struct seat *seat, int out)
{
	char versions[3][16];
	sigset_t none;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	snprintf(versions[0], sizeof(versions[0]), "%u", SUCCESSOR_VERSION);
	snprintf(versions[1], sizeof(versions[1]), "%u", SEAT_VERSION);
	snprintf(versions[2], sizeof(versions[2]), "%u", names_version(seat->names));
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	dup2(null, STDIN_FILENO);
	dup2(out, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
	execl(program, "scip", "succeed", "check", versions[0], versions[1], versions[2], (char *)NULL);
	_exit(127);
}

int successor_check(const char *program, const struct seat *seat, struct err *err)
{
	char text[sizeof(able) + 1] = "";
	struct pollfd answer = {.events = POLLIN};
	int ends[2], status;
	ssize_t n = 0;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(err, "ask %s whether it can take over", program);
	child = fork();
	if (child == 0)
		ask_program(program, seat, ends[1]);
	close(ends[1]);
	answer.fd = ends[0];
	if (child > 0 && poll(&answer, 1, CHECK_TIMEOUT_MS) == 1)
		n = io_read_full(ends[0], text, sizeof(able) - 1);
	close(ends[0]);
	if (child < 0)
		return err_sys(err, "ask %s whether it can take over", program);
	if (n <= 0)
		kill(child, SIGKILL);
	if (waitpid(child, &status, 0) != child || strcmp(text, able) != 0 || !WIFEXITED(status) ||
	    WEXITSTATUS(status) != 0)
		return err_set(err, -ENOTSUP,
			       "%s cannot take over a job that runs under scip " PBEAM_VERSION
			       "; `pbeamctl checkpoint --kill` and `pbeamctl rollback` move it",
			       program);
	return 0;
}

int successor_answer(int argc, char **argv)
{
	const uint64_t known[] = {SUCCESSOR_VERSION, SEAT_VERSION, names_own_version()};
	uint64_t asked;

	for (int i = 0; i < 3; i++)
		if (argc != 4 || parse_number(argv[i + 1], 0, UINT32_MAX, &asked, NULL) < 0 ||
		    asked != known[i])
			return 1;
	fputs(able, stdout);
	return 0;
}

static void keep_open(const int *fds, int nfds, bool keep)
{
	for (int i = 0; i < nfds; i++)
		if (fds[i] >= 0)
			(void)fcntl(fds[i], F_SETFD, keep ? 0 : FD_CLOEXEC);
}

static int write_state(const ProtobufCMessage *state, struct err *err)
{
	size_t len = protobuf_c_message_get_packed_size(state);
	auto_free uint8_t *bytes = malloc(len + 1);
	auto_close int fd = memfd_create("pbeam-state", MFD_CLOEXEC);
	int r = !bytes ? -ENOMEM : fd < 0 ? -errno : 0;

	if (r == 0) {
		protobuf_c_message_pack(state, bytes);
		r = io_pwrite_full(fd, bytes, len, 0);
	}
	return r < 0 ? err_code(err, r, "write the state for the new version") : steal_fd(&fd);
}

int successor_exec(const char *program, const char *role, const ProtobufCMessage *state, const int *fds,
		   int nfds, struct err *err)
{
	auto_close int state_fd = write_state(state, err);
	auto_close int self = open("/proc/self/exe", O_PATH | O_CLOEXEC);
	char state_text[16], self_text[16];
	char *const argv[] = {(char *)(uintptr_t) "scip",
			      (char *)(uintptr_t) "succeed",
			      (char *)(uintptr_t)role,
			      state_text,
			      self_text,
			      NULL};
	int own[2] = {state_fd, self};

	if (state_fd < 0)
		return state_fd;
	if (self < 0)
		return err_sys(err, "open /proc/self/exe");
	snprintf(state_text, sizeof(state_text), "%d", state_fd);
	snprintf(self_text, sizeof(self_text), "%d", self);
	keep_open(fds, nfds, true);
	keep_open(own, 2, true);
	execv(program, argv);
	err_sys(err, "execute %s", program);
	keep_open(fds, nfds, false);
	return err->code;
}

int successor_read(const struct successor *from, const ProtobufCMessageDescriptor *descriptor, void *out,
		   struct err *err)
{
	auto_free uint8_t *bytes = NULL;
	ProtobufCMessage **message = out;
	struct stat st;

	if (fstat(from->state, &st) < 0 || st.st_size > STATE_MAX)
		return err_set(err, -EPROTO, "there is no state of another version");
	bytes = malloc((size_t)st.st_size + 1);
	if (!bytes || io_pread_full(from->state, bytes, (size_t)st.st_size, 0) != (ssize_t)st.st_size)
		return err_set(err, -ENOMEM, "the state of the other version cannot be read");
	*message = protobuf_c_message_unpack(descriptor, NULL, (size_t)st.st_size, bytes);
	return *message ? 0 : err_set(err, -EPROTO, "the state of the other version is malformed");
}

void successor_go_back(const struct successor *from, const char *reason)
{
	char state_text[16], self_text[16];
	char *const argv[] = {(char *)(uintptr_t) "scip",
			      (char *)(uintptr_t) "succeed",
			      (char *)(uintptr_t)from->role,
			      state_text,
			      self_text,
			      (char *)(uintptr_t)reason,
			      NULL};

	snprintf(state_text, sizeof(state_text), "%d", from->state);
	snprintf(self_text, sizeof(self_text), "%d", from->self);
	if (!from->refused) /* else the old program cannot read what it has written itself */
		execveat(from->self, "", argv, environ, AT_EMPTY_PATH);
	log_error("%s; the program that has written the state cannot go on either", reason);
}

void successor_close(const struct successor *from, const struct seat *seat)
{
	const int fds[] = {seat->take, seat->give, seat->wake, seat->page, names_descriptor(seat->names)};

	keep_open(fds, sizeof(fds) / sizeof(fds[0]), false);
	close(from->state);
	close(from->self);
}

void successor_save_seat(const struct seat *seat, Pbeam__SeatState *out)
{
	pbeam__seat_state__init(out);
	out->version = SUCCESSOR_VERSION;
	out->seat = SEAT_VERSION;
	out->table = names_version(seat->names);
	out->keeper = seat->keeper;
	out->take = seat->take;
	out->give = seat->give;
	out->wake = seat->wake;
	out->page = seat->page;
	out->names = names_descriptor(seat->names);
	out->program = (char *)(uintptr_t) "scip " PBEAM_VERSION;
}

int successor_load_seat(const Pbeam__SeatState *saved, struct seat *out, struct err *err)
{
	const int fds[] = {saved->take, saved->give, saved->wake, saved->page, saved->names};
	void *page;
	int r;

	if (saved->version != SUCCESSOR_VERSION || saved->seat != SEAT_VERSION)
		return err_set(
			err, -ENOTSUP,
			"the job runs under %s, whose state this version (scip " PBEAM_VERSION
			") cannot take over; `pbeamctl checkpoint --kill` and `pbeamctl rollback` move it",
			saved->program);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] < 0 || fcntl(fds[i], F_GETFD) < 0)
			return err_set(err, -EPROTO, "descriptor %d of the state is not open", fds[i]);
	*out = (struct seat){.take = saved->take,
			     .give = saved->give,
			     .wake = saved->wake,
			     .page = saved->page,
			     .keeper = saved->keeper};
	page = mmap(NULL, sizeof(*out->shared), PROT_READ | PROT_WRITE, MAP_SHARED, saved->page, 0);
	if (page == MAP_FAILED)
		return err_sys(err, "map the job's shared page");
	out->shared = page;
	out->generation = atomic_load(&out->shared->generation);
	r = names_open_descriptor(&out->names, saved->names, saved->table, err);
	if (r < 0) {
		munmap(page, sizeof(*out->shared));
		return r;
	}
	return 0;
}
