/*
 * Terminals: a program's pseudo-terminal whose other side, the master, a process that stays keeps.
 *
 *    keeper ═ master │ slave ─ anchor ══ channel ══ float ─ master │ slave ═ program
 *               the old pair                           the new pair
 *
 * All that a terminal does is done by the new pair, which has the program's settings: lines, echo, signals,
 * what becomes of newlines. The old one passes bytes as they are (neutral()) and yet shows the keeper, who
 * may look, whether the program wants echo and signals: EXTPROC keeps the kernel from acting on these. It is
 * not canonical, for the kernel drops what does not fit into a line, and an empty read is the end
 * of the terminal, nothing else.
 *
 * Settings and window size are records like any other, sent before the data that follows a change. Nobody is
 * told of a change, so both sides look before they read, and now and then. What the keeper changes is taken
 * as a difference and made in the program's settings.
 */
#include <asm/termbits.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/bridge/bridge_line.h"
#include "scip/object/common.h"

/* <sys/ioctl.h> and <asm/termbits.h> both define struct winsize and its like. */
int ioctl(int fd, unsigned long request, ...);
#include <asm/ioctls.h>

struct window {
	unsigned short size[4];
};

struct line_terminal {
	struct termios2 program; /* its settings */
	struct termios2 seen;	 /* what our side of the pair has, as far as we know */
	struct window window;
};

bool line_is_terminal(const struct line *line)
{
	return line->about->kind == PBEAM__BRIDGE_LINE__KIND__TERMINAL;
}

static struct termios2 neutral(const struct termios2 *program)
{
	struct termios2 out = *program;

	out.c_iflag &= ~(tcflag_t)(ISTRIP | IUCLC | IXON | PARMRK);
	out.c_oflag &= ~(tcflag_t)OPOST;
	out.c_lflag &= ~(tcflag_t)ICANON;
	out.c_lflag |= EXTPROC;
	out.c_cc[VMIN] = 1;
	out.c_cc[VTIME] = 0;
	return out;
}

/* Puts settings on, and remembers what the kernel made of them. */
static void put_on(struct line *line, const struct termios2 *settings)
{
	struct termios2 wanted = line->anchor ? neutral(settings) : *settings;

	line->terminal->program = *settings;
	if (ioctl(line->fd, TCSETS2, &wanted) < 0 || ioctl(line->fd, TCGETS2, &line->terminal->seen) < 0)
		log_debug("bridge: %s: its settings: %s", line->about->text, strerror(errno));
}

int terminal_begin(struct line *line)
{
	struct termios2 settings;

	if (line->terminal)
		return 0;
	line->terminal = calloc(1, sizeof(*line->terminal));
	if (!line->terminal)
		return -ENOMEM;
	/* One that is hung up already says so when it is read. */
	if (ioctl(line->fd, TIOCGWINSZ, &line->terminal->window) < 0 ||
	    ioctl(line->fd, TCGETS2, &settings) < 0)
		return 0;
	line->terminal->seen = line->terminal->program = settings;
	if (line->anchor)
		put_on(line, &settings);
	return 0;
}

/*
 * The old terminal edits lines until it is made neutral: an erase character typed since the dump has removed
 * bytes that the program took along, and these are erased once more there.
 */
static size_t erased_characters(const struct line *line, size_t same)
{
	const struct termios2 *program = &line->terminal->program;
	size_t n = 0;

	if (!(program->c_lflag & ICANON) || !program->c_cc[VERASE])
		return 0;
	for (size_t i = same; i < line->typed.len;
	     i++) /* one for each character, of several bytes in UTF-8 */
		n += !(program->c_iflag & IUTF8) || ((uint8_t)line->typed.data[i] & 0xc0) != 0x80;
	return n;
}

int terminal_depart(struct line *line)
{
	struct pty_bytes now = {0};
	size_t same = 0, erased, len;
	auto_free char *bytes = NULL;
	int r = terminal_begin(line);

	if (r == 0)
		r = pty_input_take(line->fd, &now);
	if (r < 0) {
		free(now.data);
		return r;
	}
	while (same < now.len && same < line->typed.len && now.data[same] == line->typed.data[same])
		same++;
	erased = erased_characters(line, same);
	len = erased + now.len - same;
	bytes = malloc(len + 1);
	if (bytes) {
		memset(bytes, line->terminal->program.c_cc[VERASE], erased);
		for (size_t i = same; i < now.len; i++) /* an end of file reads as a zero byte here */
			bytes[erased + i - same] = now.data[i] || !(line->terminal->program.c_lflag & ICANON)
							   ? now.data[i]
							   : (char)line->terminal->program.c_cc[VEOF];
	}
	free(now.data);
	if (!bytes)
		return -ENOMEM;
	return len ? line_append(line, PBEAM__BRIDGE_RECORD__KIND__DATA, bytes, len, NULL, 0, NULL) : 0;
}

