/*
 * The standard streams that `scip run` was started with: the keeper holds them, and they are found by
 * comparing open file descriptions (kcmp). On restore they become the streams of the present console. A
 * terminal gets the program's settings (termios, but not the window size, which is the present terminal's);
 * unread input stays with the console.
 *
 * A regular file that can be opened again is not among them: its offset and length are restored as for any
 * other file.
 *
 * A second description of the console's terminal (/dev/tty, or its /dev/pts/N opened again) is tty.c's.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "scip/object/common.h"
#include "scip/object/object_table.h"
#include "scip/object/terminal.h"

/* A file that the program's user could open again. Others were passed open, perhaps by another user. */
static bool is_own_file(const struct object_source *source)
{
	auto_close int again = -1;
	char link[64];
	int flags = fcntl(source->local, F_GETFL);

	if (!S_ISREG(source->st.st_mode) || source->st.st_nlink == 0 || flags < 0)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", source->local);
	again = open(link, (flags & O_ACCMODE) | O_CLOEXEC);
	return again >= 0;
}

static bool console_match(struct object_dump *dump, const struct object_source *source)
{
	return object_dump_console_stream(dump, source) >= 0 && !is_own_file(source);
}

static int console_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			struct err *err)
{
	int number, r;

	out->console = object_message(Pbeam__Console, pbeam__console__init);
	if (!out->console)
		return object_no_memory(err);
	out->console->index = object_dump_console_stream(dump, source);
	if (!isatty(source->local))
		return 0;
	out->console->tty = object_message(Pbeam__Tty, pbeam__tty__init);
	if (!out->console->tty)
		return object_no_memory(err);
	number = terminal_pts_number(source->local, source->st.st_rdev);
	if (number >= 0) {
		out->console->tty->pty = (uint64_t)object_dump_pts(dump, number);
		r = object_set_bytes(&out->console->tty->path, source->link, strlen(source->link), err);
		if (r < 0)
			return r;
	}
	return terminal_dump_settings(object_dump_names(dump), source->holder, source->local,
				      out->console->tty, err);
}

static int console_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	if (object->console->index < 0 || object->console->index > 2)
		return err_set(err, -EBADMSG, "the image names a console stream that does not exist");
	return 0;
}

/* A stream that no longer exists (a closed console, a detached job) becomes /dev/null. */
static int console_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			   struct err *err)
{
	int stream = object_restore_console(restore, object->console->index);

	if (stream >= 0)
		*fd = fcntl(stream, F_DUPFD_CLOEXEC, 3);
	else
		*fd = open("/dev/null", (int)(object->flags & O_ACCMODE) | O_CLOEXEC);
	if (*fd < 0)
		return err_sys(err, "attach the console");
	return object->console->tty ? terminal_renamed(restore, object->console->tty, *fd, err) : 0;
}

static int console_finish(struct object_restore *restore, const Pbeam__Object *object, int fd,
			  struct err *err)
{
	if (!object->console->tty || !isatty(fd))
		return 0;
	return terminal_restore_termios(object->console->tty, fd, err);
}

static int console_install(struct names *names, const Pbeam__Object *object, const Pbeam__Process *process,
			   int fd, struct batch *batch, struct err *err)
{
	return object->console->tty
		       ? terminal_install_foreground(names, object->console->tty, process, fd, batch, err)
		       : 0;
}

const struct object_ops object_console = {
	.name = "console",
	.kind = PBEAM__OBJECT__KIND_CONSOLE,
	.phase = 1,
	.match = console_match,
	.dump = console_dump,
	.check = console_check,
	.restore = console_restore,
	.finish = console_finish,
	.install = console_install,
	.shift = object_shift_none,
};
