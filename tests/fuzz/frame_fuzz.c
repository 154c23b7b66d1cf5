/* libFuzzer: bytes on a socket as frames, with bodies parsed as the messages that pbeamd expects. */
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "proto/rpc.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const bodies[] = {
	&pbeam__hello__descriptor,
	&pbeam__target__descriptor,
	&pbeam__checkpoint_request__descriptor,
	&pbeam__rollback_request__descriptor,
	&pbeam__kill_request__descriptor,
	&pbeam__process_list__descriptor,
	&pbeam__checkpoint_log__descriptor,
	&pbeam__progress__descriptor,
	&pbeam__failed__descriptor,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct frame f;
	int s[2];

	if (size > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
		return 0;
	if (write(s[0], data, size) == (ssize_t)size) {
		close(s[0]);
		while (frame_recv(s[1], &f, NULL) == 1) {
			ProtobufCMessage *m =
				frame_unpack(&f, bodies[f.type % (sizeof(bodies) / sizeof(bodies[0]))], NULL);

			if (m)
				protobuf_c_message_free_unpacked(m, NULL);
			frame_free(&f);
		}
	} else {
		close(s[0]);
	}
	close(s[1]);
	return 0;
}
