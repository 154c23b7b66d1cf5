/*
 * The registry on disk: SQLite in WAL mode. On the central host every commit is durable before its reply, so
 * that a reply holds whatever is killed afterwards. Every change has a revision, which is the version of the
 * entries that it changed.
 *
 * The other hosts keep the changes that they receive in the same database, so that each can become central,
 * also with a daemon that started after the central host was lost. They do not wait for the disk: what they
 * lose with their power, the central host has. The central host and its term are in the database as well.
 */
#include "pbeamd/registry/registry_store.h"

#include <errno.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dirs.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/parse.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/transport/cluster.h"
#include "proto/message.h"

enum {
	BUSY_MS = 5000,
	/* Changes and leases of a lost central host that no remaining host may have received; its successor
	   skips these numbers. */
	UNHEARD_REVISIONS = 1 << 20,
	UNHEARD_LEASED = 1 << 15,
};

enum statement { BEGIN, COMMIT, ROLLBACK, GET, PUT, REMOVE, CLEAR, LIST, REVISION, KNOWN, KNOW, STATEMENTS };
static const char *const texts[STATEMENTS] = {
	[BEGIN] = "BEGIN IMMEDIATE",
	[COMMIT] = "COMMIT",
	[ROLLBACK] = "ROLLBACK",
	[GET] = "SELECT * FROM entries WHERE key = ?1",
	[PUT] = "INSERT OR REPLACE INTO entries (key, value, version, host) VALUES (?1, ?2, ?3, ?4)",
	[REMOVE] = "DELETE FROM entries WHERE key = ?1",
	[LIST] = "SELECT * FROM entries WHERE substr(key, 1, length(?1)) = ?1 ORDER BY key",
	[CLEAR] = "DELETE FROM entries",
	[REVISION] = "UPDATE state SET revision = MAX(revision + 1, ?1) RETURNING revision",
	[KNOWN] = "SELECT revision, term, central, cluster, host, address, told FROM state",
	[KNOW] = "UPDATE state SET host = ?1, revision = ?2, term = ?3, central = ?4, cluster = ?5, address "
		 "= ?6,"
		 " told = ?7",
};

static const char schema[] =
	"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
	"CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT "
	"NULL,"
	" host TEXT NOT NULL) WITHOUT ROWID;"
	"CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT "
	"NULL,"
	" term INTEGER NOT NULL, central INTEGER NOT NULL, cluster BLOB NOT NULL, host TEXT NOT NULL,"
	" address TEXT NOT NULL, told TEXT NOT NULL);"
	"INSERT OR IGNORE INTO state VALUES (1, 0, 0, 0, x'', '', '', '');";

struct store {
	sqlite3 *db;
	sqlite3_stmt *statements[STATEMENTS];
	registry_changed_fn changed;
	void *watcher;
};

static int db_error(struct store *store, const char *what, struct err *err)
{
	return err_set(err, -EIO, "registry: %s: %s", what, sqlite3_errmsg(store->db));
}

/* Resets a statement and binds its first parameter, a text (NULL: none). */
static sqlite3_stmt *store_use_statement(struct store *store, enum statement which, const char *text)
{
	sqlite3_stmt *statement = store->statements[which];

	sqlite3_reset(statement);
	sqlite3_clear_bindings(statement);
	if (text)
		sqlite3_bind_text(statement, 1, text, -1, SQLITE_STATIC);
	return statement;
}

/* Runs a statement that returns at most one number (*out may be NULL). Returns 1 with it, 0 without, or
 * -EIO. */
static int store_run_statement(struct store *store, enum statement which, sqlite3_stmt *statement,
			       sqlite3_int64 *out, struct err *err)
{
	int r = sqlite3_step(statement), found = r == SQLITE_ROW;

	if (found && out)
		*out = sqlite3_column_int64(statement, 0);
	if (found)
		r = sqlite3_step(statement);
	sqlite3_reset(statement);
	return r == SQLITE_DONE ? found : db_error(store, texts[which], err);
}

static int store_run_simple(struct store *store, enum statement which, struct err *err)
{
	int r = store_run_statement(store, which, store_use_statement(store, which, NULL), NULL, err);

	return r < 0 ? r : 0;
}

