/*
 * The registry by hand, for tests:
 *   registry get KEY | list PREFIX | lease KEY COUNT | set KEY VALUE EXPECTED [KEY VALUE EXPECTED]... |
 * remove KEY EXPECTED Prints "VERSION VALUE", "KEY VERSION VALUE" lines, the first number, or the new
 * version. Exit status 1 with a sentence for a refusal.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "channel/channel.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { TIMEOUT_MS = 10000, SETS_MAX = 64, RETRY_NS = 100000000, PATIENCE_LEAST_NS = 1000000 };

static int call_registry_once(const Pbeam__RegistryRequest *request, uint64_t left_ns,
			      Pbeam__RegistryReply **reply, struct err *err)
{
	auto_close int sock = ask_open("registry " PBEAM_VERSION, err);
	int r;

	if (sock < 0)
		return sock;
	rpc_set_timeout(sock, (unsigned)(left_ns / 1000000u) + 1);
	r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_REGISTRY, &request->base, NULL,
			&pbeam__registry_reply__descriptor, reply, err);
	if (r == -EPIPE)
		return err_set(err, r, "pbeamd ended before the registry answered");
	if (r < 0)
		return r;
	return (*reply)->code < 0 ? err_set(err, (*reply)->code, "%s", (*reply)->text) : 0;
}

/* Tries again while the central host cannot be reached, until `timeout_ms` has passed. */
static int call_registry(const Pbeam__RegistryRequest *request, int timeout_ms, Pbeam__RegistryReply **reply,
			 struct err *err)
{
	const uint64_t until = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * 1000000u;
	const struct timespec pause = {0, RETRY_NS};

	for (;;) {
		uint64_t now = io_now_ns(CLOCK_MONOTONIC);
		int r;

		*reply = NULL;
		err_clear(err);
		r = call_registry_once(request,
				       now + PATIENCE_LEAST_NS < until ? until - now : PATIENCE_LEAST_NS,
				       reply, err);
		if (r != -EHOSTUNREACH || now + RETRY_NS >= until)
			return r;
		message_free(*reply);
		nanosleep(&pause, NULL);
	}
}

static void print(const char *what, const Pbeam__RegistryReply *reply)
{
	if (!strcmp(what, "get"))
		printf("%llu %.*s\n", (unsigned long long)reply->version, (int)reply->value.len,
		       (const char *)reply->value.data);
	else if (!strcmp(what, "lease"))
		printf("%llu\n", (unsigned long long)reply->first);
	else if (strcmp(what, "list") != 0)
		printf("%llu\n", (unsigned long long)reply->version);
	for (size_t i = 0; i < reply->n_entries && !strcmp(what, "list"); i++)
		printf("%s %llu %.*s\n", reply->entries[i]->key,
		       (unsigned long long)reply->entries[i]->version, (int)reply->entries[i]->value.len,
		       (const char *)reply->entries[i]->value.data);
}

static void fill_set(Pbeam__RegistryRequest *set, char **words)
{
	pbeam__registry_request__init(set);
	set->key = words[0];
	set->value.data = (uint8_t *)words[1];
	set->value.len = strlen(words[1]);
	set->expected = strtoull(words[2], NULL, 10);
}

int main(int argc, char **argv)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT, sets[SETS_MAX], *all[SETS_MAX];
	Pbeam__RegistryReply *reply;
	struct err err = ERR_INIT;

	if (argc < 3)
		return 2;
	request.key = argv[2];
	if (!strcmp(argv[1], "get")) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__GET;
	} else if (!strcmp(argv[1], "list")) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__LIST;
	} else if (!strcmp(argv[1], "lease") && argc == 4) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__LEASE;
		request.count = strtoull(argv[3], NULL, 10);
	} else if (!strcmp(argv[1], "remove") && argc == 4) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		request.remove = true;
		request.expected = strtoull(argv[3], NULL, 10);
	} else if (!strcmp(argv[1], "set") && argc >= 5 && argc <= 2 + 3 * SETS_MAX) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		request.all = all;
		for (int i = 2; i + 2 < argc; i += 3) {
			fill_set(&sets[request.n_all], argv + i);
			all[request.n_all] = &sets[request.n_all];
			request.n_all++;
		}
	} else {
		return 2;
	}
	if (call_registry(&request, TIMEOUT_MS, &reply, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		message_free(reply);
		return 1;
	}
	print(argv[1], reply);
	message_free(reply);
	return 0;
}
