/* What both ends of a far console send with. */
#include "proto/frame.h"
#include "scip/job/far.h"

bool far_say(struct far_line *line, uint32_t type, int stream, const void *data, size_t len, uint64_t count)
{
	Pbeam__Far far = PBEAM__FAR__INIT;
	int r;

	far.stream = stream;
	far.data.data = (uint8_t *)(uintptr_t)data;
	far.data.len = len;
	far.count = count;
	pthread_mutex_lock(&line->lock);
	r = frame_send(line->channel, type, &far.base, NULL, 0, NULL);
	pthread_mutex_unlock(&line->lock);
	return r == 0;
}
