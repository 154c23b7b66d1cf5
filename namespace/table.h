/*
 * The layout of the name table's file, and definitions shared by its parts. Private to namespace/.
 *
 * The file is created whole under another name and linked into place, so that a file with this name is
 * complete. All of its blocks are allocated at once, so that a full file system is an error at creation and
 * never a SIGBUS later. Every mapping holds a shared flock: a process with an exclusive one knows that no
 * other process has the file mapped.
 *
 * Writers hold the robust mutex. After a writer that dies inside, the lock reports EOWNERDEAD, and the next
 * writer repairs the table. Entries are valid if their `used` word, written last, is set; the maps of
 * processes are rebuilt from them. A changed entry is written to a free slot before the old one is cleared:
 * one slot of each kind is kept free for that. Of the two maps of numbers the forward one (virtual -> real),
 * written first, is correct, and the backward one is made to agree. Owner and release of a number are stored
 * before the word of the map that makes them count.
 * So a writer may be killed after any store: each name has the value from before or after the change
 * (tests/unit/names_model_test.c; docs/TESTING.md has the invariants).
 *
 * Readers of numbers take no lock: a map is open addressing over 64-bit words {key, value}, each written by
 * one store, never moved. A reader searches from the key's place to the first empty word. A removed word is a
 * tombstone; it becomes empty only if the next word is empty, which no search can notice.
 *
 * Frozen. Programs of another version read a table too, without the lock (names_others.c). For them these
 * parts never change from version 13 on: struct table_head, and the first TABLE_JOB_FROZEN and
 * TABLE_PROCESS_FROZEN bytes of an entry. New fields of an entry come behind these; anything else may change
 * with TABLE_VERSION.
 */
#ifndef NAMESPACE_TABLE_H
#define NAMESPACE_TABLE_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "namespace/names.h"

#define TABLE_MAGIC	 0x6d616e6d61656250ull /* "Pbeamnam" */
#define TABLE_VERSION	 13u
#define TABLE_FILE	 "names" /* in the runtime directory; version 12: this, later ones: this.VERSION */
#define TABLE_JOBS	 1024u
#define TABLE_PROCESSES	 16384u
#define TABLE_NUMBERS	 65536u
#define RELEASED_MAX	 4096u /* after this many releases, released numbers are removed ... */
#define RELEASED_AGE	 3u    /* ... if they were released so many seconds ago */
#define MAP_BITS	 17u   /* twice the entries of any map; a power of two */
#define MAP_SLOTS	 (1u << MAP_BITS)
#define IPC_BITS	 13u /* of the maps of System V ids, each for up to half as many */
#define IPC_SLOTS	 (1u << IPC_BITS)

/* Virtual numbers that we choose lie above every number that the kernel can give (PID_MAX_LIMIT, 2^22), so
 * that they can never meet a real one, and below 2^30, so that they fit a futex word. */
#define NUMBER_OWN_FIRST 4194305
#define NUMBER_OWN_LAST	 8388607
#define NUMBER_OWN_PARTS 8u /* the search in tables of different versions begins in different parts */
#define NUMBER_OWN_PART	 524288u
/* What names_real() returns for a virtual number that no object has although the real number is in use: no
 * such process. */
#define NUMBER_NOBODY	 0x7fffffff

/* System V ids that we choose: the highest, which the kernel uses last. */
#define IPC_OWN_FIRST	 0x7fff0000
#define IPC_OWN_LAST	 0x7ffffffe

/* A number that is set aside (names_replace.c) has this bit as well. */
#define NUMBER_ASIDE	 0x1000000

#define MAP_EMPTY	 0ull
#define MAP_TOMBSTONE	 0xffffffffull /* key 0xffffffff, no number */

struct map {
	_Atomic uint64_t slots[MAP_SLOTS]; /* key in the low, value in the high half */
};

/* Diverged System V ids of one kind, each + 1. */
struct ipc_map {
	_Atomic uint64_t generation;
	uint32_t n;
	int32_t next;			     /* where the search for a free id continues */
	_Atomic uint64_t forward[IPC_SLOTS]; /* virtual -> real */
	_Atomic uint64_t backward[IPC_SLOTS];
	int32_t owner[IPC_SLOTS]; /* of the forward slot: the keeper */
};

