/* What both ends of a remote console send with. */
#include "proto/frame.h"
#include "scip/job/remote_console.h"

bool remote_console_send(struct remote_console_channel *link, uint32_t type, int stream, const void *data,
			 size_t len, uint64_t count)
{
	Pbeam__RemoteConsole message = PBEAM__REMOTE_CONSOLE__INIT;
	int r;

	message.stream = stream;
	message.data.data = (uint8_t *)(uintptr_t)data;
	message.data.len = len;
	message.count = count;
	pthread_mutex_lock(&link->lock);
	r = frame_send(link->channel, type, &message.base, NULL, 0, NULL);
	pthread_mutex_unlock(&link->lock);
	return r == 0;
}