static int read_entry(sqlite3_stmt *statement, Pbeam__RegistryEntry *entry)
{
	const void *value = sqlite3_column_blob(statement, 1);
	int len = sqlite3_column_bytes(statement, 1);

	entry->version = (uint64_t)sqlite3_column_int64(statement, 2);
	if (message_string(&entry->key, (const char *)sqlite3_column_text(statement, 0)) < 0 ||
	    message_string(&entry->host, (const char *)sqlite3_column_text(statement, 3)) < 0)
		return -ENOMEM;
	return message_bytes(&entry->value, value ? value : "", (size_t)len);
}

/* Appends the rows of GET or LIST. */
static int read_entries(struct store *store, enum statement which, const char *text,
			Pbeam__RegistryEntry ***entries, size_t *n, struct err *err)
{
	sqlite3_stmt *statement = store_use_statement(store, which, text);
	int r;

	while ((r = sqlite3_step(statement)) == SQLITE_ROW) {
		Pbeam__RegistryEntry *entry =
			message_append_new(entries, n, &pbeam__registry_entry__descriptor);

		if (!entry || read_entry(statement, entry) < 0) {
			sqlite3_reset(statement);
			return err_code(err, -ENOMEM, "registry");
		}
	}
	sqlite3_reset(statement);
	return r == SQLITE_DONE ? 0 : db_error(store, texts[which], err);
}

/* Ends a transaction: commits if r is 0, else rolls back. */
static int store_end_transaction(struct store *store, int r, struct err *err)
{
	struct err ignored = ERR_INIT;

	if (r == 0)
		r = store_run_simple(store, COMMIT, err);
	if (r < 0 && !sqlite3_get_autocommit(store->db) && store_run_simple(store, ROLLBACK, &ignored) < 0)
		log_error("%s", ignored.text);
	return r;
}

static void store_reply(Pbeam__RegistryReply *reply, int r, struct err *err, registry_done_fn done, void *arg)
{
	reply->code = r;
	if (r < 0 && message_string(&reply->text, err->text) < 0)
		reply->code = -ENOMEM;
	done(arg, reply);
	message_free(reply);
}

static Pbeam__RegistryReply *new_reply(registry_done_fn done, void *arg)
{
	Pbeam__RegistryReply *reply = message_new(&pbeam__registry_reply__descriptor);
	struct err err = ERR_INIT;

	if (!reply) {
		err_code(&err, -ENOMEM, "registry");
		registry_refuse(&err, done, arg);
	}
	return reply;
}

/* ---- set ---- */

static int check_version(struct store *store, const Pbeam__RegistryRequest *set, Pbeam__RegistryReply *reply,
			 struct err *err)
{
	size_t before = reply->n_entries;
	uint64_t version;
	int r = read_entries(store, GET, set->key, &reply->entries, &reply->n_entries, err);

	if (r < 0)
		return r;
	version = reply->n_entries > before ? reply->entries[before]->version : 0;
	if (version != set->expected)
		return err_set(err, -EEXIST, "registry: %s is of version %llu, not %llu", set->key,
			       (unsigned long long)version, (unsigned long long)set->expected);
	if (reply->n_entries > before) /* only the conflicting entries are returned */
		message_free(reply->entries[--reply->n_entries]);
	return 0;
}

static int store_change_entry(struct store *store, const Pbeam__RegistryRequest *set, sqlite3_int64 revision,
			      const char *host, struct err *err)
{
	enum statement which = set->remove ? REMOVE : PUT;
	sqlite3_stmt *statement = store_use_statement(store, which, set->key);

	if (!set->remove) {
		sqlite3_bind_blob(statement, 2, set->value.len ? (const void *)set->value.data : "",
				  (int)set->value.len, SQLITE_STATIC);
		sqlite3_bind_int64(statement, 3, revision);
		sqlite3_bind_text(statement, 4, host, -1, SQLITE_STATIC);
	}
	return store_run_statement(store, which, statement, NULL, err);
}

