/*
 * The commit point of a migration: an entry of the registry that changes only from PREPARED to COMMITTED or
 * from PREPARED to ABORTED, by compare-and-set. A request whose reply was lost is sent again: the entry then
 * shows whether the first request took effect.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "namespace/address_entry.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "scip/capture/group.h"
#include "scip/ends/migration_record.h"
#include "scip/object/inet.h"

enum { AGAIN_MS = 100, AGAIN_MOST_MS = 1600 };

static const char program[] = "scip " PBEAM_VERSION;

void record_init(struct record *record, const char *uuid)
{
	*record = (struct record){.sock = -1};
	snprintf(record->key, sizeof(record->key), "migration/%s", uuid);
}

void record_close(struct record *record)
{
	if (record->sock >= 0)
		close(record->sock);
	record->sock = -1;
}

/* Sends one request. Returns 0 if there is a reply, whose result is (*reply)->code; the caller frees it with
 * message_free(). */
static int record_call(struct record *record, const Pbeam__RegistryRequest *request,
		       Pbeam__RegistryReply **reply, struct err *err)
{
	int r = 0;

	*reply = NULL;
	if (record->sock < 0)
		r = record->sock = ask_open(program, err);
	if (r >= 0)
		r = ask_message(record->sock, PBEAM__DAEMON_REQUEST__DAEMON_REGISTRY, &request->base, NULL,
				&pbeam__registry_reply__descriptor, reply, err);
	if (r < 0)
		record_close(record);
	return r < 0 ? r : 0;
}

/* True for results that prove that nothing changed: another version, a malformed request, a request that was
 * never sent. After any other result, or none, the change may have been made or not. */
static bool is_refusal(int code)
{
	return code == -EEXIST || code == -EINVAL || code == -E2BIG || code == -EHOSTUNREACH;
}

/* Reads the entry; record->version is 0 if there is none. -errno if the registry is unreachable. */
static int record_read(struct record *record, struct err *err)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__MigrationRecord *content = NULL;
	Pbeam__RegistryReply *reply = NULL;
	int r;

	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__GET;
	request.key = record->key;
	r = record_call(record, &request, &reply, err);
	if (r == 0 && reply->code < 0 && reply->code != -ENOENT)
		r = err_set(err, reply->code, "%s", reply->text);
	if (r == 0)
		record->version = reply->code == -ENOENT ? 0 : reply->version;
	if (r == 0 && record->version) {
		content = pbeam__migration_record__unpack(NULL, reply->value.len, reply->value.data);
		if (content)
			record->state = content->state;
		else
			r = err_set(err, -EPROTO, "the registry's entry %s is malformed", record->key);
		message_free(content);
	}
	message_free(reply);
	return r;
}

int record_prepare(struct record *record, const char *from, const char *to, struct err *err)
{
	Pbeam__MigrationRecord content = PBEAM__MIGRATION_RECORD__INIT;
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__RegistryReply *reply = NULL;
	int r;

	snprintf(record->from, sizeof(record->from), "%s", from);
	content.pid = getpid();
	content.from = (char *)(uintptr_t)from;
	content.to = (char *)(uintptr_t)to;
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.key = record->key;
	r = message_packed(&request.value, &content.base);
	if (r == 0)
		r = record_call(record, &request, &reply, err);
	if (r == 0 && reply->code < 0)
		r = err_set(err, reply->code, "%s", reply->text);
	if (r == 0)
		record->version = reply->version;
	free(request.value.data);
	message_free(reply);
	return r;
}

/* Reads an entry's version, 0 if there is none, and a process's place, which may be NULL; the caller frees it
 * with message_free(). */
static int record_look_up(struct record *record, const char *key, uint64_t *version, Pbeam__Place **place,
			  struct err *err)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__RegistryReply *reply = NULL;
	int r;

	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__GET;
	request.key = (char *)(uintptr_t)key;
	r = record_call(record, &request, &reply, err);
	*version = r == 0 && reply->code >= 0 ? reply->version : 0;
	if (place)
		*place = *version ? pbeam__place__unpack(NULL, reply->value.len, reply->value.data) : NULL;
	if (r == 0 && reply->code < 0 && reply->code != -ENOENT)
		r = err_set(err, reply->code, "%s", reply->text);
	message_free(reply);
	return r;
}

