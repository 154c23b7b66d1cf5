/*
 * Terminals: a program's pseudo-terminal whose other side, the master, belongs to a process that stays.
 *
 *    keeper ═ master │ slave ─ anchor ══ channel ══ float ─ master │ slave ═ program
 *               the old pair                           the new pair
 *
 * The new pair does all that a terminal does, with the program's settings: line editing, echo, signals,
 * newlines. The old pair passes bytes unchanged (terminal_neutral()), and still shows its keeper whether the
 * program wants echo and signals: with EXTPROC the kernel does not act on these flags. It is not canonical,
 * because the kernel drops what does not fit into a line, and there an empty read means nothing but the end
 * of the terminal.
 *
 * Settings and window size are records like any other, sent before the data that follows a change. There is
 * no event for a change, so both sides look before they read, and now and then. A change that the keeper
 * makes is taken as a difference and applied to the program's settings.
 */
#include <asm/termbits.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/bridge/bridge_stream.h"
#include "scip/object/common.h"

/* <sys/ioctl.h> and <asm/termbits.h> both define struct winsize and its like. */
int ioctl(int fd, unsigned long request, ...);
#include <asm/ioctls.h>

struct window {
	unsigned short size[4];
};

struct stream_terminal {
	struct termios2 program; /* its settings */
	struct termios2 seen;	 /* the last known settings of the bridge's side */
	struct window window;
};

bool bridge_stream_is_terminal(const struct bridge_stream *stream)
{
	return stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__TERMINAL;
}

static struct termios2 terminal_neutral(const struct termios2 *program)
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

/* Sets the settings, and stores what the kernel made of them. */
static void put_on(struct bridge_stream *stream, const struct termios2 *settings)
{
	struct termios2 wanted = stream->anchor ? terminal_neutral(settings) : *settings;

	stream->terminal->program = *settings;
	if (ioctl(stream->fd, TCSETS2, &wanted) < 0 ||
	    ioctl(stream->fd, TCGETS2, &stream->terminal->seen) < 0)
		log_debug("bridge: %s: its settings: %s", stream->about->text, strerror(errno));
}

int terminal_begin(struct bridge_stream *stream)
{
	struct termios2 settings;

	if (stream->terminal)
		return 0;
	stream->terminal = calloc(1, sizeof(*stream->terminal));
	if (!stream->terminal)
		return -ENOMEM;
	/* a terminal that is hung up reports it at the next read */
	if (ioctl(stream->fd, TIOCGWINSZ, &stream->terminal->window) < 0 ||
	    ioctl(stream->fd, TCGETS2, &settings) < 0)
		return 0;
	stream->terminal->seen = stream->terminal->program = settings;
	if (stream->anchor)
		put_on(stream, &settings);
	return 0;
}

/*
 * The old terminal edits streams until it is made neutral: an erase character typed since the dump has
 * removed bytes that the program took along, and these are erased once more there.
 */
static size_t erased_characters(const struct bridge_stream *stream, size_t same)
{
	const struct termios2 *program = &stream->terminal->program;
	size_t n = 0;

	if (!(program->c_lflag & ICANON) || !program->c_cc[VERASE])
		return 0;
	for (size_t i = same; i < stream->typed.len;
	     i++) /* one erase for each character, which has several bytes in UTF-8 */
		n += !(program->c_iflag & IUTF8) || ((uint8_t)stream->typed.data[i] & 0xc0) != 0x80;
	return n;
}

int terminal_depart(struct bridge_stream *stream)
{
	struct pty_bytes now = {0};
	size_t same = 0, erased, len;
	auto_free char *bytes = NULL;
	int r = terminal_begin(stream);

	if (r == 0)
		r = pty_input_take(stream->fd, &now);
	if (r < 0) {
		free(now.data);
		return r;
	}
	while (same < now.len && same < stream->typed.len && now.data[same] == stream->typed.data[same])
		same++;
	/* Moves back to the start of a character of which only a part matches. */
	while ((stream->terminal->program.c_iflag & IUTF8) && same && same < stream->typed.len &&
	       ((uint8_t)stream->typed.data[same] & 0xc0) == 0x80)
		same--;
	erased = erased_characters(stream, same);
	len = erased + now.len - same;
	bytes = malloc(len + 1);
	if (bytes) {
		memset(bytes, stream->terminal->program.c_cc[VERASE], erased);
		for (size_t i = same; i < now.len; i++) /* an end of file reads as a zero byte here */
			bytes[erased + i - same] =
				now.data[i] || !(stream->terminal->program.c_lflag & ICANON)
					? now.data[i]
					: (char)stream->terminal->program.c_cc[VEOF];
	}
	free(now.data);
	if (!bytes)
		return -ENOMEM;
	return len ? bridge_stream_append(stream, PBEAM__BRIDGE_RECORD__KIND__DATA, bytes, len, NULL, 0, NULL)
		   : 0;
}