#define TABLE_HOSTS	256u
#define HOST_OWN	1u  /* index of this host */
#define PLACE_BITS	15u /* of the map of places, for up to half as many */
#define PLACE_SLOTS	(1u << PLACE_BITS)
#define TABLE_ADDRESSES 4096u
#define TABLE_SOCKETS	8192u
#define ADDRESS_HEADS	1024u

enum { CLUSTER_NONE, CLUSTER_JOINING, CLUSTER_JOINED };

struct table_address {
	_Atomic uint32_t used;
	uint32_t host, born;	       /* indices */
	uint32_t next_name, next_real; /* index + 1 of the next of the same hash */
	uint32_t first;		       /* by which the real address is found */
	struct name_address a;	       /* without its hosts; the name as it was bound */
	union name_sockaddr alias;
};

/* What this host knows of other hosts. Host names are only added, so that an index stays valid. Addresses
 * are read under a sequence number, odd while they are being changed; a reader that notices a change tries
 * again. */
struct table_cluster {
	_Atomic uint32_t active, nhosts;	/* CLUSTER_* */
	_Atomic uint64_t wait_until_ns;		/* while joining: how long newborns wait for numbers */
	char hosts[TABLE_HOSTS][NAME_TEXT_MAX]; /* 0: none */
	_Atomic uint16_t blocks[NAMES_BLOCKS];	/* block -> host index */
	_Atomic uint64_t places[PLACE_SLOTS];	/* vpid -> host index */
	uint32_t nplaces;
	_Atomic uint32_t naddresses, sequence;
	uint16_t by_name[ADDRESS_HEADS], by_real[ADDRESS_HEADS]; /* index + 1 */
	struct table_address addresses[TABLE_ADDRESSES];
};

struct table_socket {
	_Atomic uint64_t ino; /* 0: free */
	struct name_socket name;
};

struct table_process {
	_Atomic uint32_t used;
	uint32_t reserved;
	uint64_t start_ticks; /* of rpid, field 22 of its stat: tells it from a later process of the same
				 number */
	struct name_process p;
};

struct table_job {
	_Atomic uint32_t used;
	uint32_t replacing; /* numbers of the job may be set aside; those bound now have the owner -keeper */
	uint64_t start_ticks; /* of the keeper */
	struct name_job j;
};

/* Where the entries are: offset of the array, bytes from one entry to the next, number of entries. */
struct table_shape {
	uint32_t jobs_at, job_stride, job_room;
	uint32_t processes_at, process_stride, process_room;
};

/* The beginning of the file. Frozen. */
struct table_head {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* of the whole file; changes with every change of the layout */
	char boot_id[40];
	uint64_t pid_namespace; /* the inode of /proc/self/ns/pid */
	struct table_shape shape;
};

/* The head of version 12. */
struct table_head_before {
	uint64_t magic;
	uint32_t version, size;
	char boot_id[40];
	uint64_t pid_namespace;
};

struct table {
	struct table_head head;
	pthread_mutex_t mutex;
	_Atomic uint64_t generation, paths_generation;
	uint32_t nprocesses, nnumbers, nreleased;
	uint32_t swept;	  /* time when released numbers were last removed, in seconds since boot */
	int32_t next_own; /* where the search for a free number continues */
	uint32_t repairs; /* how often the table was repaired after a dead writer */
	uint32_t free_process,
		next_process; /* slots of `processes`: released last; where the search continues */
	struct table_job jobs[TABLE_JOBS];
	struct table_process processes[TABLE_PROCESSES];
	struct map by_vpid;	      /* vpid -> slot + 1 */
	struct map by_rpid;	      /* rpid -> slot + 1 */
	struct map forward;	      /* diverged: virtual -> real */
	struct map backward;	      /* diverged: real -> virtual */
	int32_t owner[MAP_SLOTS];     /* of the forward slot: the keeper */
	uint32_t released[MAP_SLOTS]; /* time when it was released, in seconds since boot; 0: it was not */
	struct ipc_map ipc[NAMES_IPC_KINDS];
	struct table_cluster cluster;
	_Atomic uint32_t has_sockets;
	struct table_socket sockets[TABLE_SOCKETS];
};

