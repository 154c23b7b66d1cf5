/*
 * The name space: which virtual names exist, and where their objects are. It knows no tracees.
 *
 * The local backend (names_local.c) is a table in a file in the runtime directory, which every scip, keeper
 * and pbeamd of the user maps, with a robust mutex for writers. So it outlives each of them: a pbeamd that is
 * killed and started again finds all programs by mapping the file. A distributed engine can provide the same
 * operations: claims (atomic), compare-and-set on an entry, release, enumeration.
 *
 * Numbers: one kernel number can be a process, a thread, a process group and a session at once (struct pid),
 * so one map number <-> number serves all of these. Only diverged numbers (virtual != real) are in that map;
 * any other number stands for itself.
 */
#ifndef NAMESPACE_NAMES_H
#define NAMESPACE_NAMES_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* Distinct struct types, so that a virtual and a real number cannot be mixed up. */
struct vpid {
	int32_t n;
};
struct rpid {
	int32_t n;
};

enum name_state {
	NAME_STATE_FREE = 0,
	NAME_STATE_BORN,    /* forked; its scip is not attached yet */
	NAME_STATE_RUNNING, /* supervised */
	NAME_STATE_FROZEN,  /* stopped for a checkpoint or a restore */
	NAME_STATE_DEAD,    /* reaped by its scip; the entry is removed when the parent has waited for it */
	NAME_STATE_STUB,    /* on another host; a stub here represents it to its parent */
};

#define NAME_TEXT_MAX 64

/* One process (thread group) of the name space. */
struct name_process {
	struct vpid vpid;
	struct rpid rpid;
	struct vpid parent; /* vpid of its parent when it was forked; 0 for the first process of a job */
	struct rpid scip;   /* its supervisor, 0 if there is none */
	struct rpid keeper; /* the keeper of its job, whose number identifies the job */
	uint64_t start_ns;  /* CLOCK_REALTIME of its start in the name space */
	enum name_state state;
	uint64_t unknown_calls; /* calls with numbers that are not in the system call table */
	bool remote_parent;	/* `parent` is on another host; the kernel's parent is the keeper */
	bool undecided; /* frozen: only the registry, which is unreachable, knows whether it runs here or on
			   another host */
	bool diverged;	/* vpid != rpid, or it was restored: it runs behind the restored filter */
	bool aside;	/* in a copy: names_replace_begin() has set it aside */
};

/* One job: the processes that one `scip run` or `scip restore` started. */
struct name_job {
	struct rpid keeper;
	struct vpid root;
	char name[NAME_TEXT_MAX];  /* --name, or "" */
	char uuid[40];		   /* created at the job's first start; a rollback keeps it */
	char group[NAME_TEXT_MAX]; /* --group, or "" */
	uint64_t interval_ns;	   /* --interval, 0 for none */
	uint32_t keep;		   /* --keep */
	uint64_t start_ns;
	char home[NAME_TEXT_MAX]; /* the host of the job's console, if that is another host */
	bool spread;		  /* some of its processes are, or were, on other hosts */
};

struct names; /* opaque: one mapping of the table */

/* Opens the user's table, creating it if necessary. The caller closes it with names_close(). */
must_check int names_open(struct names **out, struct err *err);
void names_close(struct names *names);
/* The version of the table, and its descriptor, which names_open_descriptor() takes over in another program
 * that the process executes. That fails with -ENOTSUP, and the sentence, for a table of another version. */
uint32_t names_version(const struct names *names);
/* The version that this program makes tables of. */
uint32_t names_own_version(void);
int names_descriptor(const struct names *names);
must_check int names_open_descriptor(struct names **out, int fd, uint32_t version, struct err *err);
/* From now on the jobs and processes of other versions' tables are found as well: by names_jobs_snapshot(),
 * names_job_count(), names_job_get(), names_snapshot() and names_process_get(). They cannot be changed. For
 * programs that serve the user; the jobs' own programs need only theirs. */
void names_include_others(struct names *names);
/* The table's directory may be removed while jobs run (a logout). A process that serves jobs then publishes
 * its table where names_open() finds it. 0 also if it is in its place; -EEXIST if there is another one by
 * now. */
