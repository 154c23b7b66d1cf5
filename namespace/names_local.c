/* The local backend: opening the table, its lock and its repair. table.h has the layout and the invariants.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "namespace/table.h"

int table_start_and_state(int32_t pid, uint64_t *ticks, char *state)
{
	char path[32], text[1024];
	unsigned long long start;
	const char *p;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = io_read_full(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return n < 0 ? (int)n : -EIO;
	text[n] = 0;
	p = strrchr(text, ')'); /* the name may contain any character; the fields after it are numbers */
	*state = p && p[1] ? p[2] : 0;
	for (int field = 2; p && field < 22; field++)
		p = strchr(p + 1, ' ');
	if (!p || sscanf(p, "%llu", &start) != 1)
		return -EIO;
	*ticks = start ? start : 1; /* PID 1 may have started at tick 0 */
	return 0;
}

int table_start_ticks(int32_t pid, uint64_t *ticks)
{
	char state;

	return table_start_and_state(pid, ticks, &state);
}

/* Any other failure (no descriptor, no memory) says nothing about the process. */
static bool shows_death(int r)
{
	return r == -ENOENT || r == -ESRCH;
}

bool table_alive(int32_t pid, uint64_t start_ticks)
{
	uint64_t ticks;
	int r;

	if (pid <= 0)
		return false;
	if (kill(pid, 0) < 0 && errno == ESRCH)
		return false;
	if (!start_ticks)
		return true;
	r = table_start_ticks(pid, &ticks);
	return r < 0 ? !shows_death(r) : ticks == start_ticks;
}

bool table_runs(int32_t pid, uint64_t start_ticks)
{
	uint64_t ticks;
	char state;
	int r = pid > 0 ? table_start_and_state(pid, &ticks, &state) : -ESRCH;

	if (r < 0)
		return !shows_death(r);
	return ticks == start_ticks && state != 'Z' && state != 'X';
}

static void boot_id(char out[40])
{
	auto_close int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : io_read_full(fd, out, 36);

	out[n < 0 ? 0 : n] = 0;
}

/* Numbers of processes mean something in one pid namespace only. 0: unknown. */
static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) < 0 ? 0 : (uint64_t)st.st_ino;
}

void table_head_fill(struct table_head *head, uint32_t version)
{
	*head = (struct table_head){
		.magic = TABLE_MAGIC,
		.version = version,
		.size = sizeof(struct table),
		.pid_namespace = pid_namespace(),
		.shape = {.jobs_at = offsetof(struct table, jobs),
			  .job_stride = sizeof(struct table_job),
			  .job_room = TABLE_JOBS,
			  .processes_at = offsetof(struct table, processes),
			  .process_stride = sizeof(struct table_process),
			  .process_room = TABLE_PROCESSES},
	};
	boot_id(head->boot_id);
}

/* PBEAM_TEST_TABLE_VERSION stands for a program of another version. */
uint32_t names_own_version(void)
{
	const char *text = getenv("PBEAM_TEST_TABLE_VERSION");

	return text && atoi(text) > 0 ? (uint32_t)atoi(text) : TABLE_VERSION;
}