#define TABLE_JOB_FROZEN     288u
#define TABLE_PROCESS_FROZEN 72u
_Static_assert(sizeof(struct table_head) == 88, "frozen");
_Static_assert(offsetof(struct table_job, start_ticks) == 8 && offsetof(struct table_job, j) == 16 &&
		       offsetof(struct name_job, root) == 4 && offsetof(struct name_job, name) == 8 &&
		       offsetof(struct name_job, uuid) == 72 && offsetof(struct name_job, group) == 112 &&
		       offsetof(struct name_job, interval_ns) == 176 &&
		       offsetof(struct name_job, keep) == 184 && offsetof(struct name_job, start_ns) == 192 &&
		       offsetof(struct name_job, home) == 200 && offsetof(struct name_job, spread) == 264 &&
		       sizeof(struct table_job) >= TABLE_JOB_FROZEN,
	       "frozen");
_Static_assert(offsetof(struct table_process, start_ticks) == 8 && offsetof(struct table_process, p) == 16 &&
		       offsetof(struct name_process, rpid) == 4 &&
		       offsetof(struct name_process, parent) == 8 &&
		       offsetof(struct name_process, scip) == 12 &&
		       offsetof(struct name_process, keeper) == 16 &&
		       offsetof(struct name_process, start_ns) == 24 &&
		       offsetof(struct name_process, state) == 32 &&
		       offsetof(struct name_process, diverged) == 50 &&
		       sizeof(struct table_process) >= TABLE_PROCESS_FROZEN,
	       "frozen");

struct names {
	struct table *table;
	int fd;		   /* holds the shared flock */
	bool test_diverge; /* PBEAM_TEST_DIVERGE: gives every newborn a number that is not its own */
	bool others;	   /* names_include_others() */
	bool limited;	   /* names_limit_wait() */
	int32_t stuck; /* the thread that did not release the lock in time, when last waited for; 0 none */
};

/* The version that a file name in the runtime directory stands for; false if it is no table's. */
bool table_file_version(const char *name, uint32_t *version);
/* The head of a new table. */
void table_head_fill(struct table_head *head, uint32_t version);

/* Locks the table, and repairs it if a writer has died. -ETIMEDOUT after names_limit_wait() if the holder
 * does not release it, or -errno if it cannot be repaired. */
must_check int table_lock(struct names *names);
void table_unlock(struct names *names);
/* Reads the start time of a process in clock ticks since boot. -ENOENT or -ESRCH if there is no such process;
 * other errors (no descriptor is free) say nothing about it. */
must_check int table_start_ticks(int32_t pid, uint64_t *ticks);
/* As table_start_ticks(), with the letter of its state. The time is never 0. */
must_check int table_start_and_state(int32_t pid, uint64_t *ticks, char *state);
/* True if the process registered with that start time exists, perhaps as a zombie, or if that cannot be found
 * out: what is forgotten is lost. */
bool table_alive(int32_t pid, uint64_t start_ticks);
/* As table_alive(), but false for a zombie. For keepers, since an orphan may be reaped late. */
bool table_runs(int32_t pid, uint64_t start_ticks);
/* Makes RUNTIME/names.VERSION, which may not be there. 0 or -errno. */
must_check int table_place(uint32_t version, char path[PATH_MAX + 32]);
/* True if `path` is the file behind `fd`. */
bool table_is_file(int fd, const char *path);
/* Opens a table that a running program has published (names_publish.c). -ENOENT. */
must_check int table_open_published(uint32_t version);
/* Repairs the table after a writer has died. Under the lock. */
void table_repair(struct table *table);
/* Returns the job of a keeper, NULL if there is none. Under the lock. */
struct table_job *table_find_job(struct table *table, int32_t keeper);
bool table_has_jobs(const struct table *table);
/* Enters a process into the maps of numbers. 0 or -ENOSPC. Under the lock. */
must_check int table_link_process(struct table *table, struct table_process *entry);

