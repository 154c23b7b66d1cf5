/*
 * libFuzzer: `scip reconnect`, which other hosts of the cluster ask to hold connections
 * (proto/reconnect.proto), and the queues that the two new ends of a connection exchange, where nothing but a
 * cookie has been checked. The input is a script.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/cluster.pb-c.h"
#include "proto/message.h"
#include "scip/ends/end_tcp.h"
#include "scip/reconnect/reconnect.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

enum { SIZE_MAX_TAKEN = 64 << 10, BUFFER = 8192 };

static const struct fuzz_kind kinds[] = {
	{PBEAM__CHANNEL_MESSAGE__RECONNECT_REQUEST, &pbeam__reconnect_request__descriptor},
	{0, NULL},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static struct names *names;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	return fuzz_mutate_script(kinds, KINDS, data, size, max, seed);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	fuzz_place_open(*argc, *argv);
	if (names_open(&names, NULL) < 0)
		abort();
	return 0;
}

/* Its outcome would be looked up in a registry that is not here. */
static void forget_migration(ProtobufCMessage *message)
{
	Pbeam__ReconnectRequest *request = (Pbeam__ReconnectRequest *)(void *)message;

	if (message_string(&request->migration, "") < 0)
		abort();
}

static void exchange(const uint8_t *data, size_t size)
{
	static char unread[] = "unread";
	struct end_tcp end;
	int ends[2];

	end_tcp_init(&end);
	if (!fuzz_place_socket(data, size, ends))
		return;
	end.fresh = ends[1];
	end.unread = unread;
	end.unread_len = size % 2 ? 0 : sizeof(unread) - 1;
	end.receive_buffer = BUFFER;
	(void)!end_tcp_exchange(&end, size % 3 == 0, NULL);
	close(ends[0]);
	close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t len;
	uint8_t *bytes = size && size <= SIZE_MAX_TAKEN
				 ? fuzz_script_bytes(kinds, KINDS, forget_migration, data, size, &len)
				 : NULL;
	int ends[2];

	if (!bytes)
		return 0;
	if (data[0] % KINDS == 1) {
		exchange(bytes, len);
	} else if (fuzz_place_socket(bytes, len, ends)) {
		(void)!reconnect_serve(names, ends[1]); /* closes it */
		close(ends[0]);
	}
	free(bytes);
	return 0;
}
