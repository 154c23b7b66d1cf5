/*
 * Holders are found where the kernel shows them: the links of /proc/PID/fd of all processes of the name table
 * name the inodes. A running holder may fork, or pass the socket on, so the search is repeated after the
 * freeze until it finds no new holder. A socket that is being passed (SCM_RIGHTS) or accepted has no holder
 * for that moment: the search goes on for a little longer.
 */
#include "scip/reconnect/reconnect_hold.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "namespace/record.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "scip/object/common.h"
#include "scip/object/epoll.h"

enum { FREEZE_MS = 5000, ANSWER_MS = 10000, LOOKS = 8, LOOK_AGAIN_US = 2000, FDINFO_MAX = 64 << 20 };

void reconnect_hold_init(struct reconnect_hold *hold, struct names *names)
{
	memset(hold, 0, sizeof(*hold));
	hold->names = names;
	hold->group.names = names;
	hold->group.cancel = -1;
}

/* ---- the holders of each socket ---- */

static int find_inode(uint64_t ino, const uint64_t *inos, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (inos[i] == ino)
			return (int)i;
	return -1;
}

/* The descriptors of a process; those of a living thread where the leader is gone. */
static DIR *open_descriptors(pid_t pid)
{
	auto_closedir DIR *tasks = NULL;
	struct dirent *task;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && (task = readdir(tasks)) != NULL) {
		DIR *dir;
		int any = 0;

		if (task->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/fd", pid, task->d_name);
		dir = opendir(path);
		while (dir && any <= 2 && readdir(dir) != NULL)
			any++;
		if (dir && any > 2) {
			rewinddir(dir);
			return dir;
		}
		if (dir)
			closedir(dir);
	}
	return NULL;
}

/* Calls for each descriptor that is a socket. Number of wanted ones, or -ENOMEM. */
static int hold_scan_process(struct reconnect_hold *hold, struct rpid rpid, const uint64_t *inos, size_t n,
			     bool *found)
{
	auto_closedir DIR *dir = open_descriptors(rpid.n);
	struct dirent *item;
	int count = 0;

	while (dir && (item = readdir(dir)) != NULL) {
		char link[40] = "";
		struct reconnect_alias alias = {.rpid = rpid, .fd = atoi(item->d_name)};
		int which;

		if (readlinkat(dirfd(dir), item->d_name, link, sizeof(link) - 1) < 9 ||
		    strncmp(link, "socket:[", 8) != 0)
			continue;
		alias.ino = strtoull(link + 8, NULL, 10);
		which = find_inode(alias.ino, inos, n);
		if (which < 0)
			continue;
		found[which] = true;
		count++;
		if (object_append(hold->aliases, hold->naliases, alias) < 0)
			return -ENOMEM;
	}
	return count;
}

/* A filter that the program has installed itself keeps it from taking another socket. */
static bool process_forbids_hold(const struct name_process *process)
{
	static const int needed[] = {SYS_pidfd_open, SYS_pidfd_getfd, SYS_dup3, SYS_close};
	bool forbidden = false;

	for (unsigned i = 0; !forbidden; i++) {
		auto_free void *filter = NULL;
		size_t bytes;
		int r = record_filter_get(process->keeper, process->vpid, i, &filter, &bytes);

		if (r <= 0)
			return r < 0;
		for (unsigned k = 0; k < sizeof(needed) / sizeof(needed[0]) && !forbidden; k++) {
			const struct seccomp_data data = {.nr = needed[k], .arch = AUDIT_ARCH_X86_64};
			uint32_t action = dump_run_filter(filter, bytes / sizeof(struct sock_filter), &data) &
					  SECCOMP_RET_ACTION_FULL;

			forbidden = action != SECCOMP_RET_ALLOW && action != SECCOMP_RET_LOG &&
				    action != SECCOMP_RET_TRACE;
		}
	}
	return forbidden;
}

/* Lists all aliases again and asks holders that are not frozen to stop. Their number, or -errno. */
static int hold_scan(struct reconnect_hold *hold, const uint64_t *inos, size_t n, bool *found,
		     struct err *err)
{
	auto_free struct name_process *all = NULL;
	auto_free bool *denied = calloc(n, sizeof(*denied));
	Pbeam__ScipFreeze freeze = PBEAM__SCIP_FREEZE__INIT;
	int asked = 0, count;

