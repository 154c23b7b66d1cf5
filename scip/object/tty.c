/*
 * Pseudo-terminals whose both sides are in the group, and further descriptions of the console's terminal.
 *
 * The master's object has the settings of the pair and what waits in it (pty_queue.c). On restore the pair is
 * a new one, whose number the kernel chooses (the lowest that is free). Paths that name it by the number that
 * it was born with are translated (scip/syscall/pts_path.c). A side that no process holds is opened only if
 * it had been opened and closed before, so that the other side sees the same hang-up.
 *
 * The leader of its session makes it the controlling terminal again (object_restore_controlling_tty), and a
 * member of the session sets the foreground group (install). Input typed ahead on the console stays with the
 * console.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/object/object_restore.h"
#include "scip/object/object_table.h"
#include "scip/object/pty_queue.h"
#include "scip/object/terminal.h"

static bool is_master(const struct object_source *source)
{
	return terminal_is_master(&source->st);
}

static bool tty_match(struct object_dump *dump, const struct object_source *source)
{
	unsigned kind = major(source->st.st_rdev);

	return S_ISCHR(source->st.st_mode) && !(source->flags & O_PATH) &&
	       ((kind >= TERMINAL_MAJOR_FIRST && kind <= TERMINAL_MAJOR_LAST) || is_master(source) ||
		source->st.st_rdev == makedev(5, 0));
}

static const struct object_source *find_side(struct object_dump *dump, int number, bool master)
{
	const struct object_source *source;

	for (size_t i = 0; (source = object_dump_source(dump, i)) != NULL; i++)
		if (tty_match(dump, source) && is_master(source) == master &&
		    terminal_pts_number(source->local, source->st.st_rdev) == number)
			return source;
	return NULL;
}

static bool hung_up(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = 0};

	return poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLHUP;
}

static int dump_queues(struct object_dump *dump, int master, int slave, Pbeam__Tty *out, struct err *err)
{
	struct pty_bytes bytes;
	int r = pty_output_look(master, slave, &bytes, err);

	if (r == 0)
		r = object_put_extent(dump, bytes.data, bytes.len, &out->output, err);
	free(bytes.data);
	if (r < 0 || slave < 0)
		return r;
	r = pty_input_look(master, slave, &bytes, err);
	if (r == 0)
		r = object_put_extent(dump, bytes.data, bytes.len, &out->input, err);
	free(bytes.data);
	return r;
}

static int dump_master(struct object_dump *dump, const struct object_source *source, int number,
		       Pbeam__Tty *out, struct err *err)
{
	const struct object_source *slave = find_side(dump, number, false);
	int value, r;

	out->master = true;
	out->hung_up = !slave && hung_up(source->local);
	if (ioctl(source->local, TIOCGPKT, &value) == 0)
		out->packet_mode = value != 0;
	if (ioctl(source->local, TIOCGPTLCK, &value) == 0)
		out->locked = value != 0;
	if (ioctl(source->local, TIOCGEXCL, &value) == 0)
		out->exclusive = value != 0;
	r = terminal_dump_settings(object_dump_names(dump), source->holder, source->local, out, err);
	return r < 0 ? r : dump_queues(dump, source->local, slave ? slave->local : -1, out, err);
}

static int dump_slave(struct object_dump *dump, const struct object_source *source, int number,
		      Pbeam__Tty *out, struct err *err)
{
	const struct object_source *master = find_side(dump, number, true);
	int console = object_dump_console_tty(dump);

	out->console = console >= 0 && terminal_pts_number(console, 0) == number;
	if (out->console)
		return terminal_dump_settings(object_dump_names(dump), source->holder, source->local, out,
					      err);
	out->mode = source->st.st_mode & 07777;
	if (master)
		return terminal_dump_settings(object_dump_names(dump), master->holder, master->local, out,
					      err);
	out->hung_up = hung_up(source->local);
	if (out->hung_up)
		return 0;
	return err_set(
		err, -ENOTSUP,
		"the terminal /dev/pts/%d, whose other side (an ssh, a terminal window) is outside the "
		"tree; use the terminal that `scip run` gives, or redirect it",
		(int)out->pty);
}

/* The part that both sides have: the identity of the terminal. */
static int dump_name(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		     int number, struct err *err)
{
	object->tty = object_message(Pbeam__Tty, pbeam__tty__init);
	if (!object->tty)
		return object_no_memory(err);
	if (number >= 0)
		object->tty->pty = (uint64_t)object_dump_pts(dump, number);
	return object_set_bytes(&object->tty->path, source->link, strlen(source->link), err);
}

