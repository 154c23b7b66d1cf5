/* The name table: numbers, processes, jobs; writers killed at random moments; many writers at once;
 * damaged files. */

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "namespace/table.h"
#include "tests/unit/names_help.h"

static struct name_process process(int vpid, int rpid)
{
	return (struct name_process){.vpid = {vpid},
				     .rpid = {rpid},
				     .keeper = {getpid()},
				     .state = NAME_STATE_RUNNING,
				     .scip = {getpid()}};
}

static pid_t sleeper(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		for (;;)
			pause();
	}
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void test_identity(void **state)
{
	struct names *names = *state;
	struct vpid v;

	assert_int_equal(names_generation(names), 0);
	assert_int_equal(names_real(names, (struct vpid){42}).n, 42);
	assert_int_equal(names_virtual(names, (struct rpid){-42}).n, -42);
	assert_int_equal(names_number_born(names, (struct rpid){42}, (struct rpid){7}, &v), 0);
	assert_int_equal(v.n, 42);
	assert_int_equal(names_generation(names), 0);
}

static void test_bind(void **state)
{
	struct names *names = *state;
	pid_t a = sleeper(), b = sleeper();
	struct rpid keeper = {getpid()};
	struct vpid v;

	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){a}, keeper), 0);
	assert_true(names_generation(names) > 0);
	assert_int_equal(names_real(names, (struct vpid){100}).n, a);
	assert_int_equal(names_real(names, (struct vpid){-100}).n, -a);
	assert_int_equal(names_virtual(names, (struct rpid){a}).n, 100);
	assert_int_equal(names_virtual(names, (struct rpid){-a}).n, -100);
	assert_int_equal(names_real(names, (struct vpid){-1}).n, -1);
	assert_int_equal(names_real(names, (struct vpid){0}).n, 0);
	/* the real number of a process with another name means no process; a stranger with a taken number
	 * has no name */
	assert_int_equal(names_real(names, (struct vpid){a}).n, NAMES_NOBODY);
	assert_int_equal(names_virtual(names, (struct rpid){100}).n, 0);
	/* taken while it lives, free once it has ended */
	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){b}, keeper), -EEXIST);
	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){a}, keeper), 0);
	end(a);
	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){b}, keeper), 0);
	assert_int_equal(names_real(names, (struct vpid){100}).n, b);
	assert_int_equal(names_virtual(names, (struct rpid){a}).n, a);
	/* a newborn whose number is claimed gets another one */
	assert_int_equal(names_number_born(names, (struct rpid){100}, keeper, &v), 0);
	assert_true(v.n >= NUMBER_OWN_FIRST);
	assert_int_equal(names_real(names, v).n, 100);
	/* a reused real number releases its old name */
	assert_int_equal(names_number_born(names, (struct rpid){b}, keeper, &v), 0);
	assert_int_equal(v.n, b);
	assert_int_equal(names_real(names, (struct vpid){100}).n, NAMES_NOBODY);
	end(b);
	assert_int_equal(names_number_bind(names, (struct vpid){0}, (struct rpid){5}, keeper), -EINVAL);
	assert_int_equal(names_number_bind(names, (struct vpid){5}, (struct rpid){-5}, keeper), -EINVAL);
}

static void test_bind_to_itself(void **state)
{
	struct names *names = *state;
	pid_t a = sleeper();
	struct rpid keeper = {getpid()};

	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){a}, keeper), 0);
	assert_int_equal(names_number_bind(names, (struct vpid){a}, (struct rpid){a}, keeper), 0);
	assert_int_equal(names_real(names, (struct vpid){a}).n, a);
	assert_int_equal(names_real(names, (struct vpid){100}).n, 100);
	end(a);
}

static void test_bind_against_born(void **state)
{
	struct names *names = *state;
	pid_t a = sleeper(), b = sleeper();
	struct name_process p = process(a, a);

	assert_int_equal(names_process_add(names, &p), 0);
	assert_int_equal(names_number_bind(names, p.vpid, (struct rpid){b}, p.keeper), -EEXIST);
	end(a);
	p.scip.n = 0;
	assert_int_equal(names_process_update(names, &p), 0);
	assert_int_equal(names_number_bind(names, p.vpid, (struct rpid){b}, p.keeper), 0);
	end(b);
}