static int add_set(Pbeam__RegistryRequest *whole, const char *key, const uint8_t *value, size_t len,
		   uint64_t expected)
{
	Pbeam__RegistryRequest *one = message_add(whole, all, pbeam__registry_request__descriptor);

	if (!one)
		return -ENOMEM;
	one->operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	one->expected = expected;
	if (message_string(&one->key, key) < 0)
		return -ENOMEM;
	return message_bytes(&one->value, value, len);
}

/* True for a process on the host of its number that has no entry. */
static bool needs_no_place(struct names *names, int32_t vpid, uint64_t version, const char *host)
{
	char block[NAME_TEXT_MAX];

	return names && !version && names_block_find(names, (struct vpid){vpid}, block) == 0 &&
	       !strcmp(block, host);
}

/* Computes the new place of process `i`; `now` (may be NULL) is its place in the registry. A stub on a third
 * host keeps the registry's value, as its parent may have moved; on the target host there is no stub. */
static Pbeam__Place record_make_place(const struct record_move *move, size_t i, const Pbeam__Place *now)
{
	Pbeam__Place place = *move->place;

	if (!move->stubs && !place.stub_host[0] && now && !strcmp(now->host, place.host))
		place.stub_host = now->stub_host; /* it has not moved */
	if (!move->stubs)
		return place;
	if (move->stubs[i] && now) {
		place = *now;
		place.stub_host = move->place->host;
	} else if (i > 0) {
		place.stub_host = (char *)(uintptr_t) "";
	} else if (!place.stub_host[0] && now) {
		place.stub_host = now->stub_host;
	}
	if (!strcmp(place.stub_host, place.host))
		place.stub_host = (char *)(uintptr_t) "";
	return place;
}

static int add_place(struct record *record, Pbeam__RegistryRequest *whole, struct names *names,
		     const struct record_move *move, size_t i, struct err *err)
{
	Pbeam__Place *now = NULL, place;
	uint64_t version = 0;
	uint8_t *packed;
	char key[32];
	size_t len;
	int r;

	snprintf(key, sizeof(key), "vpid/%d", move->vpids[i]);
	r = record_look_up(record, key, &version, &now, err);
	place = record_make_place(move, i, now);
	len = pbeam__place__get_packed_size(&place);
	packed = malloc(len ? len : 1);
	if (packed)
		pbeam__place__pack(&place, packed);
	if (r == 0 && (place.stub_host[0] || !needs_no_place(names, move->vpids[i], version, place.host)))
		r = packed ? add_set(whole, key, packed, len, version) : -ENOMEM;
	free(packed);
	message_free(now);
	return r;
}

/* An address at its own name needs no entry. */
static int record_add_address(struct record *record, Pbeam__RegistryRequest *whole,
			      const struct address_entry *entry, struct err *err)
{
	bool home = !memcmp(&entry->address.name, &entry->address.real, address_size(&entry->address.name));
	ProtobufCBinaryData value = {0};
	char key[ADDRESS_KEY_MAX];
	uint64_t version = 0;
	int r = address_entry_key(&entry->address, key);

	if (r == 0)
		r = record_look_up(record, key, &version, NULL, err);
	if (r < 0 || (home && !version))
		return r;
	r = address_entry_pack(entry, &value);
	if (r == 0)
		r = add_set(whole, key, value.data, value.len, version);
	if (r == 0)
		whole->all[whole->n_all - 1]->remove = home;
	free(value.data);
	return r;
}

/* Sets all entries in one transaction. Returns 0 if set, 1 if the outcome is unknown (`err` has the reason),
 * -errno if refused. */
static int set_all(struct record *record, Pbeam__RegistryRequest *whole, struct err *err)
{
	Pbeam__RegistryReply *reply = NULL;
	int r = record_call(record, whole, &reply, err);

	if (r == 0 && reply->code < 0)
		r = err_set(err, reply->code, "%s", reply->text);
	if (r < 0 && !(reply && is_refusal(r)))
		r = 1;
	message_free(reply);
	return r;
}

