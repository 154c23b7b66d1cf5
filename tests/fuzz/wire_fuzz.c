/*
 * libFuzzer: messages that a host of the cluster with the key may send, as frames on a socket, parsed as
 * pbeamd does: greetings, hosts, requests, the registry. The input is a script
 * (tests/fuzz/help/fuzz_mutate.h).
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel/channel.h"
#include "namespace/registry.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/services/checkpoints.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

static const struct fuzz_kind kinds[] = {
	{PBEAM__CHANNEL_MESSAGE__CHANNEL_HELLO, &pbeam__channel_hello__descriptor},
	{PBEAM__RPC__RPC_FAILED, &pbeam__failed__descriptor},
	{PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY, &pbeam__registry_request__descriptor},
	{PBEAM__CHANNEL_MESSAGE__PEER_CHANGES, &pbeam__registry_changes__descriptor},
	{PBEAM__CHANNEL_MESSAGE__PEER_REPLY, &pbeam__peer_reply__descriptor},
	{PBEAM__CHANNEL_MESSAGE__PEER_HOST, &pbeam__host_info__descriptor},
	{PBEAM__CHANNEL_MESSAGE__PEER_REQUEST, &pbeam__peer_request__descriptor},
	{PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY_REPLY, &pbeam__registry_reply__descriptor},
	{0, NULL}, /* no frame at all */
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	return fuzz_mutate_script(kinds, KINDS, data, size, max, seed);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	fuzz_place_open(*argc, *argv);
	return 0;
}

static void ignore_reply(void *arg, const Pbeam__RegistryReply *reply)
{
}

static void ignore_lease(void *engine, const char *key, uint64_t count, const char *host,
			 registry_done_fn done, void *arg)
{
	if (!count || strlen(key) >= REGISTRY_KEY_MAX)
		abort();
}

static void ignore_set(void *engine, Pbeam__RegistryRequest *const *sets, size_t n, const char *host,
		       registry_done_fn done, void *arg)
{
	for (size_t i = 0; i < n; i++)
		if (sets[i]->value.len > REGISTRY_VALUE_MAX || !sets[i]->key[0])
			abort();
}

static void ignore_key(void *engine, const char *key, registry_done_fn done, void *arg)
{
	if (strlen(key) >= REGISTRY_KEY_MAX)
		abort();
}

static void ignore_entry(void *arg, const Pbeam__RegistryEntry *entry)
{
	if (registry_check_key(entry->key, false, NULL) < 0 || entry->value.len > REGISTRY_VALUE_MAX)
		abort();
}

static void take_greeting(const struct frame *frame)
{
	Pbeam__ChannelHello *hello;

	if (channel_check_hello(frame, "own", &hello, NULL) == 0) {
		if (!channel_host_ok(hello->host))
			abort();
		message_free(hello);
	}
}

static void take_request(const struct frame *frame)
{
	static const struct registry_operations operations = {ignore_lease, ignore_set, ignore_key,
							      ignore_key,   NULL,	NULL};
	const struct registry registry = {&operations, NULL};
	Pbeam__RegistryRequest *request =
		(Pbeam__RegistryRequest *)frame_unpack(frame, &pbeam__registry_request__descriptor, NULL);

	if (request)
		registry_carry_out(&registry, request, "host", ignore_reply, NULL);
	message_free(request);
}

static void take_changes(const struct frame *frame, struct registry_copy *copy)
{
	Pbeam__RegistryChanges *changes =
		(Pbeam__RegistryChanges *)frame_unpack(frame, &pbeam__registry_changes__descriptor, NULL);

	if (changes && registry_copy_apply(copy, changes, ignore_entry, NULL) == 0)
		message_free(registry_copy_whole(copy));
	message_free(changes);
}

/* As the reply to a DAEMON_LOG. */
static void take_reply(const struct frame *frame)
{
	Pbeam__PeerReply *reply =
		(Pbeam__PeerReply *)frame_unpack(frame, &pbeam__peer_reply__descriptor, NULL);
	Pbeam__CheckpointLog *all = message_new(&pbeam__checkpoint_log__descriptor);

	for (int i = 0; reply && all && i < 2; i++)
		if (checkpoints_take(all, i ? "other" : "host", reply->type, reply->body.data,
				     reply->body.len) < 0)
			abort();
	if (all && checkpoints_order(all) < 0)
		abort();
	message_free(all);
	message_free(reply);
}

static void take_other(const struct frame *frame)
{
	static const ProtobufCMessageDescriptor *const bodies[] = {
		&pbeam__host_info__descriptor,
		&pbeam__peer_request__descriptor,
		&pbeam__peer_reply__descriptor,
		&pbeam__registry_reply__descriptor,
		&pbeam__place__descriptor,
		&pbeam__address_place__descriptor,
		&pbeam__migration_record__descriptor,
		&pbeam__migrate_begin__descriptor,
		&pbeam__copy_request__descriptor,
		&pbeam__copy_reply__descriptor,
	};

	message_free(frame_unpack(frame, bodies[frame->type % (sizeof(bodies) / sizeof(bodies[0]))], NULL));
}

static void take_all(struct registry_copy *copy, int sock)
{
	struct frame frame;

	while (frame_recv(sock, &frame, NULL) == 1) {
		if (frame.type == PBEAM__CHANNEL_MESSAGE__CHANNEL_HELLO ||
		    frame.type == PBEAM__RPC__RPC_FAILED)
			take_greeting(&frame);
		else if (frame.type == PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY)
			take_request(&frame);
		else if (frame.type == PBEAM__CHANNEL_MESSAGE__PEER_CHANGES)
			take_changes(&frame, copy);
		else if (frame.type == PBEAM__CHANNEL_MESSAGE__PEER_REPLY)
			take_reply(&frame);
		else
			take_other(&frame);
		frame_free(&frame);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct registry_copy *copy = registry_copy_new();
	size_t len;
	uint8_t *bytes = size <= 65536 ? fuzz_script_bytes(kinds, KINDS, NULL, data, size, &len) : NULL;
	int ends[2];

	if (copy && bytes && fuzz_place_socket(bytes, len, ends)) {
		take_all(copy, ends[1]);
		close(ends[0]);
		close(ends[1]);
	}
	registry_copy_free(copy);
	free(bytes);
	return 0;
}
