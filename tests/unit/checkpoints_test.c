/* The checkpoints of several hosts in one list, for all kinds of replies. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pbeamd/services/checkpoints.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "tests/unit/unit.h"

static Pbeam__CheckpointLog *new_list(const char *here)
{
	Pbeam__CheckpointLog *list = message_new(&pbeam__checkpoint_log__descriptor);

	assert_non_null(list);
	assert_int_equal(message_string(&list->store, "job"), 0);
	assert_int_equal(message_string(&list->here, here), 0);
	return list;
}

static Pbeam__LogEntry *add(Pbeam__CheckpointLog *list, uint32_t number, uint64_t created_ns)
{
	Pbeam__LogEntry *entry = message_add(list, entries, pbeam__log_entry__descriptor);
	Pbeam__LogCopy *copy = entry ? message_add(entry, copies, pbeam__log_copy__descriptor) : NULL;

	assert_non_null(copy);
	assert_int_equal(message_string(&copy->host, "liar"), 0);
	assert_int_equal(message_string(&copy->path, "/image"), 0);
	entry->number = number;
	entry->created_ns = created_ns;
	return entry;
}

/* Adds a host's reply, and frees it. */
static void take(Pbeam__CheckpointLog *all, const char *host, Pbeam__CheckpointLog *answer)
{
	size_t len = pbeam__checkpoint_log__get_packed_size(answer);
	uint8_t *body = malloc(len + 1);

	assert_non_null(body);
	pbeam__checkpoint_log__pack(answer, body);
	assert_int_equal(checkpoints_take(all, host, PBEAM__RPC__RPC_REPLY, body, len), 0);
	free(body);
	message_free(answer);
}

static void test_merged(void **state)
{
	Pbeam__CheckpointLog *all = new_list("b"), *one = new_list("a"), *other = new_list("b");

	add(one, 1, 10);
	add(one, 2, 20);
	add(one, 3, 30);
	add(other, 1, 10);
	add(other, 2, 21);
	other->live = true;
	assert_int_equal(message_string(&other->job, "uuid"), 0);
	take(all, "a", one);
	take(all, "b", other);
	assert_int_equal(checkpoints_order(all), 0);
	assert_int_equal(all->n_entries, 4);
	assert_int_equal(all->entries[0]->n_copies, 2);
	assert_string_equal(all->entries[0]->copies[0]->host, "b");
	assert_string_equal(all->entries[0]->copies[1]->host, "a");
	assert_string_equal(all->entries[1]->copies[0]->host, "a");
	assert_string_equal(all->entries[2]->copies[0]->host, "b");
	assert_int_equal(all->entries[3]->number, 3);
	assert_true(all->live);
	assert_string_equal(all->job, "uuid");
	assert_int_equal(all->n_notes, 0);
	message_free(all);
}

/* Which of several checkpoints a number means. */
static void test_named(void **state)
{
	static const struct {
		bool live, inner, cut;
		const char *at, *run, *names[3];
	} cases[] = {
		{.names = {"2@a", "2@b", "2"}},
		{.live = true, .at = "a", .run = "x", .names = {"2", "2@b", "2@c"}},
		{.live = true, .at = "a", .run = "b", .names = {"2@a", "2", "2@c"}},
		{.live = true, .at = "a", .run = "c", .cut = true, .names = {"2@a", "2@b", "2"}},
		{.live = true, .at = "c", .run = "x", .cut = true, .names = {"2@a", "2", ""}},
		{.live = true, .at = "b", .run = "x", .inner = true, .names = {"", "2", ""}},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		static const char *const hosts[] = {"a", "b", "c"};
		Pbeam__CheckpointLog *all = new_list("a");

		for (int k = 0; k < 3; k++) {
			Pbeam__CheckpointLog *part = new_list(hosts[k]);
			Pbeam__LogEntry *entry = add(part, 2, (uint64_t)k);

			assert_int_equal(message_string(&entry->job, hosts[k]), 0);
			entry->cut = cases[i].cut && k == 2;
			part->live = cases[i].live && !strcmp(cases[i].at, hosts[k]);
			part->inner = cases[i].inner;
			assert_int_equal(message_string(&part->at, part->live ? "liar" : ""), 0);
			assert_int_equal(message_string(&part->job, part->live ? cases[i].run : ""), 0);
			take(all, hosts[k], part);
		}
		assert_int_equal(checkpoints_order(all), 0);
		assert_int_equal(all->n_entries, 3);
		for (int k = 0; k < 3; k++)
			assert_string_equal(all->entries[k]->to, cases[i].names[k]);
		message_free(all);
	}
}

static void test_malformed(void **state)
{
	static const uint8_t noise[] = {0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2, 3};
	Pbeam__CheckpointLog *all = new_list("a"), *answer;
	char *text = malloc(10000);
	Pbeam__LogEntry *entry;

	assert_non_null(text);
	memset(text, 'x', 9999);
	text[9999] = 0;
	assert_int_equal(checkpoints_take(all, "b", PBEAM__RPC__RPC_REPLY, noise, sizeof(noise)), 0);
	for (int what = 0; what < 7; what++) {
		answer = new_list("c");
		add(answer, 1, 1);
		entry = add(answer, what == 0 ? 0 : 2, 2);
		if (what == 1) {
			message_free(entry->copies[0]);
			entry->n_copies = 0;
		}
		if (what == 2)
			assert_int_equal(message_string(&entry->copies[0]->path, text), 0);
		if (what == 3)
			assert_int_equal(message_string(&entry->job, text), 0);
		if (what == 4)
			assert_int_equal(message_string(&entry->problem, text), 0);
		if (what == 5)
			assert_int_equal(message_string(&answer->job, text), 0);
		if (what == 6)
			entry->number = 1;
		take(all, "c", answer);
		assert_int_equal(all->n_notes, 2 + what);
		if (what == 1)
			assert_non_null(strstr(all->notes[2], "host c gives a malformed answer"));
	}
	assert_int_equal(all->n_entries, 0);
	free(text);
	message_free(all);
}

static void test_without_a_list(void **state)
{
	Pbeam__CheckpointLog *all = new_list("a"), *answer = new_list("b");
	Pbeam__Failed failed = PBEAM__FAILED__INIT;
	uint8_t body[64];
	size_t len;

	add(answer, 1, 1);
	assert_int_equal(message_string(&answer->store, "another"), 0);
	take(all, "b", answer);
	failed.code = -ESRCH;
	failed.text = (char *)(uintptr_t) "none";
	len = pbeam__failed__pack(&failed, body);
	assert_int_equal(checkpoints_take(all, "b", PBEAM__RPC__RPC_FAILED, body, len), 0);
	assert_int_equal(all->n_notes, 0);
	failed.code = -EACCES;
	len = pbeam__failed__pack(&failed, body);
	assert_int_equal(checkpoints_take(all, "b", PBEAM__RPC__RPC_FAILED, body, len), 0);
	assert_int_equal(checkpoints_take(all, "c", PBEAM__DAEMON_REQUEST__DAEMON_NONE, NULL, 0), 0);
	assert_string_equal(all->notes[0], "host b refuses (none); its checkpoints are not shown");
	assert_string_equal(all->notes[1], "host c does not answer; its checkpoints are not shown");
	assert_int_equal(checkpoints_order(all), 0);
	assert_int_equal(all->n_entries, 0);
	message_free(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merged),
		cmocka_unit_test(test_named),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_without_a_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