/* The number of the next change, at least `least`. */
static int next_revision(struct store *store, sqlite3_int64 least, sqlite3_int64 *revision, struct err *err)
{
	sqlite3_stmt *statement = store_use_statement(store, REVISION, NULL);

	sqlite3_bind_int64(statement, 1, least);
	return store_run_statement(store, REVISION, statement, revision, err);
}

static int store_set_entries(struct store *store, Pbeam__RegistryRequest *const *sets, size_t n,
			     const char *host, Pbeam__RegistryReply *reply, struct err *err)
{
	sqlite3_int64 revision = 0;
	int r = store_run_simple(store, BEGIN, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < n && r >= 0; i++)
		r = check_version(store, sets[i], reply, err);
	if (r >= 0)
		r = next_revision(store, 0, &revision, err);
	for (size_t i = 0; i < n && r >= 0; i++)
		r = store_change_entry(store, sets[i], revision, host, err);
	reply->version = (uint64_t)revision;
	return store_end_transaction(store, r > 0 ? 0 : r, err);
}

/* The watcher gets the change before the caller gets the reply. */
static void store_send_changes(struct store *store, Pbeam__RegistryRequest *const *sets, size_t n,
			       const char *host, uint64_t revision)
{
	Pbeam__RegistryChanges *changes = message_new(&pbeam__registry_changes__descriptor);
	bool good = changes && store->changed;

	for (size_t i = 0; i < n && good; i++) {
		Pbeam__RegistryEntry *entry =
			message_add(changes, entries, pbeam__registry_entry__descriptor);

		good = entry && message_string(&entry->key, sets[i]->key) == 0 &&
		       message_string(&entry->host, host) == 0 &&
		       message_bytes(&entry->value, sets[i]->value.data, sets[i]->value.len) == 0;
		if (good) {
			entry->removed = sets[i]->remove;
			entry->version = revision;
		}
	}
	if (good) {
		changes->revision = revision;
		store->changed(store->watcher, changes);
	} else if (store->changed) {
		log_error("cannot send a change of the registry: no memory");
		abort(); /* all other hosts would miss it for ever; after a restart they get everything */
	}
	message_free(changes);
}

/* Fault points of the request that commits a migration: its record is changed, and others with it. */
static int store_reach_fault_point(Pbeam__RegistryRequest *const *sets, size_t n, const char *point,
				   struct err *err)
{
	bool commits = n > 0 && !strncmp(sets[0]->key, "migration/", 10) && sets[0]->expected;

	return commits ? fault_point(point, err) : 0;
}

static void store_set(void *engine, Pbeam__RegistryRequest *const *sets, size_t n, const char *host,
		      registry_done_fn done, void *arg)
{
	Pbeam__RegistryReply *reply = new_reply(done, arg);
	struct err err = ERR_INIT;
	int r;

	if (!reply)
		return;
	r = store_reach_fault_point(sets, n, "registry-before-commit", &err);
	if (r == 0)
		r = store_set_entries(engine, sets, n, host, reply, &err);
	if (r == 0)
		store_send_changes(engine, sets, n, host, reply->version);
	if (r == 0)
		r = store_reach_fault_point(sets, n, "registry-committed", &err);
	store_reply(reply, r, &err, done, arg);
}

/* ---- lease ---- */

/* The next number of a range, and the version of its entry. */
static int read_next(struct store *store, const char *key, uint64_t *next, uint64_t *version, struct err *err)
{
	Pbeam__RegistryReply *found = message_new(&pbeam__registry_reply__descriptor);
	const Pbeam__RegistryEntry *entry;
	char text[24];
	int r = found ? read_entries(store, GET, key, &found->entries, &found->n_entries, err)
		      : err_code(err, -ENOMEM, "registry");

	*next = !strcmp(key, REGISTRY_NUMBERS) ? REGISTRY_NUMBERS_FIRST : 1;
	*version = 0;
	entry = r == 0 && found->n_entries ? found->entries[0] : NULL;
	if (entry) {
		*version = entry->version;
		snprintf(text, sizeof(text), "%.*s", (int)entry->value.len, (const char *)entry->value.data);
		if (entry->value.len >= sizeof(text) || parse_number(text, 1, INT64_MAX / 2, next, NULL) < 0)
			r = err_set(err, -EINVAL, "registry: %s is no range of numbers", key);
	}
	message_free(found);
	return r;
}