/* A group outlives its leader: the number stays until it is claimed or the group has ended. */
static void test_release(void **state)
{
	struct names *names = *state;
	pid_t leader = sleeper(), member;
	struct rpid keeper = {getpid()};

	setpgid(leader, leader);
	member = sleeper();
	setpgid(member, leader);
	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){leader}, keeper), 0);
	names_number_release(names, (struct vpid){100},
			     (struct rpid){leader}); /* reported to its scip, not yet to its parent */
	assert_int_equal(names_virtual(names, (struct rpid){leader}).n, 100);
	end(leader);
	names_number_release(
		names, (struct vpid){100},
		(struct rpid){leader}); /* the parent has waited; its SIGCHLD is still to be translated */
	assert_int_equal(names_virtual(names, (struct rpid){leader}).n, 100);
	names->table->swept -= 2 * RELEASED_AGE;
	names->table->released[map_find(&names->table->forward, 100)] -= 2 * RELEASED_AGE;
	names_number_release(names, (struct vpid){100}, (struct rpid){leader});
	assert_int_equal(names_real(names, (struct vpid){-100}).n, -leader); /* the group exists */
	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){member}, keeper), 0);
	assert_int_equal(names_real(names, (struct vpid){100}).n, member);
	end(member);
	names_number_release(names, (struct vpid){100},
			     (struct rpid){leader}); /* it belongs to another process */
	assert_int_equal(names->table->released[map_find(&names->table->forward, 100)], 0);
	names_number_release(names, (struct vpid){100}, (struct rpid){member});
	names->table->swept -= 2 * RELEASED_AGE;
	names->table->released[map_find(&names->table->forward, 100)] -= 2 * RELEASED_AGE;
	names_number_release(names, (struct vpid){100}, (struct rpid){member});
	assert_int_equal(names_real(names, (struct vpid){100}).n, 100);
	names_number_release(names, (struct vpid){100}, (struct rpid){member});
}

static void test_many_numbers(void **state)
{
	struct names *names = *state;
	struct rpid keeper = {getpid()};
	struct vpid v;

	for (int round = 0; round < 3; round++) {
		for (int i = 1; i <= (int)TABLE_NUMBERS; i++)
			assert_int_equal(names_number_bind(names, (struct vpid){1000000 + i},
							   (struct rpid){5000000 + i}, keeper),
					 0);
		for (int i = 1; i <= (int)TABLE_NUMBERS; i += 97) {
			assert_int_equal(names_real(names, (struct vpid){1000000 + i}).n, 5000000 + i);
			assert_int_equal(names_virtual(names, (struct rpid){5000000 + i}).n, 1000000 + i);
		}
		assert_int_equal(names_number_bind(names, (struct vpid){5}, (struct rpid){6000000}, keeper),
				 -ENOSPC);
		assert_int_equal(names_number_born(names, (struct rpid){1000001}, keeper, &v), -ENOSPC);
		for (int i = 1; i <= (int)TABLE_NUMBERS; i++)
			names_number_release(names, (struct vpid){1000000 + i}, (struct rpid){5000000 + i});
		table_drop_numbers(names->table, keeper.n);
		assert_int_equal(names->table->nnumbers, 0);
	}
	for (uint32_t i = 0; i < MAP_SLOTS; i++)
		assert_int_equal(names->table->forward.slots[i], MAP_EMPTY);
	/* released numbers make room for new ones */
	for (int i = 1; i <= 3 * (int)TABLE_NUMBERS; i++) {
		struct vpid next = {1000000 + i};

		assert_int_equal(names_number_bind(names, next, (struct rpid){5000000 + i}, keeper), 0);
		names_number_release(names, next, (struct rpid){5000000 + i});
	}
}

