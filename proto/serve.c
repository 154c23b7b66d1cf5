#include "proto/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"

int serve_listen(const char *path, struct err *err)
{
	auto_close int listener = frame_listen(path, err);

	if (listener < 0)
		return listener;
	if (fcntl(listener, F_SETFL, O_NONBLOCK) < 0)
		return err_sys(err, "listen on %s", path);
	return steal_fd(&listener);
}

int serve_accept(int listener, struct err *err)
{
	int fd = frame_accept(listener, err);

	if (fd >= 0 && fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
		int r = err_sys(err, "accept a connection");

		close(fd);
		return r;
	}
	return fd;
}

bool serve_readable(struct frame_reader *reader, int sock, serve_frame_fn serve, void *arg)
{
	struct err err = ERR_INIT;
	struct frame frame;
	int r = frame_reader_step(reader, sock, &frame, &err);
	bool go_on;

	if (r == -EAGAIN)
		return true;
	if (r <= 0) {
		if (r < 0)
			log_info("connection: %s", err.text);
		return false;
	}
	go_on = serve(arg, &frame);
	frame_free(&frame);
	return go_on;
}