	count = denied ? names_snapshot(hold->names, (struct rpid){0}, &all) : -ENOMEM;
	if (count < 0)
		return err_code(err, count, "list the processes");
	hold->naliases = 0;
	memset(found, 0, n * sizeof(*found));
	freeze.timeout_ms = FREEZE_MS;
	for (int i = 0; i < count; i++) {
		size_t before = hold->naliases;
		int r = hold_scan_process(hold, all[i].rpid, inos, n, found);

		if (r < 0)
			return err_code(err, r, "list the holders of a connection");
		if (r > 0 && process_forbids_hold(&all[i])) {
			for (; before < hold->naliases; before++)
				denied[find_inode(hold->aliases[before].ino, inos, n)] = true;
			continue;
		}
		if (r == 0 || group_find(&hold->group, all[i].rpid))
			continue;
		if (!all[i].scip.n || all[i].state != NAME_STATE_RUNNING)
			return err_set(err, -EBUSY, "vpid %d is being made, saved or moved", all[i].vpid.n);
		r = group_add(&hold->group, &all[i], err);
		if (r < 0)
			return r;
		group_ask(hold->group.v[hold->group.n - 1], PBEAM__SCIP_REQUEST__SCIP_FREEZE, &freeze.base,
			  NULL, 0);
		asked++;
	}
	for (size_t i = 0; i < n; i++)
		found[i] = found[i] && !denied[i];
	return asked;
}

/* The answers to the freeze. */
static int hold_gather_aliases(struct reconnect_hold *hold, struct err *err)
{
	int r = group_gather(&hold->group, &pbeam__scip_frozen__descriptor, ANSWER_MS, err);

	for (size_t i = 0; i < hold->group.n && r == 0; i++) {
		struct member *member = hold->group.v[i];

		if (!member->problem.code && !member->gone)
			member->frozen = true;
		else if (member->problem.code == -ESRCH || member->gone)
			group_lose(member);
		else
			r = err_set(err, -EBUSY, "%s", member->problem.text);
	}
	if (r == -ETIMEDOUT && err)
		r = err->code = -EBUSY;
	return r == 0 ? group_forget_gone(&hold->group) : r;
}

int reconnect_hold_freeze(struct reconnect_hold *hold, const uint64_t *inos, size_t n, size_t due,
			  bool *found, struct err *err)
{
	size_t any = 0;

	for (size_t i = 0; i < n; i++)
		any += inos[i] != 0;
	for (int i = 0; i < LOOKS && any; i++) {
		int r = hold_scan(hold, inos, n, found, err);
		size_t missing = 0;

		if (r > 0)
			r = hold_gather_aliases(hold, err);
		else if (r == 0) {
			for (size_t k = 0; k < due; k++)
				missing += inos[k] && !found[k];
			if (!missing || i > 3)
				return 0;
			usleep(LOOK_AGAIN_US);
		}
		if (r < 0)
			return r;
	}
	return any ? err_set(err, -EBUSY, "the holders of a connection change all the time") : 0;
}

int reconnect_hold_shared(struct names *names, const struct group *members, const uint64_t *inos, size_t n,
			  bool *shared)
{
	auto_free struct name_process *all = NULL;
	struct reconnect_hold hold;
	int count = names_snapshot(names, (struct rpid){0}, &all), r = count < 0 ? count : 0;

	reconnect_hold_init(&hold, names);
	for (int i = 0; i < count && r >= 0; i++)
		if (!group_find(members, all[i].rpid))
			r = hold_scan_process(&hold, all[i].rpid, inos, n, shared);
	free(hold.aliases);
	return r < 0 ? r : 0;
}

bool reconnect_hold_any(struct names *names, struct rpid keeper, const uint64_t *inos, size_t n)
{
	auto_free struct name_process *all = NULL;
	auto_free bool *found = calloc(n + 1, sizeof(*found));
	struct reconnect_hold hold;
	int count = found ? names_snapshot(names, keeper, &all) : 0, r = 0;

	reconnect_hold_init(&hold, names);
	for (int i = 0; i < count && r == 0; i++)
		r = hold_scan_process(&hold, all[i].rpid, inos, n, found);
	free(hold.aliases);
	return r > 0;
}

int reconnect_hold_duplicate(const struct reconnect_hold *hold, uint64_t ino, struct err *err)
{
	for (size_t i = 0; i < hold->naliases; i++) {
		auto_close int pidfd = -1;
		int fd;

		if (hold->aliases[i].ino != ino)
			continue;
		pidfd = pidfd_open(hold->aliases[i].rpid.n, 0);
		fd = pidfd < 0 ? -1 : pidfd_getfd(pidfd, hold->aliases[i].fd, 0);
		return fd < 0 ? err_sys(err, "take descriptor %d of process %d", hold->aliases[i].fd,
					hold->aliases[i].rpid.n)
			      : fd;
	}
	return err_set(err, -ENOENT, "no process holds the connection");
}

/* ---- replacing ---- */

static const struct end_tcp *find_end(const struct end_tcp *ends, size_t n, uint64_t ino)
{
	for (size_t i = 0; i < n; i++)
		if (ends[i].ino == ino && ends[i].fresh >= 0)
			return &ends[i];
	return NULL;
}

