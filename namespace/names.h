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
	bool diverged; /* its own vpid != rpid, or it was restored: it runs behind the restored filter */
};

/* One job: what one `scip run` or `scip restore` started. */
struct name_job {
	struct rpid keeper;
	struct vpid root;
	char name[NAME_TEXT_MAX]; /* --name, or "" */
	char uuid[40];		  /* of the job's first start; stays through rollback */
	uint64_t interval_ns;	  /* --interval, 0 for none */
	uint32_t keep;		  /* --keep */
	uint64_t start_ns;
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
/* Up to `max` jobs into `out`; returns how many there are. */
int names_job_list(struct names *names, struct name_job *out, int max);

/* ---- processes ---- */
/* Registers a process. -EEXIST if another live process has its vpid. */
must_check int names_process_add(struct names *names, const struct name_process *process);
/* Replaces the entry of process->vpid. -ENOENT if it is not there. */
must_check int names_process_update(struct names *names, const struct name_process *process);
void names_process_remove(struct names *names, struct vpid vpid);
must_check int names_process_get(struct names *names, struct vpid vpid, struct name_process *out);
must_check int names_process_find_real(struct names *names, struct rpid rpid, struct name_process *out);
/* Up to `max` processes (of one job, or of all with keeper 0) into `out`; returns how many there are. */
int names_process_list(struct names *names, struct rpid keeper, struct name_process *out, int max);

/* ---- numbers ---- */
/* What names_real() gives for a name that nothing has although the real number is something else's: no such
 * process. */
#define NAMES_NOBODY 0x7fffffff

/* Real for virtual and back; a number that did not diverge gives itself. Negative and zero numbers too. These
 * take no lock: they are called on every translated system call. */
struct rpid names_real(struct names *names, struct vpid vpid);
struct vpid names_virtual(struct names *names, struct rpid rpid);

/* Called for every new real number (process or thread) born under supervision: returns the virtual number it
 * shall have: its own, unless that is claimed by a diverged object; then another free one, recorded as
 * diverged. */
must_check int names_number_born(struct names *names, struct rpid rpid, struct rpid keeper, struct vpid *out);

/* Binds a given virtual number to a real one (restore). -EEXIST if the virtual number is bound to, or is
 * itself the live real number of, something else of the name space. */
must_check int names_number_bind(struct names *names, struct vpid vpid, struct rpid rpid, struct rpid keeper);
/* Gives up a diverged number: its process or thread has ended, or its parent has waited for it. It stays
 * known for some seconds, and as long as somebody may still ask (a zombie that its parent has not waited for,
 * the SIGCHLD that tells of it, a group whose leader is gone); whoever binds it anew gets it. No effect on a
 * number that did not diverge. */
void names_number_release(struct names *names, struct vpid vpid);

/* ---- ids of System V shared memory, diverged where a restore had to make a segment anew ---- */
/* Lock-free. An id that did not diverge gives itself; one that is only another's real id gives -1, which no
 * segment has. */
int32_t names_shm_real(struct names *names, int32_t virtual);
int32_t names_shm_virtual(struct names *names, int32_t real);
/* A segment that the program has made or found: its own number unless that is claimed; then another,
 * recorded. */
must_check int names_shm_born(struct names *names, int32_t real, struct rpid keeper, int32_t *out);
/* After a restore: whatever was called so before is forgotten. */
must_check int names_shm_bind(struct names *names, int32_t virtual, int32_t real, struct rpid keeper);
/* The segment is removed. */
void names_shm_release(struct names *names, int32_t virtual);

/* For what several scips must not do at once. Held for microseconds, never over a wait. -errno when the table
 * is beyond repair. */
must_check int names_lock(struct names *names);
void names_unlock(struct names *names);

/* How often the map of diverged numbers changed: 0 means nothing has diverged (the cheap test on hot paths).
 */
uint64_t names_generation(struct names *names);

#endif