must_check int names_publish(const struct names *names, struct err *err);
/* True if names_open() in another process would find this table. */
bool names_is_published(const struct names *names);
/* True if it would open this table itself. */
bool names_is_found(const struct names *names);
/* Removes this process's link, before it ends. */
void names_unpublish(void);

/* With `limited` an operation fails with -ETIMEDOUT, changing nothing, if another process keeps the table
 * locked for some seconds: it is stopped. Else it waits. For programs that a user waits for; what supervisors
 * record must not be lost. */
void names_limit_wait(struct names *names, bool limited);
/* Sets the sentence for an operation that failed with `r`: of -ETIMEDOUT, which process keeps the table
 * locked. Returns `r`. */
int names_explain(const struct names *names, int r, struct err *err);

/* ---- jobs ---- */
must_check int names_job_add(struct names *names, const struct name_job *job,
			     struct err *err); /* -EEXIST: name in use; -ESTALE: the table
							was removed, open it again */
must_check int names_job_update(struct names *names, const struct name_job *job);
void names_job_remove(struct names *names, struct rpid keeper); /* with all its processes and claims */
must_check int names_job_get(struct names *names, struct rpid keeper, struct name_job *out);
/* True if a job that names_job_get() has found is in another version's table. */
bool names_job_of_other(struct names *names, struct rpid keeper);
/* A copy of all jobs at one moment. Returns their number, or -errno with *out NULL; the caller frees *out. */
must_check int names_jobs_snapshot(struct names *names, struct name_job **out);
/* The number of jobs, or -errno. */
must_check int names_job_count(struct names *names);

/* ---- processes ---- */
/* Registers a process. -EEXIST if another live process has its vpid. */
must_check int names_process_add(struct names *names, const struct name_process *process);
/* Replaces the entry of process->vpid. -ENOENT if there is none, or it belongs to another process now. */
must_check int names_process_update(struct names *names, const struct name_process *process);
/* Sets the process's `undecided` flag. No effect if there is no entry. */
void names_process_mark(struct names *names, struct vpid vpid, bool undecided);
/* No effect if the entry belongs to another process now: a restored process may have taken the number. */
void names_process_remove(struct names *names, struct vpid vpid, struct rpid rpid);
/* The parent has waited for the process: releases its number, and the entry that its scip kept until then. */
void names_process_waited(struct names *names, struct vpid vpid, struct rpid rpid);
must_check int names_process_get(struct names *names, struct vpid vpid, struct name_process *out);
must_check int names_process_find_real(struct names *names, struct rpid rpid, struct name_process *out);
/* A copy of all processes of one job (keeper 0: of all jobs) at one moment, in no order. Returns their
 * number, or -errno with *out NULL; the caller frees *out. */
must_check int names_snapshot(struct names *names, struct rpid keeper, struct name_process **out);
/* The number of processes of one job, or (keeper 0) of all, or -errno. */
must_check int names_process_count(struct names *names, struct rpid keeper);

/* ---- numbers ---- */
/* What names_real() returns for a virtual number that no process has while another process has the same real
 * number. */
#define NAMES_NOBODY 0x7fffffff

/* Translate a virtual number to a real one and back; a number that has not diverged stays the same, also
 * negative and zero ones. Lock-free: called on every translated system call. */
struct rpid names_real(struct names *names, struct vpid vpid);
struct vpid names_virtual(struct names *names, struct rpid rpid);

/* The virtual number of the parent of `rpid`. `ppid` is the parent in the kernel: the keeper, if the parent
 * is on another host. */
struct vpid names_parent(struct names *names, struct rpid rpid, struct rpid ppid);

/* Called for every process or thread started under supervision. Returns its virtual number: the real one,
 * unless a diverged object or another host has that; then another free one, recorded as diverged. */
must_check int names_number_born(struct names *names, struct rpid rpid, struct rpid keeper, struct vpid *out);

/* Binds a given virtual number to a real one (restore). -EEXIST if the virtual number is bound to, or is
 * itself the live real number of, another process or thread of the name space. */