static int grow_numbers(int **numbers, size_t n)
{
	int *grown = reallocarray(*numbers, n, sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	*numbers = grown;
	return 0;
}

/* The interest list of one epoll instance of a holder. */
static int replace_interest(int epoll, const struct end_tcp *ends, size_t n, struct err *err)
{
	Pbeam__Epoll *entries = message_new(&pbeam__epoll__descriptor);
	auto_free int *olds = NULL, *targets = NULL;
	auto_free char *text = NULL;
	struct epoll_line line;
	const char *at;
	char path[40];
	int r;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll);
	r = entries ? io_slurp(AT_FDCWD, path, FDINFO_MAX, &text, NULL) : -ENOMEM;
	at = text;
	while (r == 0 && (r = epoll_next_line(&at, &line, err)) > 0) {
		const struct end_tcp *end = find_end(ends, n, line.ino);
		size_t k = entries->n_entries;
		Pbeam__EpollEntry *entry;

		r = 0;
		if (!end)
			continue;
		entry = message_add(entries, entries, pbeam__epoll_entry__descriptor);
		if (!entry || grow_numbers(&olds, k + 1) < 0 || grow_numbers(&targets, k + 1) < 0) {
			r = err_code(err, -ENOMEM, "list what epoll watches");
			break;
		}
		*entry = (Pbeam__EpollEntry){
			.base = entry->base, .fd = line.fd, .events = line.events, .data = line.data};
		olds[k] = end->old;
		targets[k] = end->fresh;
	}
	if (r == 0)
		r = epoll_replace(epoll, entries, olds, targets, err);
	message_free(entries);
	return r;
}

static int replace_watched(struct rpid rpid, const struct end_tcp *ends, size_t n, struct err *err)
{
	auto_closedir DIR *dir = open_descriptors(rpid.n);
	auto_close int pidfd = pidfd_open(rpid.n, 0);
	struct dirent *item;
	int r = 0;

	while (dir && r == 0 && (item = readdir(dir)) != NULL) {
		auto_close int epoll = -1;
		char link[40] = "";

		if (readlinkat(dirfd(dir), item->d_name, link, sizeof(link) - 1) < 0 ||
		    strcmp(link, "anon_inode:[eventpoll]") != 0)
			continue;
		epoll = pidfd_getfd(pidfd, atoi(item->d_name), 0);
		r = epoll < 0 ? err_sys(err, "take epoll descriptor %s of process %d", item->d_name, rpid.n)
			      : replace_interest(epoll, ends, n, err);
	}
	return r;
}

static void free_request(Pbeam__ScipReplace *request)
{
	for (size_t i = 0; i < request->n_all; i++) {
		free(request->all[i]->fds);
		free(request->all[i]);
	}
	free(request->all);
}

/* What one holder has to put into place. */
static int make_request(const struct reconnect_hold *hold, struct rpid rpid, const struct end_tcp *ends,
			size_t n, Pbeam__ScipReplace *out)
{
	pbeam__scip_replace__init(out);
	out->from = getpid();
	for (size_t i = 0; i < n; i++) {
		Pbeam__ScipReplace__One *one = NULL;

		for (size_t k = 0; k < hold->naliases; k++) {
			if (hold->aliases[k].rpid.n != rpid.n || hold->aliases[k].ino != ends[i].ino ||
			    ends[i].fresh < 0)
				continue;
			if (!one) {
				one = malloc(sizeof(*one));
				if (!one)
					return -ENOMEM;
				pbeam__scip_replace__one__init(one);
				one->source = ends[i].fresh;
				if (object_append(out->all, out->n_all, one) < 0) {
					free(one);
					return -ENOMEM;
				}
			}
			if (object_append(one->fds, one->n_fds, hold->aliases[k].fd) < 0)
				return -ENOMEM;
		}
	}
	return 0;
}

int reconnect_hold_replace(struct reconnect_hold *hold, struct end_tcp *ends, size_t n, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < hold->group.n && r == 0; i++)
		r = replace_watched(hold->group.v[i]->rpid, ends, n, err);
	for (size_t i = 0; i < hold->group.n && r == 0; i++) {
		Pbeam__ScipReplace request;

		r = make_request(hold, hold->group.v[i]->rpid, ends, n, &request);
		if (r == 0 && request.n_all)
			group_ask(hold->group.v[i], PBEAM__SCIP_REQUEST__SCIP_REPLACE, &request.base, NULL,
				  0);
		free_request(&request);
	}
	if (r < 0)
		return err && err->code ? r : err_code(err, r, "replace a connection");
	r = group_gather(&hold->group, &pbeam__scip_done__descriptor, ANSWER_MS, err);
	return r < 0 ? r : group_problem(&hold->group, err);
}

void reconnect_hold_free(struct reconnect_hold *hold)
{
	group_thaw(&hold->group);
	group_free(&hold->group);
	free(hold->aliases);
	reconnect_hold_init(hold, hold->names);
}
