/*
 * Chooses a job's standard streams.
 *   - A terminal becomes a pty of the job: it can be saved, restored, attached to.
 *   - A pipe or a file is passed as it is.
 *   - With -d a pipe that is written to is not passed on: the vpid is printed there (`id=$(scip run -d
 * ...)`), and its reader waits until no process holds it any more. The pty takes its place, or /dev/null
 * without one.
 *   - A restore: a file stays the program's, and is opened again with all its other files, unless scip was
 *     given a file or a pipe in its place. With --image-streams (pbeamd's) nothing is passed on. A terminal
 *     becomes a new pty. What is written to a pipe that is gone goes to a log of the job.
 */
#include "scip/job/streams.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "image/image.h"
#include "image/store.h"
#include "scip/job/user_terminal.h"

enum kind {
	STREAM_CLOSED,
	STREAM_TERMINAL,
	STREAM_PASSED,
	STREAM_NULL,
	STREAM_FILE, /* of the image: restored with the program's files */
	STREAM_LOG,
};

enum { NOTE_MAX = PATH_MAX + 128 };
static char notes[3][NOTE_MAX]; /* for the user, of each stream */

static enum kind stream_kind_of(int fd, bool detach)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return STREAM_CLOSED;
	if (isatty(fd))
		return STREAM_TERMINAL;
	if (detach && fd != STDIN_FILENO && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
		return STREAM_NULL;
	return STREAM_PASSED;
}

static int open_null(struct err *err)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	return fd < 0 ? err_sys(err, "open /dev/null") : fd;
}

/* Fills closed descriptors among 0 to 2, so that open() never returns one of them. */
static int fill_low_descriptors(struct err *err)
{
	int fd;

	do {
		fd = open_null(err);
		if (fd < 0)
			return fd;
	} while (fd <= STDERR_FILENO);
	close(fd);
	return 0;
}

/* The log has the output of all runs of the job that had nowhere else to go. */
static int open_job_log(const char *path, struct err *err)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	return fd < 0 ? err_sys(err, "open %s, a log for what the program writes", path) : fd;
}

static int stream_make(struct keeper_options *job, int index, enum kind kind, int slave, const char *log,
		       struct err *err)
{
	int fd = -1;

	switch (kind) {
	case STREAM_CLOSED:
	case STREAM_FILE:
		return 0;
	case STREAM_TERMINAL:
		fd = fcntl(slave, F_DUPFD_CLOEXEC, 3);
		break;
	case STREAM_PASSED:
		fd = fcntl(index, F_DUPFD_CLOEXEC, 3);
		break;
	case STREAM_NULL:
		fd = open_null(err);
		if (fd < 0)
			return fd;
		break;
	case STREAM_LOG:
		fd = open_job_log(log, err);
		if (fd < 0)
			return fd;
		break;
	}
	if (fd < 0)
		return err_sys(err, "prepare standard stream %d", index);
	job->console[index] = fd;
	return 0;
}

static const char *const stream_names[3] = {"standard input", "standard output", "standard error"};

/* True if the image has the file that was this stream among the files that can be opened again. */
static bool has_stream_file(const Pbeam__Manifest *manifest, uint32_t index)
{
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->kind_case == PBEAM__OBJECT__KIND_REGULAR &&
		    manifest->objects[i]->regular->console == (int32_t)index + 1)
			return true;
	return false;
}

/* `kind` is what scip itself has; with --image-streams STREAM_NULL. Nothing that was written to a file, a
 * pipe or a terminal may be written to /dev/null from now on. */
static enum kind kind_of_image(const Pbeam__Manifest *manifest, const Pbeam__ConsoleStream *stream,
			       enum kind kind, const struct console_options *options, const char *log)
{
	const char *name = stream_names[stream->index];
	char *note = notes[stream->index];

