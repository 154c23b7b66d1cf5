#include "pbeamd/transport/listener.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

enum { BACK_OFF_US = 100000 };

struct listener {
	const struct listener_calls *calls;
	void *arg;
	int socket;
	int spare; /* -1: could not be opened again yet */
	struct event *readable, *again;
	unsigned long refused; /* connections since the last one that was taken */
	bool exhausted;	       /* has been logged */
};

/* Clients are refused while descriptors lack: that may last. A lack of kernel memory passes, and they wait.
 */
static bool lacks_descriptors(int r)
{
	return r == -EMFILE || r == -ENFILE;
}

static bool is_exhaustion(int r)
{
	return lacks_descriptors(r) || r == -ENOBUFS || r == -ENOMEM;
}

static int listener_open_spare(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void listener_refuse_one(struct listener *listener, const struct err *why)
{
	int fd;

	if (listener->spare < 0)
		return;
	close(listener->spare);
	fd = accept4(listener->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		if (listener->calls->refuse)
			listener->calls->refuse(fd, why);
		close(fd);
		listener->refused++;
	}
	listener->spare = listener_open_spare();
}

static void listener_back_off(struct listener *listener, int r, const struct err *why)
{
	const struct timeval later = {0, BACK_OFF_US};

	if (!listener->exhausted)
		log_warn("%s: connections %s", why->text,
			 lacks_descriptors(r) ? "are refused until descriptors are free" : "wait");
	listener->exhausted = true;
	if (lacks_descriptors(r))
		listener_refuse_one(listener, why);
	if (event_add(listener->again, &later) == 0)
		event_del(listener->readable);
}

static void listener_on_readable(evutil_socket_t socket, short what, void *arg)
{
	struct listener *listener = arg;
	struct err err = ERR_INIT;
	int fd = listener->calls->accept(socket, &err);

	if (fd >= 0) {
		if (listener->exhausted)
			log_warn("connections are accepted again; %lu were refused", listener->refused);
		listener->exhausted = false;
		listener->refused = 0;
		listener->calls->take(listener->arg, fd);
	} else if (is_exhaustion(fd)) {
		listener_back_off(listener, fd, &err);
	} else if (fd != -EAGAIN) {
		log_warn("%s", err.text);
	}
}

static void listener_on_again(evutil_socket_t fd, short what, void *arg)
{
	struct listener *listener = arg;

	if (listener->spare < 0)
		listener->spare = listener_open_spare();
	event_add(listener->readable, NULL);
}

int listener_open(struct listener **out, struct event_base *base, int socket,
		  const struct listener_calls *calls, void *arg, struct err *err)
{
	struct listener *listener = calloc(1, sizeof(*listener));

	*out = NULL;
	if (!listener)
		return err_code(err, -ENOMEM, "listen");
	*listener = (struct listener){
		.calls = calls, .arg = arg, .socket = socket, .spare = listener_open_spare()};
	if (listener->spare < 0) {
		int r = err_sys(err, "open /dev/null");

		listener_close(listener);
		return r;
	}
	listener->readable = event_new(base, socket, EV_READ | EV_PERSIST, listener_on_readable, listener);
	listener->again = event_new(base, -1, 0, listener_on_again, listener);
	if (!listener->readable || !listener->again || event_add(listener->readable, NULL) < 0) {
		listener_close(listener);
		return err_set(err, -ENOMEM, "no memory for the event loop");
	}
	*out = listener;
	return 0;
}

void listener_close(struct listener *listener)
{
	if (!listener)
		return;
	if (listener->readable)
		event_free(listener->readable);
	if (listener->again)
		event_free(listener->again);
	if (listener->spare >= 0)
		close(listener->spare);
	free(listener);
}