must_check int names_number_bind(struct names *names, struct vpid vpid, struct rpid rpid, struct rpid keeper);
/* Releases a diverged number: its process or thread has ended, or its parent has waited for it. It is still
 * translated for some seconds, and as long as it may be needed (a zombie that its parent has not waited for,
 * the SIGCHLD that reports it, a group whose leader is gone). It can be bound again at once. No effect on a
 * number that has not diverged, or is no longer bound to `rpid`. */
void names_number_release(struct names *names, struct vpid vpid, struct rpid rpid);

/* ---- a rollback: new processes take the numbers of old ones, which stand still ---- */
struct name_number {
	struct vpid vpid;
	struct rpid rpid;
};
/* Sets these numbers of processes, threads and groups of the job aside, with `whole` all others of the job as
 * well, so that they can be bound again. The entries of set-aside processes stay: names_snapshot() shows them
 * and not those of the processes that have their numbers. To names_virtual() they are outside the name space.
 * What is bound to the job from now on is provisional. Everything else knows a process that is set aside by
 * its vpid and rpid together. 0 or -errno, then nothing is set aside. */
must_check int names_replace_begin(struct names *names, struct rpid keeper, const struct name_number *numbers,
				   size_t n, bool whole);
/* Ends it in one step: with `committed` what was set aside is forgotten, else it has its numbers again, and
 * what was bound since is forgotten. No effect if nothing is set aside. */
void names_replace_end(struct names *names, struct rpid keeper, bool committed);
/* As names_process_get(), for the process with these two numbers, set aside or not. */
must_check int names_process_get_real(struct names *names, struct vpid vpid, struct rpid rpid,
				      struct name_process *out);

/* ---- ids of System V objects, which diverge when a restore creates the object again ---- */
enum names_ipc { NAMES_IPC_SHM, NAMES_IPC_SEM, NAMES_IPC_MSG, NAMES_IPC_KINDS };
/* Lock-free. An id that has not diverged stays the same; one that is only the real id of another object gives
 * -1, which no object has. */
int32_t names_ipc_real(struct names *names, enum names_ipc kind, int32_t virtual);
int32_t names_ipc_virtual(struct names *names, enum names_ipc kind, int32_t real);
/* Returns the virtual id of an object that the program has created or found: the real id unless that is
 * taken; then another one, which is recorded. */
must_check int names_ipc_born(struct names *names, enum names_ipc kind, int32_t real, struct rpid keeper,
			      int32_t *out);
/* Binds an id after a restore, replacing an earlier binding. */
must_check int names_ipc_bind(struct names *names, enum names_ipc kind, int32_t virtual, int32_t real,
			      struct rpid keeper);
/* The object has been removed. */
void names_ipc_release(struct names *names, enum names_ipc kind, int32_t virtual);

/* ---- other hosts: this host's copy of the cluster's names, written by pbeamd, read by scips ---- */
/* Process numbers are held in blocks; the host that holds a block gives its numbers to new processes. */
#define NAMES_BLOCK_BITS 10
#define NAMES_BLOCKS	 8192 /* of 1,024 numbers, up to 2^23 */

/* This host belongs to a cluster, under the name `host`. Until names_cluster_begin() it still holds all
 * blocks, but new processes wait some seconds for that call. NULL: the host is in no cluster and holds all
 * blocks. A new name discards everything recorded under the old one; the same name changes nothing. */
must_check int names_cluster_set(struct names *names, const char *host);
/* From now on this host holds only the blocks set with names_block_set(). */
void names_cluster_begin(struct names *names);
bool names_cluster_begun(struct names *names);
/* True in a cluster, begun or not. `host` (may be NULL) receives this host's name. */
bool names_cluster(struct names *names, char host[NAME_TEXT_MAX]);
/* `host` holds the block; NULL: no host. */
must_check int names_block_set(struct names *names, uint32_t block, const char *host);
/* Finds the host that holds the block of a number. 0, or -ENOENT without a cluster. */
must_check int names_block_find(struct names *names, struct vpid vpid, char host[NAME_TEXT_MAX]);
/* The numbers in this host's blocks above the kernel's range: how many are in use, and how many there are. */
void names_block_usage(struct names *names, uint32_t *used, uint32_t *held);

