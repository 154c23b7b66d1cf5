/*
 * The registry by hand, for tests:
 *   registry get KEY | list PREFIX | lease KEY COUNT | set KEY VALUE EXPECTED [KEY VALUE EXPECTED]... |
 * remove KEY EXPECTED Prints "VERSION VALUE", "KEY VERSION VALUE" lines, the first number, or the new
 * version. Exit status 1 with a sentence for a refusal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel/channel.h"
#include "proto/message.h"

enum { TIMEOUT_MS = 10000, SETS_MAX = 64 };

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
	if (registry_call(&request, TIMEOUT_MS, &reply, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		message_free(reply);
		return 1;
	}
	print(argv[1], reply);
	message_free(reply);
	return 0;
}
