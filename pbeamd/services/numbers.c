/*
 * Process numbers. This host holds blocks of 1,024: those of the kernel's range that its kernel is about to
 * give out, claimed ahead of need (a newborn then keeps its own number), and some above that range, for
 * newborns whose number another host holds.
 *
 * Places of processes: the entry of a process that has ended, or returned to the host that holds its number's
 * block, is removed. This must be observed several times in a row, since a job that is being rolled back is
 * absent for a while.
 */
#include "pbeamd/services/numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/transport/cluster.h"
#include "proto/message.h"

enum {
	AHEAD = 4,	     /* blocks of the kernel's range, from where it is now */
	SPARE = 4096,	     /* numbers above it that are kept free */
	LEASE_BLOCKS = 8,    /* blocks above it leased at once */
	CLAIMS_MAX = 64,     /* under way */
	BLOCKS_AT_ONCE = 64, /* blocks checked for return at once */
	PLACES_EVERY_S = 3,  /* interval of checks of places */
	REMOVE_AFTER = 6,    /* checks: a rollback may take a while */
	SET_AFTER = 3,
	PROCESSES_MOST = 16384,
	KERNEL_BLOCKS = REGISTRY_NUMBERS_FIRST >> NAMES_BLOCK_BITS,
};

struct doubt {
	int32_t vpid;
	bool remove; /* else: set */
	uint64_t version;
	unsigned looks; /* checks in a row with this result */
};

struct numbers {
	struct cluster *cluster;
	bool begun, leasing;
	unsigned claiming;		 /* requests under way */
	uint8_t asked[NAMES_BLOCKS / 8]; /* claims under way, or refused */
	uint64_t looked_ns;
	uint32_t looked_at;   /* block */
	struct doubt *doubts; /* places that may be wrong, from the last check */
	size_t ndoubts;
};

static bool is_asked(const struct numbers *numbers, uint32_t block)
{
	return numbers->asked[block / 8] >> (block % 8) & 1;
}

static void set_asked(struct numbers *numbers, uint32_t block, bool asked)
{
	uint8_t bit = (uint8_t)(1u << (block % 8));

	if (asked)
		numbers->asked[block / 8] |= bit;
	else
		numbers->asked[block / 8] &= (uint8_t)~bit;
}

static bool numbers_is_block_known(const struct numbers *numbers, uint32_t block)
{
	return registry_copy_getf(numbers->cluster->copy, "block/%u", block) != NULL;
}

/* ---- claiming blocks ---- */

struct claim {
	struct numbers *numbers;
	uint32_t first, count;
};

/* Begins once all requests of the start have their replies. */
static void numbers_begin(struct numbers *numbers)
{
	uint32_t used, held;

	if (numbers->begun || numbers->claiming || numbers->leasing)
		return;
	names_block_usage(numbers->cluster->server->names, &used, &held);
	if (!held)
		return;
	numbers->begun = true;
	names_cluster_begin(numbers->cluster->server->names);
	log_info("this host has its numbers");
}

static void on_claimed(void *arg, const Pbeam__RegistryReply *reply)
{
	struct claim *claim = arg;

	claim->numbers->claiming--;
	if (reply->code < 0 && reply->code != -EEXIST)
		log_info("numbers of block %u: %s", claim->first, reply->text);
	for (uint32_t i = 0; i < claim->count; i++)
		set_asked(claim->numbers, claim->first + i, false);
	numbers_begin(claim->numbers);
	free(claim);
}

