/*
 * A world without a tracer for the tests of scip/object. A program (a function) creates descriptors in a
 * child and stops itself; they are dumped into an image. Another child gets the descriptors restored from the
 * image at the same numbers, and checks them with another function.
 */
#ifndef TESTS_UNIT_OBJECT_WORLD_H
#define TESTS_UNIT_OBJECT_WORLD_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scip/object/object.h"
#include "tests/unit/unit.h"

#define WORLD_MAX 4

/* Leaves out the steps that a process makes itself: it has no tracer. */
int __attribute__((weak)) batch_add(struct batch *batch, uint32_t flags, int64_t nr, const uint64_t args[6])
{
	return -ENOSYS;
}
int __attribute__((weak)) batch_data(struct batch *batch, const void *data, size_t len, struct taddr *where)
{
	return -ENOSYS;
}

/* In the children: exits with the line number, so that the parent can report it. */
#define MUST(condition)                                                                                      \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: failed: %s (%s)\n", __FILE__, __LINE__, #condition,          \
				strerror(errno));                                                            \
			_exit(1);                                                                            \
		}                                                                                            \
	} while (0)

struct world {
	char dir[64], image[96];
	struct names *names;
	Pbeam__Manifest manifest;
	pid_t pids[WORLD_MAX];
	int n;
	int console[3];
	bool force;
};

static inline void world_open(struct world *world)
{
	struct err err = ERR_INIT;

	memset(world, 0, sizeof(*world));
	strcpy(world->dir, "/tmp/pbeam-object-XXXXXX");
	assert_non_null(mkdtemp(world->dir));
	snprintf(world->image, sizeof(world->image), "%s/image", world->dir);
	setenv("XDG_RUNTIME_DIR", world->dir, 1);
	for (int i = 0; i < 3; i++)
		world->console[i] = i;
	assert_int_equal(names_open(&world->names, &err), 0);
	/* The programs' working directory is that of the world. */
	assert_int_equal(chdir(world->dir), 0);
}

static inline void world_close(struct world *world)
{
	char command[128];

	names_close(world->names);
	assert_int_equal(chdir("/"), 0);
	snprintf(command, sizeof(command), "rm -rf %s", world->dir);
	assert_int_equal(system(command), 0);
}

/* Adds processes: `make` runs in a child, which then stops; it may fork others, which stop themselves
 * (world_stop) and whose ids it puts into shared[1 ...]. */
static pid_t *world_shared;

static inline void world_stop(void)
{
	raise(SIGSTOP);
	_exit(0);
}

static inline void world_fork(int index, void (*make)(void))
{
	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0) {
		make();
		world_stop();
	}
	world_shared[index] = child;
	MUST(waitpid(child, NULL, WUNTRACED) == child);
}

static inline void close_all(void)
{
	for (int fd = 3; fd < 200; fd++)
		close(fd);
}

static inline void world_run(struct world *world, void (*make)(void))
{
	int status;

	world_shared =
		(pid_t *)(void *)(world_shared ? (void *)world_shared : calloc(WORLD_MAX, sizeof(pid_t)));
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	fflush(stdout);
	world->pids[0] = fork();
	assert_true(world->pids[0] >= 0);
	if (world->pids[0] == 0) {
		int report = fcntl(ends[1], F_DUPFD, 900);

		for (int fd = 3; fd < 900; fd++)
			close(fd);
		memset(world_shared, 0, WORLD_MAX * sizeof(pid_t));
		make();
		MUST(write(report, world_shared, WORLD_MAX * sizeof(pid_t)) > 0);
		close(report);
		world_stop();
	}
	close(ends[1]);
	assert_int_equal(waitpid(world->pids[0], &status, WUNTRACED), world->pids[0]);
	assert_true(WIFSTOPPED(status));
	assert_true(read(ends[0], world_shared, WORLD_MAX * sizeof(pid_t)) > 0);
	close(ends[0]);
	world->n = 1;
	for (int i = 1; i < WORLD_MAX && world_shared[i]; i++)
		world->pids[world->n++] = world_shared[i];
}