void terminal_end(struct bridge_stream *stream)
{
	/* A keeper that still has the terminal open finds it as the program left it. While the bridge's
	 * process runs, the bridge sets the terminal's modes. */
	if (stream->terminal && stream->anchor && stream->fd >= 0 && !stream->bridge->started)
		(void)ioctl(stream->fd, TCSETS2, &stream->terminal->program);
	free(stream->terminal);
	stream->terminal = NULL;
}

static tcflag_t flags_changed(tcflag_t program, tcflag_t seen, tcflag_t now)
{
	return (program & ~(seen ^ now)) | (now & (seen ^ now));
}

/* Applies the keeper's changes of the bridge's side to the program's settings. */
static struct termios2 terminal_merged(const struct stream_terminal *terminal, const struct termios2 *now)
{
	const struct termios2 *seen = &terminal->seen;
	struct termios2 out = terminal->program;

	out.c_iflag = flags_changed(out.c_iflag, seen->c_iflag, now->c_iflag);
	out.c_oflag = flags_changed(out.c_oflag, seen->c_oflag, now->c_oflag);
	out.c_cflag = flags_changed(out.c_cflag, seen->c_cflag, now->c_cflag);
	out.c_lflag = flags_changed(out.c_lflag, seen->c_lflag, now->c_lflag);
	for (size_t i = 0; i < sizeof(out.c_cc); i++)
		if (now->c_cc[i] != seen->c_cc[i])
			out.c_cc[i] = now->c_cc[i];
	out.c_ispeed = now->c_ispeed;
	out.c_ospeed = now->c_ospeed;
	return out;
}

bool terminal_look(struct bridge_stream *stream)
{
	struct stream_terminal *terminal = stream->terminal;
	struct termios2 now;
	struct window window;
	bool news = false;
	int r = 0;

	if (!terminal || stream->fd < 0 || stream->closing)
		return false;
	if (ioctl(stream->fd, TCGETS2, &now) == 0 && memcmp(&now, &terminal->seen, sizeof(now)) != 0) {
		if (stream->anchor) {
			now = terminal_merged(terminal, &now);
			put_on(stream, &now);
		} else {
			terminal->seen = now;
		}
		r = bridge_stream_append(stream, PBEAM__BRIDGE_RECORD__KIND__TERMIOS, &now, sizeof(now), NULL,
					 0, NULL);
		news = true;
	}
	if (r == 0 && ioctl(stream->fd, TIOCGWINSZ, &window) == 0 &&
	    memcmp(&window, &terminal->window, sizeof(window)) != 0) {
		terminal->window = window;
		r = bridge_stream_append(stream, PBEAM__BRIDGE_RECORD__KIND__WINSIZE, &window, sizeof(window),
					 NULL, 0, NULL);
		news = true;
	}
	if (r < 0)
		log_warn("bridge: out of memory: the settings of %s are not passed on", stream->about->text);
	return news;
}

void terminal_apply(struct bridge_stream *stream, const Pbeam__BridgeRecord *record)
{
	struct stream_terminal *terminal = stream->terminal;

	if (!terminal || stream->fd < 0)
		return;
	if (record->kind == PBEAM__BRIDGE_RECORD__KIND__TERMIOS &&
	    record->data.len == sizeof(struct termios2)) {
		struct termios2 settings;

		memcpy(&settings, record->data.data, sizeof(settings));
		put_on(stream, &settings);
	} else if (record->kind == PBEAM__BRIDGE_RECORD__KIND__WINSIZE &&
		   record->data.len == sizeof(terminal->window)) {
		memcpy(&terminal->window, record->data.data, sizeof(terminal->window));
		(void)ioctl(stream->fd, TIOCSWINSZ, &terminal->window);
	}
}

bool terminal_ended(struct bridge_stream *stream, ssize_t result)
{
	struct pollfd poll_fd = {.fd = stream->fd, .events = 0};

	if (result == -EAGAIN || result == -EINTR)
		return false;
	/* True if the keeper's settings let a read return without bytes. */
	return result < 0 || (poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLHUP);
}