/* Claims adjacent blocks, all or none. */
static void claim_blocks(struct numbers *numbers, uint32_t first, uint32_t count)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT, sets[LEASE_BLOCKS];
	Pbeam__RegistryRequest *all[LEASE_BLOCKS];
	struct claim *claim = malloc(sizeof(*claim));
	char keys[LEASE_BLOCKS][32];
	const char *own = numbers->cluster->options->name;

	if (!claim)
		return;
	*claim = (struct claim){numbers, first, count};
	for (uint32_t i = 0; i < count; i++) {
		pbeam__registry_request__init(&sets[i]);
		snprintf(keys[i], sizeof(keys[i]), "block/%u", first + i);
		sets[i].key = keys[i];
		sets[i].value.data = (uint8_t *)(uintptr_t)own;
		sets[i].value.len = strlen(own);
		all[i] = &sets[i];
		set_asked(numbers, first + i, true);
	}
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.all = all;
	request.n_all = count;
	numbers->claiming++;
	registry_ask(numbers->cluster, &request, on_claimed, claim);
}

static void claim_if_free(struct numbers *numbers, uint32_t block)
{
	if (block < NAMES_BLOCKS && numbers->claiming < CLAIMS_MAX && !is_asked(numbers, block) &&
	    !numbers_is_block_known(numbers, block))
		claim_blocks(numbers, block, 1);
}

/* Returns the number that the kernel gave last. */
static int32_t last_pid(void)
{
	auto_free char *text = NULL;
	const char *last;

	if (io_slurp(AT_FDCWD, "/proc/loadavg", 256, &text, NULL) < 0)
		return getpid();
	last = strrchr(text, ' ');
	return last ? atoi(last + 1) : getpid();
}

static int32_t pid_max(void)
{
	auto_free char *text = NULL;

	return io_slurp(AT_FDCWD, "/proc/sys/kernel/pid_max", 64, &text, NULL) < 0 ? 4194304 : atoi(text);
}

static void claim_ahead(struct numbers *numbers)
{
	uint32_t block = (uint32_t)last_pid() >> NAMES_BLOCK_BITS;
	uint32_t end = (uint32_t)(pid_max() - 1) >> NAMES_BLOCK_BITS;

	for (uint32_t i = 0; i < AHEAD; i++)
		claim_if_free(numbers, block + i <= end ? block + i : block + i - end - 1);
}

static void on_leased(void *arg, const Pbeam__RegistryReply *reply)
{
	struct numbers *numbers = arg;

	numbers->leasing = false;
	if (reply->code < 0)
		log_info("%s", reply->text);
	else if (reply->first % (1u << NAMES_BLOCK_BITS) == 0 && reply->first < REGISTRY_NUMBERS_END)
		claim_blocks(numbers, (uint32_t)(reply->first >> NAMES_BLOCK_BITS), LEASE_BLOCKS);
}

static void lease_spare(struct numbers *numbers)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	uint32_t used, held;

	names_block_usage(numbers->cluster->server->names, &used, &held);
	if (numbers->leasing || held - used >= SPARE)
		return;
	for (uint32_t block = KERNEL_BLOCKS; block < NAMES_BLOCKS; block++)
		if (is_asked(numbers, block))
			return; /* leased, and about to be ours */
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__LEASE;
	request.key = (char *)(uintptr_t)REGISTRY_NUMBERS;
	request.count = LEASE_BLOCKS << NAMES_BLOCK_BITS;
	numbers->leasing = true;
	registry_ask(numbers->cluster, &request, on_leased, numbers);
}

/* ---- giving blocks back ---- */

/* True if a process of this kernel, or one that has left, has a number of the block. */
static bool is_block_in_use(const struct numbers *numbers, uint32_t block)
{
	int32_t first = (int32_t)(block << NAMES_BLOCK_BITS);

	for (int32_t n = first; n < first + (1 << NAMES_BLOCK_BITS); n++) {
		if (n > 1 && (kill(n, 0) == 0 || errno == EPERM || kill(-n, 0) == 0 || errno == EPERM))
			return true;
		if (registry_copy_getf(numbers->cluster->copy, "vpid/%d", n))
			return true;
	}
	return false;
}

static void numbers_keep_block(struct numbers *numbers, uint32_t block)
{
	if (names_block_set(numbers->cluster->server->names, block, numbers->cluster->options->name) < 0)
		log_error("block %u is held but cannot be used", block);
}