static inline int world_dump(struct world *world, struct err *err)
{
	struct image_writer *writer;
	struct rpid rpids[WORLD_MAX];
	struct object_dump_options options = {
		.save_files_max = 1 << 20,
		.console = world->console,
		.force = world->force,
	};
	uint64_t bytes;
	int r;
	Pbeam__Manifest *manifest = malloc(sizeof(*manifest));

	pbeam__manifest__init(manifest);
	manifest->format = IMAGE_FORMAT;
	manifest->n_processes = (size_t)world->n;
	manifest->processes = calloc((size_t)world->n, sizeof(*manifest->processes));
	for (int i = 0; i < world->n; i++) {
		manifest->processes[i] = malloc(sizeof(Pbeam__Process));
		pbeam__process__init(manifest->processes[i]);
		manifest->processes[i]->vpid = world->pids[i];
		rpids[i].n = world->pids[i];
	}
	assert_int_equal(image_writer_open(&writer, world->image, 1024, err), 0);
	r = object_dump_all(world->names, writer, manifest, rpids, &options, err);
	if (r == 0)
		r = image_writer_commit(writer, manifest, false, &bytes, err);
	image_writer_close(writer);
	pbeam__manifest__free_unpacked(manifest, NULL);
	return r;
}

static inline void world_kill(struct world *world)
{
	struct rpid rpids[WORLD_MAX];

	for (int i = 0; i < world->n; i++)
		rpids[i].n = world->pids[i];
	object_abort_connections(rpids, (size_t)world->n);
	for (int i = world->n - 1; i >= 0; i--)
		kill(world->pids[i], SIGKILL);
	while (waitpid(world->pids[0], NULL, 0) < 0 && errno == EINTR)
		;
}

/* In a new child: restores the descriptors of the first process at their numbers, then calls check().
 * Returns its status, or the error of the restore. */
static inline int world_restore(struct world *world, void (*check)(void), struct err *err)
{
	struct object_restore *restore = NULL;
	struct image_reader *reader = NULL;
	const Pbeam__Manifest *manifest;
	int status = -1, r;
	pid_t child;

	r = image_reader_open(&reader, world->image, err);
	if (r == 0)
		r = image_reader_verify(reader, err);
	assert_int_equal(r, 0);
	manifest = image_reader_manifest(reader);
	r = object_restore_open(&restore, world->names, reader, world->force, world->console, err);
	if (r == 0)
		r = object_restore_check_all(restore, err);
	if (r == 0)
		r = object_restore_prepare_files(restore, err);
	if (r == 0)
		r = object_restore_make_all(restore, err);
	if (r == 0)
		r = object_restore_put_back(restore, err);
	if (r == 0)
		r = object_restore_finish_all(restore, err);
	if (r < 0)
		goto out;
	object_restore_settle(restore);
	fflush(stdout);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		const Pbeam__Process *process = manifest->processes[0];
		int high[256];

		for (size_t i = 0; i < process->n_descriptors; i++)
			high[i] = fcntl(object_restore_get(restore, process->descriptors[i]->object, err),
					F_DUPFD, 900);
		for (int fd = 3; fd < 900; fd++)
			close(fd);
		for (size_t i = 0; i < process->n_descriptors; i++)
			if (process->descriptors[i]->fd > 2)
				MUST(dup3(high[i], process->descriptors[i]->fd,
					  process->descriptors[i]->cloexec ? O_CLOEXEC : 0) >= 0);
		for (size_t i = 0; i < process->n_descriptors; i++)
			close(high[i]);
		check();
		object_abort_connections(&(struct rpid){getpid()}, 1);
		_exit(0);
	}
	object_restore_close(restore);
	restore = NULL;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	r = status;
out:
	object_restore_close(restore);
	image_reader_close(reader);
	return r;
}

/* Dumps, and restores twice from the same image. A second dump checks that the first one left the
 * program's objects unchanged. */
static inline void world_cycle(void (*make)(void), void (*check)(void))
{
	struct world world;
	struct err err = ERR_INIT;

	world_open(&world);
	world_run(&world, make);
	if (world_dump(&world, &err) < 0 || world_dump(&world, &err) < 0)
		fail_msg("dump: %s", err.text);
	world_kill(&world);
	for (int i = 0; i < 2; i++) {
		int r = world_restore(&world, check, &err);

		if (r < 0)
			fail_msg("restore: %s", err.text);
		assert_int_equal(r, 0);
	}
	world_close(&world);
}

static inline void world_refused(void (*make)(void), const char *words)
{
	struct world world;
	struct err err = ERR_INIT;

	world_open(&world);
	world_run(&world, make);
	assert_true(world_dump(&world, &err) < 0);
	world_kill(&world);
	if (!strstr(err.text, words))
		fail_msg("refused with: %s", err.text);
	assert_non_null(strstr(err.text, ": fd "));
	world_close(&world);
}

#endif
