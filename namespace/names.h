/*
 * The name space: which virtual names exist and where their objects are now. Never sees a tracee.
 *
 * The local backend (names_local.c) is a table in a file under the runtime directory, mapped shared by every
 * scip, keeper and pbeamd of the user, with a robust mutex for writers. It so outlives any of them: a pbeamd
 * that is killed and started again finds all programs by mapping it. The operations are those that a
 * distributed engine can give as well: claims (atomic), compare-and-set on an entry, release, enumeration.
 *
 * Numbers: one kernel number can be a process, a thread, a process group and a session at once (struct pid),
 * so one map number <-> number serves all of these. Only diverged numbers (virtual != real) are in that map:
 * a number that is not in it means itself.
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
	NAME_STATE_BORN,    /* made by its parent, its scip not attached yet */
	NAME_STATE_RUNNING, /* supervised */
	NAME_STATE_FROZEN,  /* held for a checkpoint or a restore */
	NAME_STATE_DEAD,    /* reaped by its scip; the entry goes when the parent has waited */
	NAME_STATE_STUB,    /* it is on another host; what is here stands for it before its parent */
};

#define NAME_TEXT_MAX 64

/* One process (thread group) of the name space. */
struct name_process {
	struct vpid vpid;
	struct rpid rpid;
	struct vpid parent; /* vpid of the process that made it; 0 for the root of a job */
	struct rpid scip;   /* its supervisor, 0 while none */
	struct rpid keeper; /* the keeper of its job: jobs are named by this number */
	uint64_t start_ns;  /* CLOCK_REALTIME of its birth in the name space */
	enum name_state state;
	uint64_t unknown_calls; /* made with numbers that are not in the system call table */
	bool remote_parent;	/* `parent` is on another host; here the keeper stands in for it */
	bool undecided;		/* it stands still: only the registry, which does not answer, knows whether
				   it is to run here or on another host */
	bool diverged; /* its own vpid != rpid, or it was restored: it runs behind the restored filter */
};

/* One job: what one `scip run` or `scip restore` started. */
struct name_job {
	struct rpid keeper;
	struct vpid root;
	char name[NAME_TEXT_MAX];  /* --name, or "" */
	char uuid[40];		   /* of the job's first start; stays through rollback */
	char group[NAME_TEXT_MAX]; /* --group, or "" */
	uint64_t interval_ns;	   /* --interval, 0 for none */
	uint32_t keep;		   /* --keep */
	uint64_t start_ns;
	char home[NAME_TEXT_MAX]; /* of a part that is away from the job's console: the host that has it */
	bool spread;		  /* processes of it are, or were, on other hosts as well */
};

struct names; /* opaque: one mapping of the table */

/* Opens (makes) the user's table. The caller closes it with names_close(). */
must_check int names_open(struct names **out, struct err *err);
void names_close(struct names *names);

/* ---- jobs ---- */
must_check int names_job_add(struct names *names, const struct name_job *job,
			     struct err *err); /* -EEXIST: name in use */
must_check int names_job_update(struct names *names, const struct name_job *job);
void names_job_remove(struct names *names, struct rpid keeper); /* with all its processes and claims */
must_check int names_job_get(struct names *names, struct rpid keeper, struct name_job *out);
/* A copy of all jobs at one moment. Returns their number, or -errno with *out NULL; the caller frees *out. */
must_check int names_jobs_snapshot(struct names *names, struct name_job **out);
/* The number of jobs, or -errno. */
must_check int names_job_count(struct names *names);

/* ---- processes ---- */
/* Registers a process. -EEXIST if another live process has its vpid. */
must_check int names_process_add(struct names *names, const struct name_process *process);
/* Replaces the entry of process->vpid. -ENOENT if it is not there, or another process's by now. */
must_check int names_process_update(struct names *names, const struct name_process *process);
/* Sets its mark `undecided`. No effect on an entry that is not there. */
void names_process_mark(struct names *names, struct vpid vpid, bool undecided);
/* No effect on an entry that is another process's by now: a restored one has taken the name meanwhile. */
void names_process_remove(struct names *names, struct vpid vpid, struct rpid rpid);
/* Its parent has waited for it: its number is given up, and the entry that its scip has left for that. */
void names_process_waited(struct names *names, struct vpid vpid, struct rpid rpid);
must_check int names_process_get(struct names *names, struct vpid vpid, struct name_process *out);
must_check int names_process_find_real(struct names *names, struct rpid rpid, struct name_process *out);
/* A copy of all processes of one job (keeper 0: of all jobs) at one moment, in no order. Returns their
 * number, or -errno with *out NULL; the caller frees *out. */