static void on_given_back(void *arg, const Pbeam__RegistryReply *reply)
{
	struct claim *claim = arg;

	if (reply->code < 0)
		numbers_keep_block(claim->numbers, claim->first);
	free(claim);
}

/* Returns the next block of ours that the kernel has passed; NULL if there is none among the next ones. */
static const Pbeam__RegistryEntry *left_behind(struct numbers *numbers, uint32_t *block)
{
	uint32_t now = (uint32_t)last_pid() >> NAMES_BLOCK_BITS;
	const struct cluster *cluster = numbers->cluster;
	const Pbeam__RegistryEntry *entry;

	for (int i = 0; i < BLOCKS_AT_ONCE; i++) {
		*block = numbers->looked_at++ % KERNEL_BLOCKS;
		entry = registry_copy_getf(cluster->copy, "block/%u", *block);
		if (entry && entry->value.len == strlen(cluster->options->name) &&
		    bytes_equal(entry->value.data, cluster->options->name, entry->value.len) &&
		    (*block + 1 < now || *block > now + AHEAD))
			return entry;
	}
	return NULL;
}

/*
 * Returns one block at a time that the kernel has passed, since other hosts' kernels reach it as well.
 * Newborns get none of its numbers once the block is out of the name table; the second check finds a process
 * that got one just before.
 */
static void numbers_return_blocks(struct numbers *numbers)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	const Pbeam__RegistryEntry *entry;
	struct claim *claim;
	uint32_t block;
	char key[32];

	entry = numbers->claiming ? NULL : left_behind(numbers, &block);
	if (!entry || is_block_in_use(numbers, block))
		return;
	claim = malloc(sizeof(*claim));
	if (!claim || names_block_set(numbers->cluster->server->names, block, NULL) < 0) {
		free(claim);
		return;
	}
	if (is_block_in_use(numbers, block)) {
		numbers_keep_block(numbers, block);
		free(claim);
		return;
	}
	*claim = (struct claim){numbers, block, 1};
	snprintf(key, sizeof(key), "block/%u", block);
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.key = key;
	request.expected = entry->version;
	request.remove = true;
	registry_ask(numbers->cluster, &request, on_given_back, claim);
}

/* ---- places ---- */

static unsigned looks_before(const struct numbers *numbers, int32_t vpid, bool remove)
{
	for (size_t i = 0; i < numbers->ndoubts; i++)
		if (numbers->doubts[i].vpid == vpid && numbers->doubts[i].remove == remove)
			return numbers->doubts[i].looks;
	return 0;
}

static void on_place_changed(void *arg, const Pbeam__RegistryReply *reply)
{
	if (reply->code < 0 && reply->code != -EEXIST)
		log_info("place of a process: %s", reply->text);
}

static void change_place(struct numbers *numbers, const struct doubt *doubt)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__Place place = PBEAM__PLACE__INIT;
	uint8_t bytes[256];
	char key[32];

	snprintf(key, sizeof(key), "vpid/%d", doubt->vpid);
	place.host = (char *)(uintptr_t)numbers->cluster->options->name;
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.key = key;
	request.expected = doubt->version;
	request.remove = doubt->remove;
	request.value.data = bytes;
	request.value.len = doubt->remove ? 0 : pbeam__place__pack(&place, bytes);
	registry_ask(numbers->cluster, &request, on_place_changed, NULL);
}

struct look {
	struct numbers *numbers;
	struct doubt *found;
	size_t n, room;
};

static void numbers_doubt_place(struct look *look, int32_t vpid, uint64_t version, bool remove)
{
	if (look->n < look->room)
		look->found[look->n++] =
			(struct doubt){vpid, remove, version, looks_before(look->numbers, vpid, remove) + 1};
}

/* True if a process, thread or group has the number, or that cannot be found out. */
static bool is_in_use(struct names *names, struct vpid vpid)
{
	struct name_process process;
	int32_t real = names_real(names, vpid).n;

	if (names_process_get(names, vpid, &process) != -ENOENT)
		return true;
	return real != vpid.n && real != NAMES_NOBODY && (kill(real, 0) == 0 || kill(-real, 0) == 0);
}