void terminal_end(struct line *line)
{
	/* A keeper that still has it open finds it as the program left it. While the bridge's process runs,
	 * the settings are that one's. */
	if (line->terminal && line->anchor && line->fd >= 0 && !line->bridge->started)
		(void)ioctl(line->fd, TCSETS2, &line->terminal->program);
	free(line->terminal);
	line->terminal = NULL;
}

static tcflag_t changed(tcflag_t program, tcflag_t seen, tcflag_t now)
{
	return (program & ~(seen ^ now)) | (now & (seen ^ now));
}

/* What the keeper did to our side, done to the program's settings. */
static struct termios2 merged(const struct line_terminal *terminal, const struct termios2 *now)
{
	const struct termios2 *seen = &terminal->seen;
	struct termios2 out = terminal->program;

	out.c_iflag = changed(out.c_iflag, seen->c_iflag, now->c_iflag);
	out.c_oflag = changed(out.c_oflag, seen->c_oflag, now->c_oflag);
	out.c_cflag = changed(out.c_cflag, seen->c_cflag, now->c_cflag);
	out.c_lflag = changed(out.c_lflag, seen->c_lflag, now->c_lflag);
	for (size_t i = 0; i < sizeof(out.c_cc); i++)
		if (now->c_cc[i] != seen->c_cc[i])
			out.c_cc[i] = now->c_cc[i];
	out.c_ispeed = now->c_ispeed;
	out.c_ospeed = now->c_ospeed;
	return out;
}

bool terminal_look(struct line *line)
{
	struct line_terminal *terminal = line->terminal;
	struct termios2 now;
	struct window window;
	bool news = false;
	int r = 0;

	if (!terminal || line->fd < 0 || line->closing)
		return false;
	if (ioctl(line->fd, TCGETS2, &now) == 0 && memcmp(&now, &terminal->seen, sizeof(now)) != 0) {
		if (line->anchor) {
			now = merged(terminal, &now);
			put_on(line, &now);
		} else {
			terminal->seen = now;
		}
		r = line_append(line, PBEAM__BRIDGE_RECORD__KIND__TERMIOS, &now, sizeof(now), NULL, 0, NULL);
		news = true;
	}
	if (r == 0 && ioctl(line->fd, TIOCGWINSZ, &window) == 0 &&
	    memcmp(&window, &terminal->window, sizeof(window)) != 0) {
		terminal->window = window;
		r = line_append(line, PBEAM__BRIDGE_RECORD__KIND__WINSIZE, &window, sizeof(window), NULL, 0,
				NULL);
		news = true;
	}
	if (r < 0)
		log_warn("bridge: out of memory: the settings of %s are not passed on", line->about->text);
	return news;
}

void terminal_apply(struct line *line, const Pbeam__BridgeRecord *record)
{
	struct line_terminal *terminal = line->terminal;

	if (!terminal || line->fd < 0)
		return;
	if (record->kind == PBEAM__BRIDGE_RECORD__KIND__TERMIOS &&
	    record->data.len == sizeof(struct termios2)) {
		struct termios2 settings;

		memcpy(&settings, record->data.data, sizeof(settings));
		put_on(line, &settings);
	} else if (record->kind == PBEAM__BRIDGE_RECORD__KIND__WINSIZE &&
		   record->data.len == sizeof(terminal->window)) {
		memcpy(&terminal->window, record->data.data, sizeof(terminal->window));
		(void)ioctl(line->fd, TIOCSWINSZ, &terminal->window);
	}
}

bool terminal_ended(struct line *line, ssize_t result)
{
	struct pollfd poll_fd = {.fd = line->fd, .events = 0};

	if (result == -EAGAIN || result == -EINTR)
		return false;
	/* Settings of the keeper's that let a read return without bytes. */
	return result < 0 || (poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLHUP);
}