must_check int names_snapshot(struct names *names, struct rpid keeper, struct name_process **out);
/* The number of processes of one job, or (keeper 0) of all, or -errno. */
must_check int names_process_count(struct names *names, struct rpid keeper);

/* ---- numbers ---- */
/* What names_real() gives for a name that nothing has although the real number is something else's: no such
 * process. */
#define NAMES_NOBODY 0x7fffffff

/* Real for virtual and back; a number that did not diverge gives itself. Negative and zero numbers too. These
 * take no lock: they are called on every translated system call. */
struct rpid names_real(struct names *names, struct vpid vpid);
struct vpid names_virtual(struct names *names, struct rpid rpid);

/* The same for the parent `ppid` of `rpid`, as the kernel has it: one on another host has the keeper there.
 */
struct vpid names_parent(struct names *names, struct rpid rpid, struct rpid ppid);

/* Called for every new real number (process or thread) born under supervision: returns the virtual number it
 * shall have: its own, unless that is claimed by a diverged object or belongs to another host; then another
 * free one, recorded as diverged. */
must_check int names_number_born(struct names *names, struct rpid rpid, struct rpid keeper, struct vpid *out);

/* Binds a given virtual number to a real one (restore). -EEXIST if the virtual number is bound to, or is
 * itself the live real number of, something else of the name space. */
must_check int names_number_bind(struct names *names, struct vpid vpid, struct rpid rpid, struct rpid keeper);
/* Gives up a diverged number: its process or thread has ended, or its parent has waited for it. It stays
 * known for some seconds, and as long as somebody may still ask (a zombie that its parent has not waited for,
 * the SIGCHLD that tells of it, a group whose leader is gone); whoever binds it anew gets it. No effect on a
 * number that did not diverge, or is bound to another than `rpid` by now. */
void names_number_release(struct names *names, struct vpid vpid, struct rpid rpid);

/* ---- ids of System V objects, diverged where a restore had to make one again ---- */
enum names_ipc { NAMES_IPC_SHM, NAMES_IPC_SEM, NAMES_IPC_MSG, NAMES_IPC_KINDS };
/* Lock-free. An id that did not diverge gives itself; one that is only another's real id gives -1, which
 * nothing has. */
int32_t names_ipc_real(struct names *names, enum names_ipc kind, int32_t virtual);
int32_t names_ipc_virtual(struct names *names, enum names_ipc kind, int32_t real);
/* An object that the program has made or found: its own number unless that is claimed; then another,
 * recorded. */
must_check int names_ipc_born(struct names *names, enum names_ipc kind, int32_t real, struct rpid keeper,
			      int32_t *out);
/* After a restore: whatever was called so before is forgotten. */
must_check int names_ipc_bind(struct names *names, enum names_ipc kind, int32_t virtual, int32_t real,
			      struct rpid keeper);
/* The object is removed. */
void names_ipc_release(struct names *names, enum names_ipc kind, int32_t virtual);

/* ---- other hosts: what this host knows of the cluster's names, written by pbeamd, looked up by scips ----
 */
/* Process numbers are held in blocks: the host that holds one gives its numbers to new processes. */
#define NAMES_BLOCK_BITS 10
#define NAMES_BLOCKS	 8192 /* of 1,024 numbers, up to 2^23 */

/* This host is one of a cluster and called `host`; until names_cluster_begin() it still holds all blocks, but
 * newborns wait some seconds for that. NULL: it is alone and holds all. What was known under another name is
 * forgotten; the same once more changes nothing. */
must_check int names_cluster_set(struct names *names, const char *host);
/* From here on it holds only the blocks that names_block_set() says. */
void names_cluster_begin(struct names *names);
bool names_cluster_begun(struct names *names);
/* True in a cluster, begun or not. `host` (may be NULL) gets what this one is called. */
bool names_cluster(struct names *names, char host[NAME_TEXT_MAX]);
/* `host` holds the block; NULL: no host. */
must_check int names_block_set(struct names *names, uint32_t block, const char *host);
/* 0 and the host that holds the block of a number (without a cluster: -ENOENT), this one or another. */
must_check int names_block_find(struct names *names, struct vpid vpid, char host[NAME_TEXT_MAX]);
/* How many numbers of this host's blocks above the kernel's range are in use, and how many it holds. */
void names_block_usage(struct names *names, uint32_t *used, uint32_t *held);