static void test_processes(void **state)
{
	struct names *names = *state;
	struct name_process *out;
	pid_t a = sleeper();
	struct name_process p = process(200, a), q;
	struct rpid all = {0}, other = {1};

	assert_int_equal(names_process_add(names, &p), 0);
	assert_int_equal(names_process_add(names, &p), -EEXIST);
	assert_int_equal(names_process_get(names, p.vpid, &q), 0);
	assert_int_equal(q.rpid.n, a);
	assert_int_equal(names_process_find_real(names, p.rpid, &q), 0);
	assert_int_equal(q.vpid.n, 200);
	assert_int_equal(names_snapshot(names, all, &out), 1);
	free(out);
	assert_int_equal(names_process_count(names, all), 1);
	assert_int_equal(names_process_count(names, other), 0);
	p.state = NAME_STATE_DEAD;
	assert_int_equal(names_process_update(names, &p), 0);
	p.state = NAME_STATE_RUNNING;
	assert_int_equal(names_process_add(names, &p), 0);
	/* without a supervisor and ended: reclaimed */
	p.scip.n = 0;
	assert_int_equal(names_process_update(names, &p), 0);
	end(a);
	assert_int_equal(names_process_count(names, all), 0);
	assert_int_equal(names_process_get(names, p.vpid, &q), -ENOENT);
	assert_int_equal(names_process_update(names, &p), -ENOENT);
	names_process_remove(names, p.vpid, p.rpid);
	for (int i = 1; i < (int)TABLE_PROCESSES; i++) {
		p = process(i, 5000000 + i);
		assert_int_equal(names_process_add(names, &p), 0);
	}
	p = process(7000000, 7000000);
	assert_int_equal(names_process_add(names, &p), -ENOSPC);
	/* nothing is truncated when the table is full */
	assert_int_equal(names_snapshot(names, all, &out), TABLE_PROCESSES - 1);
	for (int i = 0; i < (int)TABLE_PROCESSES - 1; i++)
		assert_int_equal(out[i].rpid.n, 5000000 + out[i].vpid.n);
	free(out);
	for (int i = 1; i < (int)TABLE_PROCESSES; i++)
		names_process_remove(names, (struct vpid){i}, (struct rpid){5000000 + i});
	assert_int_equal(names->table->nprocesses, 0);
}

static void test_jobs(void **state)
{
	struct names *names = *state;
	pid_t keeper = sleeper(), second = sleeper();
	struct name_job job = {.keeper = {keeper}, .root = {300}, .name = "counter"}, out[1], *jobs;
	struct name_process p = process(300, getpid());
	struct err err = ERR_INIT;

	assert_int_equal(names_job_add(names, &job, &err), 0);
	assert_int_equal(names_job_add(names, &job, &err), -EEXIST);
	job.keeper.n = second;
	assert_int_equal(names_job_add(names, &job, &err), -EEXIST);
	assert_non_null(strstr(err.text, "counter is in use by job 300"));
	job.keeper.n = keeper;
	job.keep = 5;
	assert_int_equal(names_job_update(names, &job), 0);
	assert_int_equal(names_job_get(names, job.keeper, &out[0]), 0);
	assert_int_equal(out[0].keep, 5);
	p.keeper.n = keeper;
	assert_int_equal(names_process_add(names, &p), 0);
	assert_int_equal(names_number_bind(names, (struct vpid){300}, (struct rpid){getpid()}, job.keeper),
			 0);
	assert_int_equal(names_job_count(names), 1);
	assert_int_equal(names_jobs_snapshot(names, &jobs), 1);
	assert_int_equal(jobs[0].keep, 5);
	free(jobs);
	end(keeper); /* the end of the keeper removes all of its job */
	assert_int_equal(names_job_count(names), 0);
	assert_int_equal(names_process_get(names, p.vpid, &p), -ENOENT);
	assert_int_equal(names_real(names, (struct vpid){300}).n, 300);
	job.keeper.n = second;
	assert_int_equal(names_job_add(names, &job, &err), 0);
	names_job_remove(names, job.keeper);
	assert_int_equal(names_job_get(names, job.keeper, &out[0]), -ENOENT);
	end(second);
	assert_int_equal(names_job_add(names, &job, &err), -ESRCH);
}

