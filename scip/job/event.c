#include "scip/job/event.h"

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"

enum { EVENT_MAX = ERR_TEXT_MAX + 64 }; /* bytes of a packed event: its text and three numbers */
_Static_assert(EVENT_MAX <= PIPE_BUF, "an event is one packet of a pipe");

int event_send(int sock, const Pbeam__KeeperEvent *event)
{
	uint8_t bytes[EVENT_MAX];
	ssize_t n;

	if (pbeam__keeper_event__get_packed_size(event) > sizeof(bytes))
		return -EMSGSIZE;
	n = io_send(sock, bytes, pbeam__keeper_event__pack(event, bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
	return n < 0 ? (int)n : 0;
}

static int unpack_event(const uint8_t *bytes, ssize_t n, Pbeam__KeeperEvent **out)
{
	if (n <= 0)
		return n < 0 ? -errno : 0;
	*out = pbeam__keeper_event__unpack(NULL, (size_t)n, bytes);
	return *out ? 1 : -EPROTO;
}

int event_receive(int sock, int flags, Pbeam__KeeperEvent **out)
{
	uint8_t bytes[EVENT_MAX];
	ssize_t n = recv(sock, bytes, sizeof(bytes), flags);

	return unpack_event(bytes, n, out);
}

int event_write(int pipe, const Pbeam__KeeperEvent *event)
{
	uint8_t bytes[EVENT_MAX];

	if (pbeam__keeper_event__get_packed_size(event) > sizeof(bytes))
		return -EMSGSIZE;
	return write(pipe, bytes, pbeam__keeper_event__pack(event, bytes)) < 0 ? -errno : 0;
}

int event_read(int pipe, Pbeam__KeeperEvent **out)
{
	uint8_t bytes[EVENT_MAX];
	ssize_t n = read(pipe, bytes, sizeof(bytes));

	return unpack_event(bytes, n, out);
}
