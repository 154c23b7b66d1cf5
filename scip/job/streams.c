/*
 * Chooses a job's standard streams.
 *   - A terminal becomes a pty of the job: it can be saved, restored, attached to.
 *   - A pipe or a file is passed as it is.
 *   - With -d a pipe that is written to is not passed on: the vpid is printed there (`id=$(scip run -d
 * ...)`), and its reader waits until no process holds it any more. The pty takes its place, or /dev/null
 * without one.
 *   - A restore for pbeamd: what the streams were in the image (terminal: a pty, file: that file, else
 * /dev/null).
 */
#include "scip/job/streams.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/image.h"
#include "scip/job/user_terminal.h"

enum kind { STREAM_CLOSED, STREAM_TERMINAL, STREAM_PASSED, STREAM_NULL };

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

static int stream_make(struct keeper_options *job, int index, enum kind kind, int slave, struct err *err)
{
	int fd = -1;

	switch (kind) {
	case STREAM_CLOSED:
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
	}
	if (fd < 0)
		return err_sys(err, "prepare standard stream %d", index);
	job->console[index] = fd;
	return 0;
}

/* What the streams were when the image was written. */
static int kinds_of_image(const char *image, enum kind kinds[3], struct err *err)
{
	struct image_reader *reader;
	const Pbeam__Manifest *manifest;
	int r = image_reader_open(&reader, image, err);

	if (r < 0)
		return r;
	manifest = image_reader_manifest(reader);
	for (size_t i = 0; manifest->job && i < manifest->job->n_console; i++) {
		const Pbeam__ConsoleStream *stream = manifest->job->console[i];

		if (stream->index >= 0 && stream->index < 3 &&
		    stream->kind == PBEAM__CONSOLE_STREAM__KIND__TTY)
			kinds[stream->index] = STREAM_TERMINAL;
	}
	image_reader_close(reader);
	return 0;
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
	bool terminal = false;
	int r = 0, slave = -1;

	for (int i = 0; i < 3; i++)
		job->console[i] = -1;
	job->pty_master = -1;
	if (options->image_streams)
		r = kinds_of_image(job->image, kinds, err);
	else
		for (int i = 0; i < 3; i++)
			kinds[i] = stream_kind_of(i, options->detach);
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
		r = stream_make(job, i, kinds[i], slave, err);
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