int terminal_slave_apart(struct object_dump *dump, const struct object_source *source)
{
	int number = tty_match(dump, source) && !is_master(source)
			     ? terminal_pts_number(source->local, source->st.st_rdev)
			     : -1;
	int console = object_dump_console_tty(dump);

	if (number < 0 || hung_up(source->local) || find_side(dump, number, true) ||
	    (console >= 0 && terminal_pts_number(console, 0) == number))
		return -1;
	return number;
}

int terminal_dump_apart(struct object_dump *dump, const struct object_source *source, int master,
			Pbeam__Object *out, struct pty_bytes *typed, struct err *err)
{
	struct pty_bytes bytes = {0};
	int number = terminal_pts_number(source->local, source->st.st_rdev);
	int r = dump_name(dump, source, out, number, err);

	out->kind_case = PBEAM__OBJECT__KIND_TTY;
	if (r < 0)
		return r;
	out->tty->mode = source->st.st_mode & 07777;
	r = terminal_dump_settings(object_dump_names(dump), source->holder, source->local, out->tty, err);
	if (r < 0 || master < 0)
		return r;
	r = pty_input_look(master, source->local, &bytes, err);
	if (r == 0)
		r = object_put_extent(dump, bytes.data, bytes.len, &out->tty->input, err);
	if (r == 0 && typed)
		*typed = bytes;
	else
		free(bytes.data);
	return r;
}

static int tty_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		    struct err *err)
{
	int number = terminal_pts_number(source->local, source->st.st_rdev);
	int r = dump_name(dump, source, object, number, err);

	if (r < 0)
		return r;
	if (number < 0)
		return err_set(
			err, -ENOTSUP,
			"%s, a terminal that is not a pseudo-terminal; run the program on the terminal that "
			"`scip run` gives",
			source->link);
	return is_master(source) ? dump_master(dump, source, number, object->tty, err)
				 : dump_slave(dump, source, number, object->tty, err);
}

/* ---- restore ---- */

static uint64_t key_of(const Pbeam__Tty *saved, bool master)
{
	return saved->pty * 2 + master;
}

static int pair_master(struct object_restore *restore, const Pbeam__Tty *saved, struct err *err)
{
	int fd = object_restore_kept(restore, PBEAM__OBJECT__KIND_TTY, key_of(saved, true)), off = 0, number;
	int r;

	if (fd >= 0)
		return fd;
	fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(err, "make a pseudo-terminal");
	if (ioctl(fd, TIOCSPTLCK, &off) < 0 || ioctl(fd, TIOCGPTN, &number) < 0) {
		r = err_sys(err, "unlock a pseudo-terminal");
		close(fd);
		return r;
	}
	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_TTY, key_of(saved, true), fd, err);
	if (r == 0)
		r = object_restore_renamed_pts(restore, (int)saved->pty, number, err);
	return r < 0 ? r : fd;
}

static int pair_slave(struct object_restore *restore, const Pbeam__Tty *saved, struct err *err)
{
	int fd = object_restore_kept(restore, PBEAM__OBJECT__KIND_TTY, key_of(saved, false)), master, r;

	if (fd >= 0)
		return fd;
	master = pair_master(restore, saved, err);
	if (master < 0)
		return master;
	/* TIOCGPTPEER would keep O_CLOEXEC among the file's own flags, and so show it for every duplicate. */
	fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
	if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return err_sys(err, "open a pseudo-terminal");
	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_TTY, key_of(saved, false), fd, err);
	return r < 0 ? r : fd;
}

static int console_tty(struct object_restore *restore)
{
	for (int i = 0; i < 3; i++)
		if (object_restore_console(restore, i) >= 0 && isatty(object_restore_console(restore, i)))
			return object_restore_console(restore, i);
	return -1;
}