/* Checks every invariant of the table that the maps depend on. */
static void check_table(struct names *names)
{
	struct table *table = names->table;
	uint32_t forward = 0, backward = 0, processes = 0;

	assert_int_equal(table_lock(names), 0);
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		uint64_t word = table->forward.slots[i];

		if (map_used(word)) {
			forward++;
			assert_int_equal(map_get(&table->backward, map_value(word)), map_key(word));
		}
		if (map_used(table->backward.slots[i]))
			backward++;
	}
	assert_int_equal(forward, backward);
	assert_int_equal(forward, table->nnumbers);
	for (uint32_t i = 0; i < TABLE_PROCESSES; i++) {
		struct table_process *entry = &table->processes[i];

		if (!entry->used)
			continue;
		processes++;
		assert_int_equal(map_get(&table->by_vpid, (uint32_t)entry->p.vpid.n), i + 1);
		assert_int_equal(map_get(&table->by_rpid, (uint32_t)entry->p.rpid.n), i + 1);
		assert_int_equal(entry->p.vpid.n + 1000000, entry->p.rpid.n);
		assert_int_equal(entry->p.start_ns, (uint64_t)entry->p.vpid.n * 3);
	}
	assert_int_equal(processes, table->nprocesses);
	table_unlock(names);
}

static void step(struct names *names, int n, unsigned what)
{
	struct name_process p = process(n, n + 1000000);
	struct vpid v = {n};
	int r;

	p.start_ns = (uint64_t)n * 3;
	switch (what) {
	case 0:
		if (names_process_add(names, &p) == -EINVAL)
			_exit(1);
		break;
	case 1:
		names_process_remove(names, v, p.rpid);
		break;
	case 2:
		p.state = NAME_STATE_FROZEN;
		if (names_process_update(names, &p) == -EINVAL)
			_exit(1);
		break;
	case 3:
		if (names_number_bind(names, v, p.rpid, p.keeper) == -ENOSPC)
			_exit(2);
		break;
	case 4:
		names_number_release(names, v, p.rpid);
		break;
	default:
		r = names_real(names, v).n;
		if (r != n && r != n + 1000000)
			_exit(3);
	}
}

static void hammer(struct names *names, int who, unsigned rounds)
{
	unsigned seed = (unsigned)(who * 7919 + (int)getpid());

	for (unsigned i = 0; i < rounds; i++)
		step(names, 10000 * who + 1 + rand_r(&seed) % 300, (unsigned)rand_r(&seed) % 6);
}

static void test_eight_hammering(void **state)
{
	struct names *names = *state;
	pid_t pids[8];
	int status;

	for (int i = 0; i < 8; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			hammer(names, i + 1, 4000);
			_exit(0);
		}
	}
	for (int i = 0; i < 8; i++) {
		waitpid(pids[i], &status, 0);
		assert_int_equal(status, 0);
	}
	check_table(names);
	assert_int_equal(names->table->repairs, 0);
}

static void test_writer_killed(void **state)
{
	struct names *names = *state;
	unsigned seed = (unsigned)getpid();

	for (int round = 0; round < 150; round++) {
		pid_t pid = fork();

		if (pid == 0)
			for (;;)
				hammer(names, 1 + round % 8, 1000);
		usleep(500 + (unsigned)rand_r(&seed) % 3000);
		end(pid);
		check_table(names);
	}
	print_message("%u of 150 kills left the lock held\n", names->table->repairs);
}

static void test_damaged(void **state)
{
	struct names *names = *state, *again;
	struct err err = ERR_INIT;
	uint32_t version = names->table->head.version;

	names->table->head.version = version + 1;
	assert_int_equal(names_open(&again, &err), -EBUSY); /* in use: refused with a message */
	assert_non_null(strstr(err.text, "of another version and in use"));
	names_close(names);
	assert_int_equal(names_open(&names, &err), 0); /* not in use: created again */
	assert_int_equal(names->table->head.version, version);
	names_close(names);
	assert_int_equal(truncate(table_path, 100), 0);
	assert_int_equal(names_open(&names, &err), 0);
	names_close(names);
	assert_int_equal(truncate(table_path, (off_t)sizeof(struct table) + 1), 0);
	assert_int_equal(names_open(&names, &err), 0);
	names->table->head.magic = 0;
	names_close(names);
	assert_int_equal(names_open(&names, &err), 0);
	names->table->head.boot_id[0] ^= 1;
	names_close(names);
	assert_int_equal(names_open(&names, &err), 0);
	names->table->head.pid_namespace ^= 1;
	assert_int_equal(names_open(&again, &err), -EBUSY);
	assert_non_null(strstr(err.text, "of another pid namespace and in use"));
	names_close(names);
	assert_int_equal(names_open(&names, &err), 0);
	*state = names;
}