/* Ranges are entries, so that all hosts know what has been leased. */
static int store_lease_range(struct store *store, const char *key, uint64_t count, const char *host,
			     Pbeam__RegistryReply *reply, struct err *err)
{
	Pbeam__RegistryRequest set = PBEAM__REGISTRY_REQUEST__INIT, *one = &set;
	char text[24];
	int r = read_next(store, key, &reply->first, &set.expected, err);

	if (r == 0 && !strcmp(key, REGISTRY_NUMBERS) && reply->first + count > REGISTRY_NUMBERS_END)
		r = err_set(err, -ENOSPC, "all process numbers are leased");
	if (r < 0)
		return r;
	set.key = (char *)(uintptr_t)key;
	set.value.data = (uint8_t *)text;
	set.value.len =
		(size_t)snprintf(text, sizeof(text), "%llu", (unsigned long long)(reply->first + count));
	r = store_set_entries(store, &one, 1, host, reply, err);
	if (r == 0)
		store_send_changes(store, &one, 1, host, reply->version);
	return r;
}

static void store_lease(void *engine, const char *key, uint64_t count, const char *host,
			registry_done_fn done, void *arg)
{
	Pbeam__RegistryReply *reply = new_reply(done, arg);
	struct err err = ERR_INIT;

	if (reply)
		store_reply(reply, store_lease_range(engine, key, count, host, reply, &err), &err, done, arg);
}

/* ---- get, list, watch ---- */

static int store_take_value(const char *key, Pbeam__RegistryReply *reply, struct err *err)
{
	const Pbeam__RegistryEntry *entry = reply->n_entries ? reply->entries[0] : NULL;

	if (!entry)
		return err_set(err, -ENOENT, "registry: there is no %s", key);
	reply->version = entry->version;
	return message_bytes(&reply->value, entry->value.data, entry->value.len);
}

static void read_and_answer(struct store *store, enum statement which, const char *key, registry_done_fn done,
			    void *arg)
{
	Pbeam__RegistryReply *reply = new_reply(done, arg);
	struct err err = ERR_INIT;
	int r;

	if (!reply)
		return;
	r = read_entries(store, which, key, &reply->entries, &reply->n_entries, &err);
	if (r == 0 && which == GET)
		r = store_take_value(key, reply, &err);
	store_reply(reply, r, &err, done, arg);
}

static void store_get(void *engine, const char *key, registry_done_fn done, void *arg)
{
	read_and_answer(engine, GET, key, done, arg);
}

static void store_list_entries(void *engine, const char *prefix, registry_done_fn done, void *arg)
{
	read_and_answer(engine, LIST, prefix, done, arg);
}

Pbeam__RegistryChanges *registry_store_whole(struct registry *registry, struct err *err)
{
	Pbeam__RegistryChanges *whole = message_new(&pbeam__registry_changes__descriptor);
	struct store *store = registry->engine;
	struct registry_state state;

	if (!whole) {
		err_code(err, -ENOMEM, "registry");
		return NULL;
	}
	if (registry_store_state(registry, &state, err) < 0 ||
	    read_entries(store, LIST, "", &whole->entries, &whole->n_entries, err) < 0) {
		message_free(whole);
		return NULL;
	}
	whole->whole = true;
	whole->revision = state.revision;
	return whole;
}

static void store_watch(void *engine, registry_changed_fn changed, void *arg)
{
	struct registry registry = {NULL, engine};
	struct store *store = engine;
	struct err err = ERR_INIT;
	Pbeam__RegistryChanges *whole = registry_store_whole(&registry, &err);

	store->changed = changed;
	store->watcher = arg;
	if (whole)
		changed(arg, whole);
	else
		log_error("%s", err.text);
	message_free(whole);
}

/* ---- the central host ---- */

static void store_read_text(char *to, size_t size, sqlite3_stmt *statement, int column)
{
	const char *text = (const char *)sqlite3_column_text(statement, column);

	snprintf(to, size, "%s", text ? text : "");
}

