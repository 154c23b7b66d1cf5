#include "scip/object/terminal.h"

#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "base/io.h"
#include "scip/object/common.h"

/* <sys/ioctl.h> and <asm/termbits.h> both define struct winsize and its like. */
int ioctl(int fd, unsigned long request, ...);
#include <asm/ioctls.h>

struct window {
	unsigned short size[4];
};

int terminal_pts_number(int fd, uint64_t rdev)
{
	unsigned device;
	uint64_t kind;

	if (ioctl(fd, TIOCGDEV, &device) == 0) {
		kind = device >> 8 & 0xfff;
		if (kind < TERMINAL_MAJOR_FIRST || kind > TERMINAL_MAJOR_LAST)
			return -1;
		return (int)((kind - TERMINAL_MAJOR_FIRST) << 20 | (device & 0xff) |
			     (device >> 12 & 0xfff00));
	}
	kind = major(rdev);
	if (kind < TERMINAL_MAJOR_FIRST || kind > TERMINAL_MAJOR_LAST)
		return -1;
	return (int)((kind - TERMINAL_MAJOR_FIRST) << 20 | minor(rdev));
}

bool terminal_is_master(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == makedev(5, 2);
}

int terminal_path_number(const char *path)
{
	int number, end = 0;

	return sscanf(path, "/dev/pts/%9d%n", &number, &end) == 1 && !path[end] && number >= 0 ? number : -1;
}

/* Session and foreground group of the holder's controlling terminal if that is device `rdev`. */
static bool from_stat(struct rpid holder, uint64_t rdev, int *session, int *group)
{
	auto_free char *stat = NULL;
	char path[64];
	const char *rest;
	unsigned tty;

	snprintf(path, sizeof(path), "/proc/%d/stat", holder.n);
	if (io_slurp(AT_FDCWD, path, 65536, &stat, NULL) < 0)
		return false;
	rest = strrchr(stat, ')');
	/* state ppid pgrp session tty_nr tpgid */
	if (!rest || sscanf(rest, ") %*c %*d %*d %d %u %d", session, &tty, group) != 3)
		return false;
	return rdev == makedev(tty >> 8 & 0xfff, (tty & 0xff) | (tty >> 12 & 0xfff00));
}

int terminal_dump_settings(struct names *names, struct rpid holder, int fd, Pbeam__Tty *out, struct err *err)
{
	struct termios2 termios;
	struct window window;
	unsigned device = 0;
	int group = 0, session = 0, r;

	if (ioctl(fd, TCGETS2, &termios) < 0)
		return err_sys(err, "a terminal whose settings cannot be read");
	r = object_set_bytes(&out->termios, &termios, sizeof(termios), err);
	if (r == 0 && ioctl(fd, TIOCGWINSZ, &window) == 0)
		r = object_set_bytes(&out->winsize, &window, sizeof(window), err);
	if (ioctl(fd, TIOCGSID, &session) < 0 || ioctl(fd, TIOCGPGRP, &group) < 0) {
		/* TIOCGDEV gives the same encoding of the device as tty_nr. */
		if (ioctl(fd, TIOCGDEV, &device) < 0 ||
		    !from_stat(holder,
			       makedev(device >> 8 & 0xfff, (device & 0xff) | (device >> 12 & 0xfff00)),
			       &session, &group))
			return r;
	}
	if (group > 0)
		out->foreground_vpgid = names_virtual(names, (struct rpid){group}).n;
	if (session > 0)
		out->session_vsid = names_virtual(names, (struct rpid){session}).n;
	return r;
}

int terminal_renamed(struct object_restore *restore, const Pbeam__Tty *saved, int fd, struct err *err)
{
	struct stat st;
	int now = fstat(fd, &st) < 0 ? -1 : terminal_pts_number(fd, st.st_rdev);

	if (!saved->path.len || now < 0 || saved->pty > INT32_MAX)
		return 0;
	return object_restore_renamed_pts(restore, (int)saved->pty, now, err);
}

int terminal_restore_termios(const Pbeam__Tty *saved, int fd, struct err *err)
{
	if (saved->termios.len == 0)
		return 0;
	if (saved->termios.len != sizeof(struct termios2))
		return err_set(err, -EBADMSG, "the image's terminal settings are malformed");
	if (ioctl(fd, TCSETS2, saved->termios.data) < 0)
		return err_sys(err, "put back a terminal's settings");
	return 0;
}

int terminal_install_foreground(struct names *names, const Pbeam__Tty *saved, const Pbeam__Process *process,
				int fd, struct batch *batch, struct err *err)
{
	struct taddr where;
	int group, r;

	if (saved->foreground_vpgid <= 0 || process->vsid != saved->session_vsid)
		return 0;
	group = names_real(names, (struct vpid){saved->foreground_vpgid}).n;
	r = batch_data(batch, &group, sizeof(group), &where);
	if (r < 0)
		return r;
	/* Any member may do it; where the terminal is not (no longer) the session's own it is refused. */
	return batch_add(batch, INJECT_CALL_ANY, SYS_ioctl, remote_args((uint64_t)fd, TIOCSPGRP, where.a));
}