static int tty_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	const Pbeam__Tty *saved = object->tty;
	int flags = (int)(object->flags & (O_ACCMODE | O_APPEND)) | O_NONBLOCK;
	int base;

	if (saved->console) {
		/* If the console is no longer a terminal there is nothing to restore. */
		base = console_tty(restore);
		*fd = base >= 0 ? object_reopen(base, flags) : open("/dev/null", flags | O_CLOEXEC);
		if (*fd < 0)
			return err_set(err, *fd < -1 ? *fd : -errno, "open the console's terminal");
		return terminal_renamed(restore, saved, *fd, err);
	}
	base = saved->master ? pair_master(restore, saved, err) : pair_slave(restore, saved, err);
	if (base < 0)
		return base;
	*fd = saved->master ? fcntl(base, F_DUPFD_CLOEXEC, 3) : object_reopen(base, flags);
	if (*fd < 0)
		return err_set(err, -EIO, "open a pseudo-terminal again");
	if (saved->mode && fchmod(*fd, saved->mode & 0777) < 0)
		return err_sys(err, "set a terminal's mode");
	/* Now, while there is no foreground group that would get SIGWINCH. */
	if (saved->winsize.len == sizeof(struct winsize) && ioctl(*fd, TIOCSWINSZ, saved->winsize.data) < 0)
		return err_sys(err, "set a terminal's window size");
	return 0;
}

static int put_bytes(struct object_restore *restore, const Pbeam__Tty *saved, int master, struct err *err)
{
	auto_free char *output = NULL, *input = NULL;
	size_t output_len, input_len;
	int slave, r = object_get_extent(restore, saved->output, &output, &output_len, err);

	if (r == 0)
		r = object_get_extent(restore, saved->input, &input, &input_len, err);
	if (r < 0 || (output_len == 0 && input_len == 0))
		return r;
	slave = pair_slave(restore, saved, err);
	if (slave < 0)
		return slave;
	if (output_len)
		r = pty_output_put(slave, output, output_len, err);
	return r < 0 ? r : pty_input_put(master, slave, input, input_len, err);
}

int terminal_adopt_apart(struct object_restore *restore, const Pbeam__Tty *saved, int slave, struct err *err)
{
	int number = terminal_pts_number(slave, 0), r;

	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_TTY, key_of(saved, false), slave, err);
	return r < 0 ? r : object_restore_renamed_pts(restore, (int)saved->pty, number, err);
}

/* A slave: its master is with a process that is not dumped. */
static int tty_end_refill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
			  struct err *err)
{
	const Pbeam__Tty *saved = object->tty;
	int master = object_restore_kept(restore, PBEAM__OBJECT__KIND_TTY, key_of(saved, true));
	int r = master < 0 ? -ENOENT : terminal_restore_termios(saved, master, err);

	*other = master;
	return r < 0 ? r : put_bytes(restore, saved, master, err);
}

static int tty_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__Tty *saved = object->tty;
	int on = 1, r;

	if (!saved->master)
		return 0;
	r = terminal_restore_termios(saved, fd, err);
	if (r == 0)
		r = put_bytes(restore, saved, fd, err);
	if (r == 0 && saved->hung_up)
		r = pair_slave(restore, saved, err);
	if (r < 0)
		return r;
	if ((saved->packet_mode && ioctl(fd, TIOCPKT, &on) < 0) ||
	    (saved->exclusive && ioctl(fd, TIOCEXCL) < 0) ||
	    (saved->locked && ioctl(fd, TIOCSPTLCK, &on) < 0))
		return err_sys(err, "set a pseudo-terminal's modes");
	return 0;
}

static int tty_install(struct names *names, const Pbeam__Object *object, const Pbeam__Process *process,
		       int fd, struct batch *batch, struct err *err)
{
	return object->tty->master ? 0
				   : terminal_install_foreground(names, object->tty, process, fd, batch, err);
}

int object_restore_controlling_tty(struct object_restore *restore, struct vpid session)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		const Pbeam__Object *object = restore->slots[i].object;
		const Pbeam__Tty *tty = object_tty_of(object);

		if (!tty || tty->session_vsid == 0 || tty->session_vsid != session.n)
			continue;
		if (object->kind_case == PBEAM__OBJECT__KIND_CONSOLE || tty->console)
			return console_tty(restore);
		return pair_slave(restore, tty, NULL);
	}
	return -1;
}

static const struct object_end_ops tty_end = {.refill = tty_end_refill};

const struct object_ops object_tty = {
	.name = "terminal",
	.kind = PBEAM__OBJECT__KIND_TTY,
	.phase = 1,
	.match = tty_match,
	.dump = tty_dump,
	.restore = tty_restore,
	.finish = tty_finish,
	.install = tty_install,
	.shift = object_shift_none,
	.end = &tty_end,
};
