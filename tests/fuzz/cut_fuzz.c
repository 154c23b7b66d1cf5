/*
 * libFuzzer: messages between the hosts of a consistent cut, and its manifest. The first byte selects: a
 * leader's requests, parsed as `scip part` does; the replies of two parts, whose connections the leader
 * pairs; a manifest, from which it makes the connections of the parts again.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/cut/cut.h"
#include "scip/cut/pair.h"
#include "scip/cut/return.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

enum { SIZE_MAX_TAKEN = 65536, PARTS_MAX = 64 };

/* A request of a leader, the reply of a part, the bytes of an image. */
static const struct fuzz_kind kinds[] = {
	{PBEAM__CHANNEL_MESSAGE__CUT_REQUEST, &pbeam__cut_request__descriptor},
	{PBEAM__RPC__RPC_REPLY, &pbeam__cut_reply__descriptor},
	{0, NULL},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	if (size < 1 || seed % 32 == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (data[0] % 3 == 2)
		return 1 + fuzz_mutate_message(&pbeam__cut__descriptor, data + 1, size - 1, max - 1, seed);
	return 1 + fuzz_mutate_script(kinds, KINDS, data + 1, size - 1, max - 1, seed);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	fuzz_place_open(*argc, *argv);
	return 0;
}

/* The requests that manage images; the coordinator of a part, which reads the same messages, handles the
 * others. */
static void serve(int channel)
{
	Pbeam__CutRequest *request;

	while ((request = cut_take(channel, NULL)) != NULL) {
		struct err err = ERR_INIT;
		int r = cut_serve_store(channel, request, &err);

		if (r >= 0 && cut_check_name(request->name, NULL) < 0)
			abort();
		message_free(request);
		if (r < 0)
			break;
	}
}

static void pair(int channel)
{
	struct lead_part parts[2] = {{.index = 1, .host = "a"}, {.index = 2, .host = "b"}};
	struct lead lead = {.parts = parts, .nparts = 2};
	bool whole = true;

	for (int i = 0; i < 2; i++) {
		parts[i].reply = cut_receive(channel, NULL);
		whole = whole && parts[i].reply;
	}
	if (whole && pair_all(&lead, NULL) == 0)
		for (int i = 0; i < 2; i++)
			for (size_t k = 0; k < parts[i].nids; k++)
				if (parts[i].ids[k] > parts[0].nids + parts[1].nids)
					abort();
	for (int i = 0; i < 2; i++) {
		message_free(parts[i].reply);
		free(parts[i].ids);
	}
}

static void connect_parts(const uint8_t *data, size_t size)
{
	Pbeam__Cut *cut = pbeam__cut__unpack(NULL, size, data);
	Pbeam__HostInfo host = PBEAM__HOST_INFO__INIT, *hosts[1] = {&host};
	Pbeam__HostList list = PBEAM__HOST_LIST__INIT;
	Pbeam__MigrateReady ready = PBEAM__MIGRATE_READY__INIT;
	struct lead lead = {.hosts = &list};
	struct returning *v = cut ? calloc(cut->n_parts + 1, sizeof(*v)) : NULL;
	int sink = open("/dev/null", O_WRONLY | O_CLOEXEC);

	host.name = (char *)(uintptr_t) "a";
	host.address = (char *)(uintptr_t) "10.0.0.1";
	list.n_hosts = 1;
	list.hosts = hosts;
	for (size_t i = 0; v && i < cut->n_parts; i++)
		v[i] = (struct returning){
			.saved = cut->parts[i], .host = "a", .channel = sink, .ready = &ready};
	if (v && cut->n_parts <= PARTS_MAX)
		(void)!return_connect(&lead, v, cut->n_parts, NULL);
	close(sink);
	free(v);
	message_free(cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes;
	size_t len;
	int ends[2];

	if (size < 1 || size > SIZE_MAX_TAKEN)
		return 0;
	if (data[0] % 3 == 2) {
		connect_parts(data + 1, size - 1);
		return 0;
	}
	bytes = fuzz_script_bytes(kinds, KINDS, NULL, data + 1, size - 1, &len);
	if (bytes && fuzz_place_socket(bytes, len, ends)) {
		if (data[0] % 3)
			pair(ends[1]);
		else
			serve(ends[1]);
		close(ends[0]);
		close(ends[1]);
	}
	free(bytes);
	return 0;
}
