/*
 * Dumps and restores one process without supervisor, coordinator, names and objects: for work on both and for
 * measuring them.
 *
 *     roundtrip IMAGE MILLISECONDS TIMES PROGRAM [ARGUMENT...]
 *
 * Runs the program, freezes it after so many milliseconds, dumps it, kills it, restores it into a new process
 * and lets that run, so many times; then waits for its end, and exits with its status. It keeps only the
 * descriptors of standard input, output and error.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/dump/dump.h"
#include "scip/dump/freeze.h"
#include "scip/fill/fill.h"
#include "scip/object/object.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/stops.h"

static struct err err = ERR_INIT;

static int die(const char *what)
{
	fprintf(stderr, "roundtrip: %s: %s\n", what, err.text);
	exit(125);
}

static double now_ms(void)
{
	return (double)io_now_ns(CLOCK_MONOTONIC) / 1e6;
}

/* Starts a process, seized and stopped. */
static void make_process(struct process *process, struct names *names, char *const *argv)
{
	struct tracee *tracee;
	int go[2];
	pid_t pid;

	if (pipe(go) < 0)
		die("pipe");
	pid = fork();
	if (pid == 0) {
		char byte;

		close(go[1]);
		if (read(go[0], &byte, 1) != 1)
			_exit(125);
		if (argv)
			execvp(argv[0], argv);
		_exit(127);
	}
	memset(process, 0, sizeof(*process));
	process->pid = pid;
	process->vpid.n = pid;
	process->names = names;
	close(go[0]);
	if (stops_seize(process, pid, &tracee, &err) < 0)
		die("seize");
	tracee->vtid.n = pid;
	if (argv && (write(go[1], "x", 1) != 1 || stops_resume(tracee, STOPS_CONT) < 0))
		die("start");
	close(go[1]);
}

/* Resumes every stop until `until` (0: its end), then freezes. True when the process has ended. */
static bool run(struct process *process, double until)
{
	bool freezing = false;

	for (;;) {
		struct tracee *tracee;
		int status, r = stops_wait(process, -1, WNOHANG, &tracee, &status);

		if (r == -ECHILD)
			return true;
		if (r == 0) {
			if (until > 0 && !freezing && now_ms() >= until) {
				freezing = true;
				freeze_begin(process);
			}
			if (freezing && freeze_settled(process))
				return false;
			usleep(100);
			continue;
		}
		if (r < 0)
			die("wait");
		if (!tracee->vtid.n)
			tracee->vtid.n = tracee->tid;
		if (tracee->stop == TRACEE_EXITED) {
			process_remove_tracee(process, tracee);
			if (!process->tracees)
				return true;
			continue;
		}
		if (freezing && freeze_hold(tracee))
			continue;
		if (stops_resume(tracee, STOPS_CONT) < 0 && errno != ESRCH)
			die("resume");
	}
}

static void dump(struct process *process, const char *path)
{
	Pbeam__ScipDumped dumped = PBEAM__SCIP_DUMPED__INIT;
	Pbeam__Manifest manifest = PBEAM__MANIFEST__INIT;
	Pbeam__Host host = PBEAM__HOST__INIT;
	struct image_writer *writer;
	double begin = now_ms(), dumped_at;
	uint64_t bytes;

	if (image_writer_open(&writer, path, 4096, &err) < 0 ||
	    dump_process(process, PBEAM__SCIP_DUMP__WHAT__ALL, image_writer_fd(writer),
			 image_writer_arena(writer), &dumped, &err) < 0)
		die("dump");
	dumped_at = now_ms();
	manifest.format = IMAGE_FORMAT;
	manifest.host = &host;
	manifest.n_processes = 1;
	manifest.processes = &dumped.process;
	if (image_writer_commit(writer, &manifest, false, &bytes, &err) < 0)
		die("commit");
	image_writer_close(writer);
	fprintf(stderr, "roundtrip: dump %.1f ms, commit %.1f ms, %lu KiB\n", dumped_at - begin,
		now_ms() - dumped_at, (unsigned long)bytes / 1024);
	for (size_t i = 0; i < dumped.n_shared; i++)
		fprintf(stderr, "roundtrip: shared mapping %#lx\n", (unsigned long)dumped.shared[i]->start);
	message_free(dumped.process);
}

static void kill_process(struct process *process)
{
	kill(process->pid, SIGKILL);
	while (waitpid(-1, NULL, __WALL) > 0)
		continue;
	process_clear(process);
}

static void restore(struct process *process, struct names *names, const char *path)
{
	Pbeam__ScipFill fill = PBEAM__SCIP_FILL__INIT;
	Pbeam__FillFd fds[3], *list[3] = {&fds[0], &fds[1], &fds[2]};
	const Pbeam__Process *saved;
	struct image_reader *reader;
	double t[5];
	char exe[4096];

	t[0] = now_ms();
	if (image_reader_open(&reader, path, &err) < 0 || image_reader_verify(reader, &err) < 0)
		die("image");
	t[1] = now_ms();
	saved = image_reader_manifest(reader)->processes[0];
	snprintf(exe, sizeof(exe), "%.*s", (int)saved->exe->path.len, (const char *)saved->exe->path.data);
	make_process(process, names, NULL);
	process->held = true;
	if (fill_exec(process, exe, &err) < 0)
		die("exec");
	t[2] = now_ms();
	for (int i = 0; i < 3; i++) {
		pbeam__fill_fd__init(&fds[i]);
		fds[i].source = fds[i].fd = i;
	}
	fill.process = (Pbeam__Process *)(uintptr_t)saved;
	fill.n_fds = 3;
	fill.fds = list;
	fill.coordinator_rpid = getpid();
	if (fill_husk(process, &fill, (const int[]){image_reader_fd(reader)}, 1, &err) < 0)
		die("fill");
	t[3] = now_ms();
	if (fill_release(process, saved, &err) < 0)
		die("release");
	t[4] = now_ms();
	fprintf(stderr, "roundtrip: verify %.1f ms, exec %.1f ms, fill %.1f ms, release %.1f ms\n",
		t[1] - t[0], t[2] - t[1], t[3] - t[2], t[4] - t[3]);
	image_reader_close(reader);
}

int main(int argc, char **argv)
{
	struct process process;
	struct names *names;
	int times;

	if (argc < 5) {
		fprintf(stderr, "usage: roundtrip IMAGE MILLISECONDS TIMES PROGRAM [ARGUMENT...]\n");
		return 2;
	}
	log_open("roundtrip", NULL);
	if (names_open(&names, &err) < 0)
		die("names");
	times = atoi(argv[3]);
	make_process(&process, names, argv + 4);
	for (int i = 0; i < times; i++) {
		if (run(&process, now_ms() + atof(argv[2]))) {
			fprintf(stderr, "roundtrip: it ended before it could be frozen\n");
			break;
		}
		dump(&process, argv[1]);
		kill_process(&process);
		restore(&process, names, argv[1]);
	}
	if (!process.exiting)
		run(&process, 0);
	names_close(names);
	if (WIFSIGNALED(process.exit_status))
		fprintf(stderr, "roundtrip: killed by signal %d\n", WTERMSIG(process.exit_status));
	return WIFEXITED(process.exit_status) ? WEXITSTATUS(process.exit_status)
					      : 128 + WTERMSIG(process.exit_status);
}