/* A process whose /proc cannot be read is not dead. */
static void test_no_descriptor(void **state)
{
	struct names *names = *state;
	struct rlimit limit, none;
	pid_t pid = sleeper();
	struct name_process lives = process(pid, pid), found;
	struct rpid keeper = {getpid()};
	const struct name_job job = {.keeper = keeper, .root = {pid}};
	struct name_job job_found;
	uint64_t ticks, unknown;

	assert_int_equal(names_job_add(names, &job, NULL), 0);
	assert_int_equal(names_process_add(names, &lives), 0);
	assert_int_equal(table_start_ticks(pid, &ticks), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	int r = table_start_ticks(pid, &unknown);
	bool alive = table_alive(pid, ticks), runs = table_runs(pid, ticks);
	int job_r = names_job_get(names, keeper, &job_found);
	int process_r = names_process_get(names, lives.vpid, &found);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(r, -EMFILE);
	assert_true(alive);
	assert_true(runs);
	assert_int_equal(job_r, 0);
	assert_int_equal(process_r, 0);
	end(pid);
	assert_false(table_alive(pid, ticks));
	assert_false(table_runs(pid, ticks));
}

static void test_made_by_many(void **state)
{
	pid_t pids[8];
	int status;

	names_close(*state);
	unlink(table_path);
	for (int i = 0; i < 8; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			struct names *names;

			if (names_open(&names, NULL) < 0)
				_exit(1);
			hammer(names, i + 1, 100);
			_exit(0);
		}
	}
	for (int i = 0; i < 8; i++) {
		waitpid(pids[i], &status, 0);
		assert_int_equal(status, 0);
	}
	assert_int_equal(names_open((struct names **)state, NULL), 0);
	check_table(*state);
}

static void test_shared_memory_ids(void **state)
{
	struct names *names = *state;
	struct rpid keeper = {getpid()};
	int32_t id;

	assert_int_equal(names_ipc_real(names, NAMES_IPC_SHM, 0), 0);
	assert_int_equal(names_ipc_born(names, NAMES_IPC_SHM, 5, keeper, &id), 0);
	assert_int_equal(id, 5);
	assert_int_equal(names_ipc_bind(names, NAMES_IPC_SHM, 0, 7, keeper), 0);
	assert_int_equal(names_ipc_bind(names, NAMES_IPC_SHM, 5, 5, keeper), 0);
	assert_int_equal(names_ipc_real(names, NAMES_IPC_SHM, 0), 7);
	assert_int_equal(names_ipc_virtual(names, NAMES_IPC_SHM, 7), 0);
	assert_int_equal(names_ipc_real(names, NAMES_IPC_SHM, 7), -1);
	assert_int_equal(names_ipc_virtual(names, NAMES_IPC_SHM, 0), -1);
	assert_int_equal(names_ipc_real(names, NAMES_IPC_SHM, -1), -1);
	/* a new segment whose id is already a virtual id gets another one */
	assert_int_equal(names_ipc_born(names, NAMES_IPC_SHM, 0, keeper, &id), 0);
	assert_true(id >= IPC_OWN_FIRST);
	assert_int_equal(names_ipc_real(names, NAMES_IPC_SHM, id), 0);
	/* rolled back again */
	assert_int_equal(names_ipc_bind(names, NAMES_IPC_SHM, 0, 9, keeper), 0);
	assert_int_equal(names_ipc_real(names, NAMES_IPC_SHM, 0), 9);
	assert_int_equal(names_ipc_virtual(names, NAMES_IPC_SHM, 7), 7);
	table_repair(names->table);
	assert_int_equal(names->table->ipc[NAMES_IPC_SHM].n, 2);
	names_ipc_release(names, NAMES_IPC_SHM, id);
	names_ipc_release(names, NAMES_IPC_SHM, 0);
	assert_int_equal(names_ipc_real(names, NAMES_IPC_SHM, 0), 0);
	assert_int_equal(names_ipc_bind(names, NAMES_IPC_SHM, -1, 9, keeper), -EINVAL);
	for (int i = 0; i < (int)IPC_SLOTS / 2; i++)
		assert_int_equal(names_ipc_bind(names, NAMES_IPC_SHM, 1000 + i, 100000 + i, keeper), 0);
	assert_int_equal(names_ipc_bind(names, NAMES_IPC_SHM, 1, 2, keeper), -ENOSPC);
	table_drop_ipc(names->table, keeper.n);
	assert_int_equal(names->table->ipc[NAMES_IPC_SHM].n, 0);
}