/* The process is on `host`, which may be this one, and not on the host that holds its number's block. */
must_check int names_place_set(struct names *names, struct vpid vpid, const char *host);
void names_place_remove(struct names *names, struct vpid vpid);
/* Removes the places for which `keep` returns false. */
void names_place_sweep(struct names *names, bool (*keep)(void *arg, struct vpid vpid), void *arg);
/* Returns 0 and the host if the process, when it exists, is on another host: by its place, else by its block.
 * -ENOENT: it is on this host, or unknown. A group (negative) is where its leader is. Lock-free, and without
 * a cluster a single load. */
must_check int names_place_find(struct names *names, struct vpid vpid, char host[NAME_TEXT_MAX]);

union name_sockaddr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};
/* A bound transport address whose socket has moved to another host. */
struct name_address {
	int protocol;		  /* IPPROTO_TCP, IPPROTO_UDP */
	union name_sockaddr name; /* when recorded: as it was bound; when found: an address that peers use,
				     never a wildcard */
	union name_sockaddr real;
	char host[NAME_TEXT_MAX]; /* the host of `real` */
	char born[NAME_TEXT_MAX]; /* the host that `name` belongs to: each host has its own wildcard and
				     loopback addresses */
	struct vpid vpid;	  /* the process that owns it */
	bool caller;  /* local to this host, not in the registry: a peer that reaches a program here through a
			 bridge. Found only by `real`, unless it is UDP */
	bool passing; /* of a UDP caller: found only by `real` nevertheless */
	uint16_t scope; /* of a UDP caller: the port that it sends to, whose socket alone finds it by its
			   name; else 0 */
};
/* Records an address, replacing that of the same protocol, name and `born`. `aliases`: the addresses that
 * peers use, the preferred one first; none: the name itself. -ENOSPC. Addresses are compared by family,
 * address and port; a v4-mapped IPv6 address equals the IPv4 one. */
must_check int names_address_set(struct names *names, const struct name_address *address,
				 const union name_sockaddr *aliases, size_t n);
/* Removes the record with the same protocol, name, `born` and `caller`. */
void names_address_remove(struct names *names, const struct name_address *address);
/* Finds a record by an address that peers use; `born` is the host of the peer, NULL for this one.
 * names_address_find_real() finds it by the real address, with the preferred alias as its name. 0 or -ENOENT.
 * Lock-free, and with nothing recorded a single load. */
must_check int names_address_find(struct names *names, int protocol, const struct sockaddr *name,
				  const char *born, struct name_address *out);
/* Finds a caller of the socket with this port by the caller's name. */
must_check int names_address_find_caller(struct names *names, const struct sockaddr *name, uint16_t scope,
					 struct name_address *out);
must_check int names_address_find_real(struct names *names, int protocol, const struct sockaddr *real,
				       struct name_address *out);
/* False if nothing is recorded. Cheap. */
bool names_address_any(struct names *names);
/* Removes all records from the registry, with `callers` the callers as well. */
void names_address_clear(struct names *names, bool callers);

/* ---- sockets whose connection was made again: the results of getsockname() and getpeername(), by inode
 * ---- */
struct name_socket {
	union name_sockaddr own, peer; /* family 0: as the kernel reports; a listener's peer: the own address
					  of its accepted connections */
	char born[NAME_TEXT_MAX]; /* of a bound socket: the host that `own` belongs to; "" for connections */
};
must_check int names_socket_set(struct names *names, uint64_t ino, const struct name_socket *name);
/* 0, or -ENOENT: the kernel's addresses are right. */
must_check int names_socket_get(struct names *names, uint64_t ino, struct name_socket *out);
void names_socket_forget(struct names *names, uint64_t ino);
/* False if there is none. Cheap. */
bool names_socket_any(struct names *names);

/* Locks the table against other processes. Held for microseconds, never while waiting. -errno if the table
 * cannot be repaired. */
must_check int names_lock(struct names *names);
void names_unlock(struct names *names);

/* Returns the number of changes of the map of diverged numbers; 0: no number has diverged (a cheap test
 * for hot paths). */
uint64_t names_generation(struct names *names);

#endif
