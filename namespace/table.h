/*
 * The layout of the name table's file and what its parts share. Private to namespace/.
 *
 * One file, made whole under another name and linked into place, so that what is there is complete; all of
 * its blocks are allocated at once, so that a full file system is an error when it is made and never a SIGBUS
 * later. Every mapping holds a shared flock: who gets an exclusive one knows that nobody else has it mapped.
 *
 * Writers hold the robust mutex. A writer that dies inside leaves it EOWNERDEAD; the next one repairs:
 * process entries are whole or not by their `used` word, written last; the maps of processes are rebuilt from
 * them; of the two maps of numbers the forward one (virtual -> real) is the truth, written first, and the
 * backward one is made to agree.
 *
 * Readers of numbers take no lock: a map is open addressing over 64-bit words {key, value}, each written by
 * one store, never moved. A reader walks from the key's place to the first empty word; a removed one is a
 * tombstone, turned into empty only where the next word is empty, which no walk can notice.
 */
#ifndef NAMESPACE_TABLE_H
#define NAMESPACE_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "namespace/names.h"

#define TABLE_MAGIC	 0x6d616e6d61656250ull /* "Pbeamnam" */
#define TABLE_VERSION	 5u
#define TABLE_JOBS	 1024u
#define TABLE_PROCESSES	 16384u
#define TABLE_NUMBERS	 65536u
#define RELEASED_MAX	 4096u /* numbers given up before they are looked through ... */
#define RELEASED_AGE	 3u    /* ... for those that long ago, in seconds */
#define MAP_BITS	 17u   /* twice what any map holds; a power of two */
#define MAP_SLOTS	 (1u << MAP_BITS)
#define SHM_BITS	 13u /* of the maps of shared memory ids, for up to half as many */
#define SHM_SLOTS	 (1u << SHM_BITS)

/* Virtual numbers that we choose lie above every number that the kernel can give (PID_MAX_LIMIT, 2^22), so
 * that they can never meet a real one, and below 2^30, so that they fit a futex word. */
#define NUMBER_OWN_FIRST 4194305
#define NUMBER_OWN_LAST	 8388607
/* What names_real() gives for a virtual number that nothing has although the real one is in use: no such
 * process. */
#define NUMBER_NOBODY	 0x7fffffff

/* Shared memory ids that we choose: the highest, which the kernel gives last of all. */
#define SHM_OWN_FIRST	 0x7fff0000
#define SHM_OWN_LAST	 0x7ffffffe

#define MAP_EMPTY	 0ull
#define MAP_TOMBSTONE	 0xffffffffull /* key 0xffffffff, no number */

struct map {
	_Atomic uint64_t slots[MAP_SLOTS]; /* key in the low, value in the high half */
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
	uint32_t reserved;
	uint64_t start_ticks; /* of the keeper */
	struct name_job j;
};

struct table {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* of the whole file; changes with every change of the layout */
	char boot_id[40];
	pthread_mutex_t mutex;
	_Atomic uint64_t generation;
	uint32_t nprocesses, nnumbers, nreleased;
	uint32_t swept;	  /* when those given up were looked through, in seconds since boot */
	int32_t next_own; /* where the search for a number of our own goes on */
	uint32_t repairs; /* how often a dead writer was cleaned up after */
	struct table_job jobs[TABLE_JOBS];
	struct table_process processes[TABLE_PROCESSES];
	struct map by_vpid;	      /* vpid -> slot + 1 */
	struct map by_rpid;	      /* rpid -> slot + 1 */
	struct map forward;	      /* diverged: virtual -> real */
	struct map backward;	      /* diverged: real -> virtual */
	int32_t owner[MAP_SLOTS];     /* of the forward slot: the keeper */
	uint32_t released[MAP_SLOTS]; /* when it was given up, in seconds since boot; 0: it was not */
	_Atomic uint64_t shm_generation;
	uint32_t nshm;
	int32_t next_shm;
	_Atomic uint64_t shm_forward[SHM_SLOTS]; /* diverged ids of System V shared memory, each + 1: virtual
						    -> real */
	_Atomic uint64_t shm_backward[SHM_SLOTS];
	int32_t shm_owner[SHM_SLOTS]; /* of the forward slot: the keeper */
};

struct names {
	struct table *table;
	int fd;		   /* holds the shared flock */
	bool test_diverge; /* PBEAM_TEST_DIVERGE: give every newborn a number that is not its own */
};

/* Locks, repairing after a writer that died. -errno when the table is beyond repair. */
must_check int table_lock(struct names *names);
void table_unlock(struct names *names);
/* Start time of a process in clock ticks since boot, 0 when there is none. */
uint64_t table_start_ticks(int32_t pid);
/* True if the process that was registered with that start time is there (perhaps as a zombie). */
bool table_alive(int32_t pid, uint64_t start_ticks);
/* Drops the entries whose process, or whose keeper, is gone. */
void table_sweep(struct table *table);
void table_repair_processes(struct table *table);
void table_repair_numbers(struct table *table);
/* Drops the numbers that a job's keeper has claimed. */
void table_drop_numbers(struct table *table, int32_t keeper);
void table_drop_shm(struct table *table, int32_t keeper);
void table_repair_shm(struct table *table);

/* Open addressing over 1 << bits words. The value of a key, 0 when it is not there; lock-free. */
uint32_t slots_get(const _Atomic uint64_t *slots, unsigned bits, uint32_t key);
/* As slots_get(), giving the slot, or -1. */
int slots_find(const _Atomic uint64_t *slots, unsigned bits, uint32_t key);
/* Sets a key's value; its slot, or -ENOSPC. Under the lock. */
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
