/*
 * libFuzzer: what the other side of a bridge sends (scip/bridge/bridge_stream.h): attachments,
 * acknowledgements and records, for streams of every kind, anchors and floats. A message of kind 0 adds a
 * float as its program's manifest describes it. The input is a script.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/cluster.pb-c.h"
#include "proto/message.h"
#include "scip/bridge/bridge_stream.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

enum { SIZE_MAX_TAKEN = 64 << 10, FLOATS_MAX = 4 };

static const struct fuzz_kind kinds[] = {
	{0, &pbeam__bridge_stream__descriptor},
	{PBEAM__CHANNEL_MESSAGE__BRIDGE_RECORD, &pbeam__bridge_record__descriptor},
	{PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACH, &pbeam__bridge_attach__descriptor},
	{PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACHED, &pbeam__bridge_attach__descriptor},
	{PBEAM__CHANNEL_MESSAGE__BRIDGE_ACK, &pbeam__bridge_attach__descriptor},
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

static int make_end(const Pbeam__BridgeStream *about)
{
	const bool messages = about->kind == PBEAM__BRIDGE_STREAM__KIND__MESSAGES ||
			      about->kind == PBEAM__BRIDGE_STREAM__KIND__PORT;
	int ends[2];

	if (about->kind == PBEAM__BRIDGE_STREAM__KIND__TERMINAL)
		return posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	if (about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER)
		return -1;
	if (socketpair(AF_UNIX, (messages ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
		       ends) < 0)
		return -1;
	(void)!write(ends[0], "from the program", 16);
	close(ends[0]);
	return ends[1];
}

/* A stream of the kind, numbered from 1. */
static void add_anchor(struct bridge *bridge, struct channel *channel, enum _Pbeam__BridgeStream__Kind kind)
{
	Pbeam__BridgeStream about = PBEAM__BRIDGE_STREAM__INIT;
	uint64_t id;
	int fd;

	about.kind = kind;
	about.family = AF_UNIX;
	about.reads = about.writes = true;
	fd = make_end(&about);
	if (kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER)
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bridge_add_anchor(bridge, &about, fd, 0, &id, NULL) < 0)
		return;
	bridge->streams->channel = channel;
	if (kind == PBEAM__BRIDGE_STREAM__KIND__TERMINAL)
		(void)!terminal_begin(bridge->streams);
}

static void add_float(struct bridge *bridge, struct channel *channel, const uint8_t *data, size_t len)
{
	static uint8_t cookie[BRIDGE_COOKIE];
	Pbeam__BridgeStream *about = pbeam__bridge_stream__unpack(NULL, len, data);
	int fd;

	if (!about)
		return;
	if (message_bytes(&about->cookie, cookie, sizeof(cookie)) < 0)
		abort();
	fd = make_end(about);
	if (bridge_add_float(bridge, about, fd, 1, NULL) == 0) {
		bridge->streams->channel = channel;
		(void)!port_watch(bridge->streams);
	}
	message_free(about);
}

/* The records of kind 0 come first: the streams exist before the channel does. */
static void add_floats(struct bridge *bridge, struct channel *channel, const uint8_t *data, size_t size)
{
	struct fuzz_record record;

	for (int n = 0; n < FLOATS_MAX && fuzz_script_next(&data, &size, KINDS, &record);)
		if (record.kind == 0) {
			add_float(bridge, channel, record.data, record.len);
			n++;
		}
}

static void talk(const uint8_t *data, size_t size, int sock)
{
	struct bridge *bridge = bridge_new(NULL);
	struct channel *channel;

	if (!bridge)
		abort();
	bridge_set_names(bridge, names);
	bridge->epoll = epoll_create1(EPOLL_CLOEXEC);
	channel = channel_add(bridge, sock);
	if (!channel)
		abort();
	for (int kind = PBEAM__BRIDGE_STREAM__KIND__STREAM; kind <= PBEAM__BRIDGE_STREAM__KIND__TERMINAL;
	     kind++)
		add_anchor(bridge, channel, (enum _Pbeam__BridgeStream__Kind)kind);
	add_floats(bridge, channel, data, size);
	channel_input(channel);
	for (struct bridge_stream *stream = bridge->streams; stream; stream = stream->next) {
		Pbeam__BridgeStream *told = bridge_stream_describe(stream, true);

		bridge_stream_pump(stream);
		for (size_t i = 0; told && i < told->n_unacked; i++)
			message_free(bridge_stream_record(&told->unacked[i]));
		message_free(told);
	}
	bridge_free(bridge);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t len;
	uint8_t *bytes =
		size <= SIZE_MAX_TAKEN ? fuzz_script_bytes(kinds, KINDS, NULL, data, size, &len) : NULL;
	int ends[2];

	if (bytes && fuzz_place_socket(bytes, len, ends)) {
		talk(data, size, ends[1]);
		close(ends[0]);
	}
	free(bytes);
	fuzz_place_clean();
	return 0;
}