	if (kind == STREAM_PASSED)
		return kind;
	switch (stream->kind) {
	case PBEAM__CONSOLE_STREAM__KIND__TTY:
		if (!options->image_streams)
			return kind;
		snprintf(note, NOTE_MAX,
			 "the terminal that was %s is gone; pbeamctl attach shows what the program writes",
			 name);
		return STREAM_TERMINAL;
	case PBEAM__CONSOLE_STREAM__KIND__FILE:
		if (has_stream_file(manifest, (uint32_t)stream->index)) {
			if (kind == STREAM_TERMINAL)
				snprintf(note, NOTE_MAX, "%s is %.*s, as it was", name, PATH_MAX - 1,
					 stream->path);
			return STREAM_FILE;
		}
		break;
	case PBEAM__CONSOLE_STREAM__KIND__PIPE:
	case PBEAM__CONSOLE_STREAM__KIND__SOCKET:
		break;
	case PBEAM__CONSOLE_STREAM__KIND__NULLDEV:
	case PBEAM__CONSOLE_STREAM__KIND__CLOSED:
	case _PBEAM__CONSOLE_STREAM__KIND_IS_INT_SIZE:
	default:
		return kind;
	}
	if (kind != STREAM_NULL)
		return kind;
	if (stream->index == STDIN_FILENO) {
		snprintf(note, NOTE_MAX, "what was %s is gone; the program reads its end", name);
		return kind;
	}
	snprintf(note, NOTE_MAX, "what was %s is gone; what the program writes there goes to %s", name, log);
	return STREAM_LOG;
}

/* /dev/null and closed streams have nothing to offer in place of a file. */
static enum kind kind_to_offer(int fd, enum kind kind)
{
	struct stat st, null;

	if (kind == STREAM_CLOSED || (kind == STREAM_PASSED && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) &&
				      stat("/dev/null", &null) == 0 && st.st_rdev == null.st_rdev))
		return STREAM_NULL;
	return kind;
}

static int kinds_of_image(const char *image, const struct console_options *options, enum kind kinds[3],
			  char log[PATH_MAX], struct err *err)
{
	struct image_reader *reader;
	const Pbeam__Manifest *manifest;
	const Pbeam__Job *job;
	int r = image_reader_open(&reader, image, err);

	if (r < 0)
		return r;
	manifest = image_reader_manifest(reader);
	job = manifest->job;
	if (job)
		r = store_log_path(job->name, job->root_vpid, log, err);
	for (size_t i = 0; r == 0 && job && i < job->n_console; i++) {
		const Pbeam__ConsoleStream *stream = job->console[i];

		if (stream->index < 0 || stream->index > 2)
			continue;
		kinds[stream->index] = kind_of_image(
			manifest, stream, kind_to_offer(stream->index, kinds[stream->index]), options, log);
	}
	image_reader_close(reader);
	return r;
}

/* A terminal among our streams whose settings the pty gets. */
static int model_terminal(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (isatty(fd))
			return fd;
	return -1;
}

int streams_choose(struct keeper_options *job, const struct console_options *options, struct err *err)
{
	enum kind kinds[3] = {STREAM_NULL, STREAM_NULL, STREAM_NULL};
	char log[PATH_MAX] = "";
	bool terminal = false;
	int r = 0, slave = -1;

	for (int i = 0; i < 3; i++)
		job->console[i] = -1;
	job->pty_master = -1;
	for (int i = 0; i < 3 && !options->image_streams; i++)
		kinds[i] = stream_kind_of(i, options->detach);
	if (job->image)
		r = kinds_of_image(job->image, options, kinds, log, err);
	if (r == 0)
		r = fill_low_descriptors(err);
	if (r < 0)
		return r;
	for (int i = 0; i < 3; i++)
		terminal |= kinds[i] == STREAM_TERMINAL;
	if (terminal) {
		r = terminal_make_pty(model_terminal(), &job->pty_master, &slave, err);
		if (r < 0)
			return r;
	}
	for (int i = 0; r == 0 && i < 3; i++) {
		if (kinds[i] == STREAM_NULL && terminal && !options->image_streams)
			kinds[i] = STREAM_TERMINAL;
		r = stream_make(job, i, kinds[i], slave, log, err);
	}
	if (slave >= 0)
		close(slave);
	if (r < 0)
		streams_close(job);
	return r;
}

void streams_close(struct keeper_options *job)
{
	for (int i = 0; i < 3; i++)
		if (job->console[i] >= 0)
			close(job->console[i]);
	if (job->pty_master >= 0)
		close(job->pty_master);
	job->console[0] = job->console[1] = job->console[2] = job->pty_master = -1;
}

void streams_print_notes(void)
{
	for (int i = 0; i < 3; i++)
		if (notes[i][0])
			fprintf(stderr, "scip: %s\n", text_visible(notes[i]));
}