/* Notes an entry that places a process here that is not here. */
static void numbers_check_place(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct look *look = arg;
	const struct cluster *cluster = look->numbers->cluster;
	Pbeam__Place *place = pbeam__place__unpack(NULL, entry->value.len, entry->value.data);
	struct vpid vpid = {atoi(entry->key + strlen("vpid/"))};

	if (place && !strcmp(place->host, cluster->options->name) && !is_in_use(cluster->server->names, vpid))
		numbers_doubt_place(look, vpid.n, entry->version, true);
	message_free(place);
}

/* Notes processes that run here although their entries name another host. */
static void look_at_processes(struct look *look)
{
	struct cluster *cluster = look->numbers->cluster;
	auto_free struct name_process *all = NULL;
	char host[NAME_TEXT_MAX];
	int n = names_snapshot(cluster->server->names, (struct rpid){0}, &all);

	for (int i = 0; i < n; i++) {
		if (all[i].state == NAME_STATE_RUNNING &&
		    !registry_copy_getf(cluster->copy, "vpid/%d", all[i].vpid.n) &&
		    names_block_find(cluster->server->names, all[i].vpid, host) == 0 &&
		    strcmp(host, cluster->options->name) != 0)
			numbers_doubt_place(look, all[i].vpid.n, 0, false);
	}
}

static void look_at_places(struct numbers *numbers)
{
	struct look look = {.numbers = numbers, .room = PROCESSES_MOST};

	look.found = calloc(look.room, sizeof(*look.found));
	if (!look.found)
		return;
	registry_copy_each(numbers->cluster->copy, "vpid/", numbers_check_place, &look);
	look_at_processes(&look);
	for (size_t i = 0; i < look.n; i++)
		if (look.found[i].looks >= (look.found[i].remove ? REMOVE_AFTER : SET_AFTER))
			change_place(numbers, &look.found[i]);
	free(numbers->doubts);
	numbers->doubts = look.found;
	numbers->ndoubts = look.n;
}

/* ---- the beginning ---- */

/* Claims the numbers of processes that run already, before other hosts can lease them; again after this
 * host was removed and has come back. -errno if they are not known. */
static int claim_existing(struct numbers *numbers)
{
	struct names *names = numbers->cluster->server->names;
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(names, (struct rpid){0}, &all);

	for (int i = 0; i < n; i++)
		claim_if_free(numbers, (uint32_t)all[i].vpid.n >> NAMES_BLOCK_BITS);
	return n < 0 ? n : 0;
}

void numbers_tick(struct cluster *cluster, uint64_t now_ns)
{
	struct numbers *numbers = cluster->numbers;

	if (!registry_copy_ready(cluster->copy))
		return;
	if (!numbers->begun && claim_existing(numbers) < 0)
		return;
	claim_ahead(numbers);
	lease_spare(numbers);
	numbers_begin(numbers);
	numbers_return_blocks(numbers);
	if (now_ns - numbers->looked_ns < PLACES_EVERY_S * 1000000000ull)
		return;
	numbers->looked_ns = now_ns;
	claim_existing(numbers);
	look_at_places(numbers);
}

int numbers_open(struct cluster *cluster, struct err *err)
{
	int r = names_cluster_set(cluster->server->names, cluster->options->name);

	if (r < 0)
		return err_code(err, r, "name table");
	cluster->numbers = calloc(1, sizeof(*cluster->numbers));
	if (!cluster->numbers)
		return err_code(err, -ENOMEM, "numbers");
	cluster->numbers->cluster = cluster;
	cluster->numbers->begun = names_cluster_begun(cluster->server->names);
	return 0;
}

void numbers_close(struct cluster *cluster)
{
	if (cluster->numbers)
		free(cluster->numbers->doubts);
	free(cluster->numbers);
	cluster->numbers = NULL;
}
