/*
 * The registry's entries of a migration: migration/UUID, whose change from PREPARED to COMMITTED is the one
 * point at which processes move, and vpid/N, the places of processes that have left the host of their birth.
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
	uint64_t version; /* of the entry, as we know it; 0: there is none */
	Pbeam__MigrationRecord__State state;
	/* True: whose the processes are is known to the registry alone, which does not answer; false: it has.
	 * May be NULL. */
	void (*undecided)(void *arg, bool undecided);
	void *undecided_arg;
	char from[64];		   /* as it was prepared */
	const char *const *others; /* hosts, besides that one and those of the moves, where somebody may ask
				      how it ended */
	size_t nothers;
};
void record_init(struct record *record, const char *uuid);
void record_close(struct record *record);
/* PREPARED. */
must_check int record_prepare(struct record *record, const char *from, const char *to, struct err *err);
struct address_entry;
/* Processes that go to one place. */
struct record_move {
	const int32_t *vpids; /* the first process of a tree first */
	size_t n;
	const Pbeam__Place *place;
	const struct address_entry *addresses; /* bound ones that move with them */
	size_t naddresses;
	/* NULL: the place is that of all. Else place->stub_host is the first one's ("": where it is), the
	 * others have no stub; and of those with true only the stub moves. */
	const bool *stubs;
};
/* COMMITTED, with the places of these processes and of their addresses. 0: it is; -ECANCELED: it was aborted;
 * when nobody answers this asks until somebody does. */
must_check int record_commit(struct record *record, const struct record_move *move, struct err *err);
/* The same for processes that go to different places. Those at home that have no entry get none. */
must_check int record_commit_all(struct record *record, struct names *names, const struct record_move *moves,
				 size_t n, struct err *err);
/* ABORTED, unless it is committed. Returns 1 when it is committed, 0 when it is not and never will be. Asks
 * until somebody answers. */
must_check int record_abort(struct record *record);
/* Nobody will ask for it any more, or it is not committed, which is what no record says too: it goes. */
void record_remove(struct record *record);
/* Where the registry has the process, its stub and (NULL: no matter) its job's console: "" where it does not
 * say. -errno: it cannot be asked. */
must_check int record_place(int32_t vpid, char host[64], char stub_host[64], char home[64], struct err *err);
/* The version of the entry that has the process on this host; 0: there is none, or nobody says. */
uint64_t record_here(int32_t vpid);
/* It has ended: its place is forgotten, unless that is another one's by now. */
void record_forget_place(int32_t vpid, uint64_t version);
/* The name of this host in the cluster. -ENOTCONN without a cluster. */
must_check int record_own_host(char host[64], struct err *err);
/* The address by which other hosts of the cluster reach this one. False: not known. */
struct inet_address;
bool record_own_address(struct inet_address *address);

/* Marks the frozen members for `ps`: only the registry knows whose they are, and it does not answer; or
 * (false) it has. */
void record_mark_undecided(const struct group *group, bool undecided);

#endif