static int add_host(Pbeam__MigrationRecord *content, const char *host)
{
	for (size_t i = 0; i < content->n_hosts; i++)
		if (!strcmp(content->hosts[i], host))
			return 0;
	return message_append_string(&content->hosts, &content->n_hosts, host);
}

/* Packs the entry as COMMITTED. */
static int record_describe_moves(const struct record *record, const struct record_move *moves, size_t n,
				 ProtobufCBinaryData *value)
{
	Pbeam__MigrationRecord *content = message_new(&pbeam__migration_record__descriptor);
	int r = content ? add_host(content, record->from) : -ENOMEM;

	for (size_t i = 0; i < n && r == 0; i++)
		r = add_host(content, moves[i].place->host);
	for (size_t i = 0; i < record->nothers && r == 0; i++)
		r = add_host(content, record->others[i]);
	if (r == 0)
		r = message_string(&content->from, record->from);
	if (r == 0 && n == 1)
		r = message_string(&content->to, moves->place->host);
	if (r == 0) {
		content->state = PBEAM__MIGRATION_RECORD__STATE__COMMITTED;
		r = message_packed(value, &content->base);
	}
	message_free(content);
	return r;
}

int record_commit_all(struct record *record, struct names *names, const struct record_move *moves, size_t n,
		      struct err *err)
{
	Pbeam__RegistryRequest *whole = message_new(&pbeam__registry_request__descriptor);
	ProtobufCBinaryData value = {0};
	int r = whole ? record_describe_moves(record, moves, n, &value) : -ENOMEM;

	if (r == 0) {
		whole->operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		r = add_set(whole, record->key, value.data, value.len, record->version);
	}
	for (size_t i = 0; i < n && r == 0; i++)
		for (size_t k = 0; k < moves[i].n && r == 0; k++)
			r = add_place(record, whole, names, &moves[i], k, err);
	for (size_t i = 0; i < n && r == 0; i++)
		for (size_t k = 0; k < moves[i].naddresses && r == 0; k++)
			if (!moves[i].addresses[k].unlisted)
				r = record_add_address(record, whole, &moves[i].addresses[k], err);
	if (r == 0)
		r = set_all(record, whole, err);
	free(value.data);
	message_free(whole);
	if (r == 1) {
		log_warn("%s: it is unknown whether the migration is committed: %s", record->key, err->text);
		err_clear(err);
		r = record_abort(record) ? 0
					 : err_set(err, -ECANCELED,
						   "the central host was lost in the moment of the change");
	}
	return r;
}

int record_commit(struct record *record, const struct record_move *move, struct err *err)
{
	return record_commit_all(record, NULL, move, 1, err);
}

/* Changes PREPARED to ABORTED, unless the entry has changed since it was read. */
static void try_abort(struct record *record, struct err *err)
{
	Pbeam__MigrationRecord content = PBEAM__MIGRATION_RECORD__INIT;
	Pbeam__RegistryRequest *whole = message_new(&pbeam__registry_request__descriptor);
	ProtobufCBinaryData value = {0};

	content.state = PBEAM__MIGRATION_RECORD__STATE__ABORTED;
	if (whole && message_packed(&value, &content.base) == 0) {
		whole->operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		if (add_set(whole, record->key, value.data, value.len, record->version) == 0 &&
		    set_all(record, whole, err) == 0)
			record->state = PBEAM__MIGRATION_RECORD__STATE__ABORTED;
	}
	message_free(whole);
	free(value.data);
}

/* Returns 1 if committed, 0 if aborted, -errno if unknown. */
static int try_decide(struct record *record, struct err *err)
{
	int r = record_read(record, err);

	if (r < 0)
		return r;
	if (record->version && record->state == PBEAM__MIGRATION_RECORD__STATE__COMMITTED)
		return 1;
	if (record->version && record->state == PBEAM__MIGRATION_RECORD__STATE__PREPARED)
		try_abort(record, err);
	return !record->version || record->state == PBEAM__MIGRATION_RECORD__STATE__ABORTED ? 0 : -EAGAIN;
}

