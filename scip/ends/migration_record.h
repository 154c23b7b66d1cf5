/*
 * The registry's entries of a migration: migration/UUID, whose change from PREPARED to COMMITTED is the
 * commit point, and vpid/N, the places of processes that are not on the host where they were started.
 */
#ifndef SCIP_ENDS_MIGRATION_RECORD_H
#define SCIP_ENDS_MIGRATION_RECORD_H

#include "base/err.h"
#include "namespace/names.h"
#include "proto/cluster.pb-c.h"

struct group;

struct record {
	int sock; /* to pbeamd, -1: not connected */
	char key[64];
	uint64_t version; /* last known version of the entry; 0: no entry */
	Pbeam__MigrationRecord__State state;
	/* True while the outcome is unknown because the registry is unreachable. May be NULL. */
	void (*undecided)(void *arg, bool undecided);
	void *undecided_arg;
	char from[64];		   /* source host, as prepared */
	const char *const *others; /* further hosts, besides `from` and those of the moves, that may look
				      up the outcome */
	size_t nothers;
};
void record_init(struct record *record, const char *uuid);
void record_close(struct record *record);
/* Creates the entry as PREPARED. */
must_check int record_prepare(struct record *record, const char *from, const char *to, struct err *err);
struct address_entry;
/* Processes that move to one place. */
struct record_move {
	const int32_t *vpids; /* the root of the tree first */
	size_t n;
	const Pbeam__Place *place;
	const struct address_entry *addresses; /* of their bound sockets */
	size_t naddresses;
	/* NULL: `place` holds for all. Otherwise place->stub_host is for the root only ("": its stub stays
	 * where it is), the others have no stub; with stubs[i] only the stub of vpids[i] moves. */
	const bool *stubs;
};
/* Commits: sets COMMITTED together with the places of the processes and their addresses. Returns 0, or
 * -ECANCELED if the migration was aborted. Retries until the registry replies. */
must_check int record_commit(struct record *record, const struct record_move *move, struct err *err);
/* The same for processes that move to different places. No entry is created for a process on its home host.
 */
must_check int record_commit_all(struct record *record, struct names *names, const struct record_move *moves,
				 size_t n, struct err *err);
/* Sets ABORTED, unless the migration is committed. Returns 1 if it is committed, 0 if it is not and never
 * will be. Retries until the registry replies. */
must_check int record_abort(struct record *record);
/* Removes the entry once no host will look it up, or if it is not committed: a missing entry means aborted.
 */
void record_remove(struct record *record);
/* Looks up the hosts of a process, of its stub and (unless `home` is NULL) of its job's console; "" if the
 * registry has none. -errno if the registry is unreachable. */
must_check int record_place(int32_t vpid, char host[64], char stub_host[64], char home[64], struct err *err);
/* Returns the version of the entry that places the process on this host; 0 if there is none or the registry
 * is unreachable. */
uint64_t record_here(int32_t vpid);
/* Removes the place of a process that has ended, unless the entry has changed since `version`. */
void record_forget_place(int32_t vpid, uint64_t version);
/* Stores the name of this host in the cluster. -ENOTCONN without a cluster. */
must_check int record_own_host(char host[64], struct err *err);
/* Stores the address by which other hosts of the cluster reach this host. Returns false if it is unknown. */
struct inet_address;
bool record_own_address(struct inet_address *address);

/* Marks the frozen members for `ps` while the outcome is unknown because the registry is unreachable; false
 * removes the mark. */
void record_mark_undecided(const struct group *group, bool undecided);

#endif