/* The process is on `host`, this one or another, and not where its number's block is held. */
must_check int names_place_set(struct names *names, struct vpid vpid, const char *host);
void names_place_remove(struct names *names, struct vpid vpid);
/* Removes those that `keep` does not want. */
void names_place_sweep(struct names *names, bool (*keep)(void *arg, struct vpid vpid), void *arg);
/* 0 and the host, when the process, if it exists, is on another host: by its place, else by its block.
 * -ENOENT: here, or nowhere that we know of. Groups (negative) as their leader. Lock-free, and without a
 * cluster one load. */
must_check int names_place_find(struct names *names, struct vpid vpid, char host[NAME_TEXT_MAX]);

union name_sockaddr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};
/* A bound transport address that is not where its name says any more. */
struct name_address {
	int protocol;		  /* IPPROTO_TCP, IPPROTO_UDP */
	union name_sockaddr name; /* given: as it was bound; found: what it is called by, never a wildcard */
	union name_sockaddr real;
	char host[NAME_TEXT_MAX]; /* where the real one is */
	char born[NAME_TEXT_MAX]; /* whose address the name is: of wildcards and the loopback each host has
				     its own */
	struct vpid vpid;	  /* whose it is */
	bool caller;	/* of this host alone, not of the registry: who calls a program here through a bridge.
			   Found by the real one only, unless it is of UDP */
	bool passing;	/* a caller's of UDP: found by the real one only all the same */
	uint16_t scope; /* a caller's of UDP: the port of the socket that it calls, which alone finds it by
			   its name; else 0 */
};
/* Records it in place of what was recorded for the same protocol, name and host of birth. `aliases`: what it
 * is called by, the first one before all others; none: its name. -ENOSPC. Addresses are compared by family,
 * address and port, an IPv4 one inside IPv6 as the IPv4 one. */
must_check int names_address_set(struct names *names, const struct name_address *address,
				 const union name_sockaddr *aliases, size_t n);
/* What was recorded for its protocol, name, host of birth and `caller`. */
void names_address_remove(struct names *names, const struct name_address *address);
/* By what it is called, which gives the real one: `born` is the host of whoever calls, NULL for this one. By
 * the real one, which gives the first name. 0 or -ENOENT. Lock-free, and where nothing is recorded one load.
 */
must_check int names_address_find(struct names *names, int protocol, const struct sockaddr *name,
				  const char *born, struct name_address *out);
/* By the name of a caller of the socket with this port. */
must_check int names_address_find_caller(struct names *names, const struct sockaddr *name, uint16_t scope,
					 struct name_address *out);
must_check int names_address_find_real(struct names *names, int protocol, const struct sockaddr *real,
				       struct name_address *out);
/* False: nothing is recorded, the cheap test. */
bool names_address_any(struct names *names);
/* Forgets what comes from the registry, with `callers` those too. */
void names_address_clear(struct names *names, bool callers);

/* ---- sockets whose connection was made anew: what getsockname() and getpeername() go on saying. By the
 * inode ----
 */
struct name_socket {
	union name_sockaddr own, peer; /* of family 0: as the kernel says; a listener's peer: what its
					  accepted connections call their own end */
	char born[NAME_TEXT_MAX];      /* of a bound one: whose address `own` is; "" of connections */
};
must_check int names_socket_set(struct names *names, uint64_t ino, const struct name_socket *name);
/* 0 or -ENOENT: what the kernel says is right. */
must_check int names_socket_get(struct names *names, uint64_t ino, struct name_socket *out);
void names_socket_forget(struct names *names, uint64_t ino);
/* False: there is none, the cheap test. */
bool names_socket_any(struct names *names);

/* For what several scips must not do at once. Held for microseconds, never over a wait. -errno when the table
 * is beyond repair. */
must_check int names_lock(struct names *names);
void names_unlock(struct names *names);

/* How often the map of diverged numbers changed: 0 means nothing has diverged (the cheap test on hot paths).
 */
uint64_t names_generation(struct names *names);

#endif