int record_abort(struct record *record)
{
	struct err said = ERR_INIT;
	long ms = AGAIN_MS;
	bool waits = false;

	for (;;) {
		struct err err = ERR_INIT;
		int r = try_decide(record, &err);

		if (r >= 0 && waits && record->undecided)
			record->undecided(record->undecided_arg, false);
		if (r >= 0)
			return r;
		if (!waits && record->undecided)
			record->undecided(record->undecided_arg, true);
		waits = true;
		if (strcmp(said.text, err.text) != 0)
			log_warn("%s: %s; asked again until there is a reply", record->key, err.text);
		said = err;
		nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
		ms = ms < AGAIN_MOST_MS ? 2 * ms : ms;
	}
}

void record_remove(struct record *record)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__RegistryReply *reply = NULL;
	struct err err = ERR_INIT;

	if (record_read(record, &err) < 0 || !record->version)
		return;
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.key = record->key;
	request.expected = record->version;
	request.remove = true;
	if (record_call(record, &request, &reply, &err) < 0)
		log_info("%s stays in the registry: %s", record->key, err.text);
	message_free(reply);
}

int record_place(int32_t vpid, char host[64], char stub_host[64], char home[64], struct err *err)
{
	struct record record = {.sock = -1};
	Pbeam__Place *place = NULL;
	uint64_t version;
	int r;

	host[0] = stub_host[0] = 0;
	if (home)
		home[0] = 0;
	snprintf(record.key, sizeof(record.key), "vpid/%d", vpid);
	r = record_look_up(&record, record.key, &version, &place, err);
	if (r == 0 && place) {
		snprintf(host, 64, "%s", place->host);
		snprintf(stub_host, 64, "%s", place->stub_host);
		if (home)
			snprintf(home, 64, "%s", place->home);
	}
	message_free(place);
	record_close(&record);
	return r;
}

uint64_t record_here(int32_t vpid)
{
	struct record record = {.sock = -1};
	Pbeam__Place *place = NULL;
	uint64_t version = 0;
	char own[64];
	bool here;

	snprintf(record.key, sizeof(record.key), "vpid/%d", vpid);
	here = record_look_up(&record, record.key, &version, &place, NULL) == 0 && place &&
	       record_own_host(own, NULL) == 0 && strcmp(place->host, own) == 0;
	message_free(place);
	record_close(&record);
	return here ? version : 0;
}

void record_forget_place(int32_t vpid, uint64_t version)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	struct record record = {.sock = -1};
	Pbeam__RegistryReply *reply = NULL;
	struct err err = ERR_INIT;

	snprintf(record.key, sizeof(record.key), "vpid/%d", vpid);
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.key = record.key;
	request.expected = version;
	request.remove = true;
	if (record_call(&record, &request, &reply, &err) < 0)
		log_info("%s stays in the registry: %s", record.key, err.text);
	message_free(reply);
	record_close(&record);
}

int record_own_host(char host[64], struct err *err)
{
	Pbeam__HostList *list = NULL;
	int r = ask_hosts(program, &list, err);

	if (r < 0)
		return r;
	if (list->n_hosts && list->hosts[0]->name[0])
		snprintf(host, 64, "%s", list->hosts[0]->name);
	else
		r = err_set(err, -ENOTCONN, "this host is in no cluster");
	message_free(list);
	return r;
}

bool record_own_address(struct inet_address *address)
{
	Pbeam__HostList *list = NULL;
	struct err err = ERR_INIT;
	bool known = ask_hosts(program, &list, &err) == 0 && list->n_hosts &&
		     inet_address_from_text(list->hosts[0]->address, address);

	message_free(list);
	return known;
}

void record_mark_undecided(const struct group *group, bool undecided)
{
	for (size_t i = 0; i < group->n; i++)
		names_process_mark(group->names, group->v[i]->vpid, undecided);
}