int registry_store_state(struct registry *registry, struct registry_state *out, struct err *err)
{
	struct store *store = registry->engine;
	sqlite3_stmt *statement = store_use_statement(store, KNOWN, NULL);
	int r = sqlite3_step(statement);

	*out = (struct registry_state){.term = 0};
	if (r == SQLITE_ROW) {
		out->revision = (uint64_t)sqlite3_column_int64(statement, 0);
		out->term = (uint64_t)sqlite3_column_int64(statement, 1);
		out->central = sqlite3_column_int(statement, 2);
		if (sqlite3_column_bytes(statement, 3) == sizeof(out->cluster))
			memcpy(out->cluster, sqlite3_column_blob(statement, 3), sizeof(out->cluster));
		store_read_text(out->host, sizeof(out->host), statement, 4);
		store_read_text(out->address, sizeof(out->address), statement, 5);
		store_read_text(out->told, sizeof(out->told), statement, 6);
	}
	sqlite3_reset(statement);
	return r == SQLITE_ROW ? 0 : db_error(store, texts[KNOWN], err);
}

static int store_write_state(struct store *store, const struct registry_state *state, struct err *err)
{
	sqlite3_stmt *statement = store_use_statement(store, KNOW, state->host);
	int r;

	sqlite3_bind_int64(statement, 2, (sqlite3_int64)state->revision);
	sqlite3_bind_int64(statement, 3, (sqlite3_int64)state->term);
	sqlite3_bind_int(statement, 4, state->central);
	sqlite3_bind_blob(statement, 5, state->cluster, sizeof(state->cluster), SQLITE_STATIC);
	sqlite3_bind_text(statement, 6, state->address, -1, SQLITE_STATIC);
	sqlite3_bind_text(statement, 7, state->told, -1, SQLITE_STATIC);
	r = store_run_statement(store, KNOW, statement, NULL, err);
	return r < 0 ? r : 0;
}

/* The central host waits for the disk. */
static int set_care(struct store *store, bool central, struct err *err)
{
	const char *text = central ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL";

	return sqlite3_exec(store->db, text, NULL, NULL, NULL) == SQLITE_OK ? 0 : db_error(store, text, err);
}

int registry_store_know(struct registry *registry, const struct registry_state *state, struct err *err)
{
	struct store *store = registry->engine;
	struct registry_state now, next = *state;
	int r = set_care(store, true, err);

	if (r == 0)
		r = registry_store_state(registry, &now, err);
	next.revision = now.revision;
	if (r == 0)
		r = store_write_state(store, &next, err);
	return r < 0 || state->central ? r : set_care(store, false, err);
}

/* ---- becoming central ---- */

/* The new version of a range's entry. */
static int skip_unheard(struct store *store, const char *key, uint64_t least, sqlite3_int64 revision,
			const char *host, struct err *err)
{
	Pbeam__RegistryRequest set = PBEAM__REGISTRY_REQUEST__INIT;
	char text[24];
	uint64_t next;
	int r = read_next(store, key, &next, &set.expected, err);

	if (r < 0)
		return r;
	next = (next > least ? next : least) + UNHEARD_LEASED;
	set.key = (char *)(uintptr_t)key;
	set.value.data = (uint8_t *)text;
	set.value.len = (size_t)snprintf(text, sizeof(text), "%llu", (unsigned long long)next);
	return store_change_entry(store, &set, revision, host, err);
}

/* Every range continues behind the numbers that may have been leased without this host's knowledge; that of
 * process numbers also behind every block that a host holds. */
static int skip_all(struct store *store, uint64_t numbers, sqlite3_int64 revision, const char *host,
		    struct err *err)
{
	Pbeam__RegistryReply *found = message_new(&pbeam__registry_reply__descriptor);
	int r = found ? read_entries(store, LIST, REGISTRY_LEASE, &found->entries, &found->n_entries, err)
		      : err_code(err, -ENOMEM, "registry");

	if (r == 0)
		r = skip_unheard(store, REGISTRY_NUMBERS, numbers, revision, host, err);
	for (size_t i = 0; found && i < found->n_entries && r >= 0; i++)
		if (strcmp(found->entries[i]->key, REGISTRY_NUMBERS) != 0)
			r = skip_unheard(store, found->entries[i]->key, 1, revision, host, err);
	message_free(found);
	return r;
}