/* Jobs of a table of another version are found, keep their names and numbers, and cannot be changed. */
static void test_other_version(void **state)
{
	struct names *names = *state, *other;
	pid_t keeper = sleeper(), pid = sleeper(), mine = sleeper();
	struct name_process p = process(pid + 7, pid), q = process(1, mine), found;
	struct name_job job = {.keeper = {keeper}, .root = {pid + 7}, .name = "old"},
			same = {.keeper = {mine}, .name = "old"};
	struct name_job *jobs, found_job;
	struct name_process *all;
	struct err err = ERR_INIT;
	uint32_t version;

	assert_true(table_file_version("names", &version) && version == 12);
	assert_true(table_file_version("names.13", &version) && version == 13);
	assert_false(table_file_version("names.12", &version));
	assert_false(table_file_version("names.13.new-7", &version));
	assert_false(table_file_version("namesake", &version));
	p.keeper.n = keeper;
	setenv("PBEAM_TEST_TABLE_VERSION", "99", 1);
	assert_int_equal(names_open(&other, &err), 0);
	unsetenv("PBEAM_TEST_TABLE_VERSION");
	assert_int_equal(names_job_add(other, &job, &err), 0);
	assert_int_equal(names_process_add(other, &p), 0);
	assert_int_equal(names_process_get(names, p.vpid, &found), -ENOENT);
	names_include_others(names);
	assert_int_equal(names_process_get(names, p.vpid, &found), 0);
	assert_int_equal(found.rpid.n, pid);
	assert_int_equal(names_job_get(names, job.keeper, &found_job), 0);
	assert_string_equal(found_job.name, "old");
	assert_int_equal(names_jobs_snapshot(names, &jobs), 1);
	free(jobs);
	assert_int_equal(names_snapshot(names, job.keeper, &all), 1);
	free(all);
	assert_int_equal(names_job_count(names), 1);
	assert_int_equal(names_job_add(names, &same, &err), -EEXIST);
	assert_non_null(strstr(err.text, "under another version"));
	assert_int_equal(names_number_bind(names, p.vpid, q.rpid, q.keeper), -EEXIST);
	other->table->head.shape.job_room = 0x7fffffff; /* not a table that can be read */
	assert_int_equal(names_job_count(names), 0);
	other->table->head.shape.job_room = TABLE_JOBS;
	end(keeper);
	assert_int_equal(names_job_count(names), 0);
	names_close(other);
	assert_int_equal(names_snapshot(names, (struct rpid){0}, &all), 0);
	free(all);
	setenv("PBEAM_TEST_TABLE_VERSION", "99", 1);
	assert_int_equal(names_open(&other, &err), 0);
	unsetenv("PBEAM_TEST_TABLE_VERSION");
	assert_int_equal(other->table->nprocesses, 0); /* the old file was removed: no process mapped it */
	names_close(other);
	assert_int_equal(names_job_count(names), 0);
	end(pid);
	end(mine);
}

static void test_diverge_flavour(void **state)
{
	struct names *names;
	struct vpid v;

	setenv("PBEAM_TEST_DIVERGE", "1", 1);
	assert_int_equal(names_open(&names, NULL), 0);
	unsetenv("PBEAM_TEST_DIVERGE");
	assert_int_equal(names_number_born(names, (struct rpid){getpid()}, (struct rpid){getpid()}, &v), 0);
	assert_int_not_equal(v.n, getpid());
	assert_int_equal(names_real(*state, v).n, getpid());
	names_close(names);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(test_identity),	 T(test_bind),
		T(test_bind_to_itself),	 T(test_bind_against_born),
		T(test_release),	 T(test_many_numbers),
		T(test_processes),	 T(test_jobs),
		T(test_eight_hammering), T(test_writer_killed),
		T(test_damaged),	 T(test_made_by_many),
		T(test_no_descriptor),	 T(test_shared_memory_ids),
		T(test_diverge_flavour), T(test_other_version),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