/* ---- names_others.c: tables of other versions. -errno if they cannot be read ---- */
/* Append to the array of `n` at *jobs, *processes, which the caller frees. Return the new number. */
must_check int others_append_jobs(const struct names *names, struct name_job **jobs, int n);
/* keeper 0: of all. */
must_check int others_append_processes(const struct names *names, struct rpid keeper,
				       struct name_process **processes, int n);
/* 0 or -ENOENT. */
must_check int others_find_job(const struct names *names, struct rpid keeper, struct name_job *out);
must_check int others_find_process(const struct names *names, struct vpid vpid, struct name_process *out);
/* -EEXIST with the sentence if a job of another version has the name. */
must_check int others_check_name(const struct names *names, const char *name, struct err *err);

static inline bool table_used(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire) != 0;
}
static inline bool number_is_aside(uint32_t virtual)
{
	return virtual & NUMBER_ASIDE;
}
/* The number that a set-aside one was. */
static inline uint32_t number_plain(uint32_t virtual)
{
	return virtual & ~(uint32_t)NUMBER_ASIDE;
}
/* Removes a diverged number. Under the lock. */
void table_number_drop(struct table *table, uint32_t virtual, uint32_t real);
/* The process with these two numbers, set aside or not, or NULL. Under the lock. */
struct table_process *table_find_process(struct table *table, int32_t virtual, int32_t real);
/* Removes a process from table and maps. Under the lock. */
void table_unlink_process(struct table *table, struct table_process *entry);
/* Removes the numbers that a job's keeper has claimed. */
void table_drop_numbers(struct table *table, int32_t keeper);
void table_drop_ipc(struct table *table, int32_t keeper);
/* Returns the index of a host, which is added if necessary, or -errno. Under the lock. */
must_check int table_host_index(struct table_cluster *cluster, const char *host);
/* True if a number may be given to a newborn here: there is no cluster, or this host holds its block and
 * no process that has left has it. */
bool table_number_ours(const struct table *table, uint32_t n);
/* While this host is joining a cluster: waits for its numbers, for some seconds. */
void table_wait_joined(const struct table *table);
bool table_block_ours(const struct table *table, uint32_t n);

/* Open addressing over 1 << bits words. Returns the value of a key, 0 if it is not in the map; lock-free. */
uint32_t slots_get(const _Atomic uint64_t *slots, unsigned bits, uint32_t key);
/* As slots_get(), but returns the slot, or -1. */
int slots_find(const _Atomic uint64_t *slots, unsigned bits, uint32_t key);
/* Returns the slot that a key has, or would get, or -ENOSPC. Under the lock. */
must_check int slots_place(const _Atomic uint64_t *slots, unsigned bits, uint32_t key);
/* Enters a key at its slot. What belongs to the slot in other arrays is stored before: a writer may be killed
 * between any two stores. */
static inline void slots_put(_Atomic uint64_t *slots, int at, uint32_t key, uint32_t value)
{
	atomic_store_explicit(&slots[at], (uint64_t)value << 32 | key, memory_order_release);
}
/* Sets a key's value. Returns its slot, or -ENOSPC. Under the lock. */
must_check int slots_set(_Atomic uint64_t *slots, unsigned bits, uint32_t key, uint32_t value);
void slots_remove(_Atomic uint64_t *slots, unsigned bits, uint32_t key);

static inline uint32_t map_get(const struct map *map, uint32_t key)
{
	return slots_get(map->slots, MAP_BITS, key);
}
static inline int map_find(const struct map *map, uint32_t key)
{
	return slots_find(map->slots, MAP_BITS, key);
}
must_check static inline int map_set(struct map *map, uint32_t key, uint32_t value)
{
	return slots_set(map->slots, MAP_BITS, key, value);
}
static inline void map_remove(struct map *map, uint32_t key)
{
	slots_remove(map->slots, MAP_BITS, key);
}
void map_clear(struct map *map);
static inline uint32_t map_key(uint64_t word)
{
	return (uint32_t)word;
}
static inline uint32_t map_value(uint64_t word)
{
	return (uint32_t)(word >> 32);
}
static inline bool map_used(uint64_t word)
{
	return word != MAP_EMPTY && word != MAP_TOMBSTONE;
}

#endif