/* Returns why the file is not a table that can be used here, or NULL. */
static const char *what_is_wrong(int fd, uint32_t version)
{
	struct table_head head;
	char id[40];
	struct stat st;

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)offsetof(struct table, jobs))
		return "too short";
	if (io_pread_full(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
		return "not readable";
	if (head.magic != TABLE_MAGIC)
		return "damaged";
	if (head.version != version || head.size != sizeof(struct table))
		return "of another version";
	if (st.st_size != (off_t)sizeof(struct table))
		return "of the wrong length";
	boot_id(id);
	if (strncmp(head.boot_id, id, sizeof(id)) != 0)
		return "from before the last boot";
	if (head.pid_namespace != pid_namespace())
		return "of another pid namespace";
	return NULL;
}

static int init_mutex(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attr;
	int r;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	r = pthread_mutex_init(mutex, &attr);
	pthread_mutexattr_destroy(&attr);
	return -r;
}

/* Creates a complete new table and links it to `path`. If another process was faster, that is a success
 * too. */
static int local_make_directory(const char *path, uint32_t version, struct err *err)
{
	char tmp[PATH_MAX + 32];
	struct table *table;
	int r;

	snprintf(tmp, sizeof(tmp), "%s.new-%d", path, (int)getpid());
	auto_close int fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(err, "make name table %s", tmp);
	r = -posix_fallocate(fd, 0, sizeof(struct table));
	if (r < 0) {
		unlink(tmp);
		return err_code(err, r, "make name table %s of %zu bytes", tmp, sizeof(struct table));
	}
	table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (table == MAP_FAILED) {
		r = err_sys(err, "map name table %s", tmp);
		unlink(tmp);
		return r;
	}
	table_head_fill(&table->head, version);
	table->head.magic = 0;
	/* Tables of several versions may exist at once: each begins elsewhere. */
	table->next_own = NUMBER_OWN_FIRST + (int32_t)(version % NUMBER_OWN_PARTS * NUMBER_OWN_PART);
	for (unsigned kind = 0; kind < NAMES_IPC_KINDS; kind++)
		table->ipc[kind].next = IPC_OWN_FIRST;
	r = init_mutex(&table->mutex);
	table->head.magic = TABLE_MAGIC;
	munmap(table, sizeof(*table));
	if (r < 0)
		err_code(err, r, "make the lock of name table %s", tmp);
	else if (link(tmp, path) < 0 && errno != EEXIST)
		r = err_sys(err, "link name table %s", path);
	unlink(tmp);
	return r;
}

static bool still_there(int fd, const char *path)
{
	struct stat a, b;

	return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* Opens the table of jobs whose directory was removed. -ENOENT if there is none that can be used here. */
static int open_published(uint32_t version, int *out)
{
	auto_close int fd = table_open_published(version);

	if (fd < 0 || flock(fd, LOCK_SH) < 0 || what_is_wrong(fd, version))
		return -ENOENT;
	*out = steal_fd(&fd);
	return 0;
}

/* Opens `path`, creating or repairing it; *out holds a shared flock on a valid table. 1: try again. */
static int open_once(const char *path, uint32_t version, int *out, struct err *err)
{
	auto_close int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	const char *wrong;

	if (fd < 0 && errno != ENOENT)
		return err_sys(err, "open name table %s", path);
	if (fd < 0) {
		int r = open_published(version, out);

		if (r == 0)
			return 0;
		r = local_make_directory(path, version, err);
		return r < 0 ? r : 1;
	}
	if (flock(fd, LOCK_SH) < 0)
		return err_sys(err, "lock name table %s", path);
	if (!still_there(fd, path))
		return 1;
	wrong = what_is_wrong(fd, version);
	if (!wrong) {
		*out = steal_fd(&fd);
		return 0;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return err_set(err, -EBUSY,
			       "name table %s is %s and in use by programs that run; end them, or set "
			       "XDG_RUNTIME_DIR to another directory",
			       path, wrong);
	if (still_there(fd, path))
		unlink(path);
	return 1;
}

/* Takes the descriptor over if it works. */
static int map_table(struct names **out, int fd, struct err *err)
{
	const char *diverge = getenv("PBEAM_TEST_DIVERGE");
	struct names *names = calloc(1, sizeof(*names));

	if (!names)
		return err_code(err, -ENOMEM, "open the name table");
	names->fd = fd;
	names->test_diverge = diverge && diverge[0] && strcmp(diverge, "0") != 0;
	names->table = mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (names->table == MAP_FAILED) {
		free(names);
		return err_sys(err, "map the name table");
	}
	*out = names;
	return 0;
}

uint32_t names_version(const struct names *names)
{
	return names->table->head.version;
}

int names_descriptor(const struct names *names)
{
	return names->fd;
}

int names_open_descriptor(struct names **out, int fd, uint32_t version, struct err *err)
{
	const char *wrong = what_is_wrong(fd, version);

	if (version != names_own_version())
		return err_set(err, -ENOTSUP,
			       "the job is in a name table of version %u, this version uses %u; `pbeamctl "
			       "checkpoint --kill` and `pbeamctl rollback` move it",
			       version, names_own_version());
	if (wrong)
		return err_set(err, -EPROTO, "the job's name table is %s", wrong);
	return map_table(out, fd, err);
}

int names_open(struct names **out, struct err *err)
{
	char path[PATH_MAX];
	uint32_t version = names_own_version();
	int fd = -1, r, tries = 0;
	size_t len;

	r = dirs_runtime(path, NULL, err);
	if (r < 0)
		return r;
	len = strlen(path);
	if (snprintf(path + len, sizeof(path) - len, "/" TABLE_FILE ".%u", version) >=
	    (int)(sizeof(path) - len))
		return err_code(err, -ENAMETOOLONG, "name table in %s", path);
	do {
		err_clear(err);
		r = open_once(path, version, &fd, err);
		if (r == -EBUSY && tries < 20) { /* another process may be repairing it */
			usleep(10000);
			r = 1;
		}
	} while (r == 1 && tries++ < 100);
	if (r != 0)
		return r < 0 ? r : err_set(err, -EBUSY, "name table %s keeps changing", path);
	r = map_table(out, fd, err);
	if (r < 0)
		close(fd);
	return r;
}

void names_include_others(struct names *names)
{
	names->others = true;
}

void names_close(struct names *names)
{
	if (!names)
		return;
	munmap(names->table, sizeof(struct table));
	close(names->fd);
	free(names);
}