int registry_store_take_over(struct registry *registry, struct registry_state *state, uint64_t numbers,
			     struct err *err)
{
	struct store *store = registry->engine;
	sqlite3_int64 revision = 0;
	int r = set_care(store, true, err);

	if (r == 0)
		r = store_run_simple(store, BEGIN, err);
	if (r < 0)
		return r;
	r = next_revision(store, (sqlite3_int64)state->revision + UNHEARD_REVISIONS, &revision, err);
	if (r >= 0)
		r = skip_all(store, numbers, revision, state->host, err);
	state->revision = (uint64_t)revision;
	if (r >= 0)
		r = store_write_state(store, state, err);
	r = store_end_transaction(store, r > 0 ? 0 : r, err);
	if (r < 0 && set_care(store, false, NULL) < 0)
		log_error("the registry's database is slow from now on");
	return r;
}

/* ---- changes from the central host ---- */

struct keeping {
	struct store *store;
	struct err *err;
	int r;
};

static void keep_one(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct keeping *keeping = arg;
	Pbeam__RegistryRequest set = PBEAM__REGISTRY_REQUEST__INIT;

	set.key = entry->key;
	set.value = entry->value;
	set.remove = entry->removed;
	if (keeping->r >= 0)
		keeping->r = store_change_entry(keeping->store, &set, (sqlite3_int64)entry->version,
						entry->host, keeping->err);
}

int registry_store_keep(struct registry *registry, const Pbeam__RegistryChanges *changes,
			const struct registry_copy *copy, struct err *err)
{
	struct store *store = registry->engine;
	struct keeping keeping = {store, err, 0};
	struct registry_state state;
	int r = store_run_simple(store, BEGIN, err);

	if (r < 0)
		return r;
	keeping.r = registry_store_state(registry, &state, err);
	if (keeping.r == 0 && copy) {
		keeping.r = store_run_simple(store, CLEAR, err);
		registry_copy_each(copy, "", keep_one, &keeping);
	}
	for (size_t i = 0; !copy && i < changes->n_entries; i++)
		keep_one(&keeping, changes->entries[i]);
	state.revision = changes->revision;
	if (keeping.r >= 0)
		keeping.r = store_write_state(store, &state, err);
	return store_end_transaction(store, keeping.r > 0 ? 0 : keeping.r, err);
}

static void store_close(void *engine)
{
	struct store *store = engine;

	for (int i = 0; i < STATEMENTS; i++)
		sqlite3_finalize(store->statements[i]);
	sqlite3_close(store->db);
	free(store);
}

static int open_database(struct store *store, struct err *err)
{
	char path[PATH_MAX];
	int r = dirs_state(path, ".cluster", err);

	if (r < 0)
		return r;
	if (strlen(path) + sizeof("/registry") > sizeof(path))
		return err_code(err, -ENAMETOOLONG, "%s", path);
	strcat(path, "/registry");
	if (sqlite3_open_v2(path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) != SQLITE_OK)
		return err_set(err, -EIO, "registry %s: %s", path,
			       store->db ? sqlite3_errmsg(store->db) : "no memory");
	sqlite3_busy_timeout(store->db, BUSY_MS);
	if (sqlite3_exec(store->db, schema, NULL, NULL, NULL) != SQLITE_OK)
		return err_set(err, -EIO, "registry %s: %s", path, sqlite3_errmsg(store->db));
	for (int i = 0; i < STATEMENTS; i++)
		if (sqlite3_prepare_v3(store->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT,
				       &store->statements[i], NULL) != SQLITE_OK)
			return db_error(store, texts[i], err);
	return 0;
}

int registry_store_open(struct registry *out, struct err *err)
{
	static const struct registry_operations operations = {store_lease,	  store_set,   store_get,
							      store_list_entries, store_watch, store_close};
	struct store *store = calloc(1, sizeof(*store));
	int r;

	if (!store)
		return err_code(err, -ENOMEM, "registry");
	r = open_database(store, err);
	if (r < 0) {
		store_close(store);
		return r;
	}
	*out = (struct registry){&operations, store};
	return 0;
}
