/*
 * epoll: the interest list, from fdinfo (tfd, events, data, ino).
 *
 * An entry is kept by the kernel under (open file description, descriptor number). The number is that of the
 * process that added it, and may have been closed, or given to something else, while the description lives on
 * elsewhere; kcmp(KCMP_EPOLL_TFD) tells which description it is. So that number and description are the same
 * again, entries are added by a child of ours that puts the description at that number in its own table
 * (dup2): the registration lasts as long as the description, not as long as the child.
 *
 * An entry of EPOLLONESHOT that has fired is there without any events. It cannot be added like that (the
 * kernel adds EPOLLERR and EPOLLHUP); it is added with events that it has now and made to fire, or, if it has
 * none, left with EPOLLERR and EPOLLHUP. An edge-triggered entry that is ready reports once more: no edge is
 * lost, and programs must expect that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/object/common.h"
#include "scip/object/object_table.h"

#define PRIVATE_EVENTS (EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE)

static bool epoll_match(struct object_dump *dump, const struct object_source *source)
{
	return strcmp(source->link, "anon_inode:[eventpoll]") == 0;
}

static int add_entry(struct object_dump *dump, const struct object_source *source, Pbeam__Epoll *out, int fd,
		     uint32_t events, uint64_t data, uint64_t ino, struct err *err)
{
	const struct object_source *target;
	Pbeam__EpollEntry *entry;
	unsigned nth = 0;

	/* The kernel lists, and kcmp counts, entries of one number in the same order. */
	for (size_t i = 0; i < out->n_entries; i++)
		nth += out->entries[i]->fd == fd;
	target = object_dump_find_epoll(dump, source->local, fd, nth, ino);
	if (!target)
		return err_set(err, -ENOTSUP,
			       "an epoll instance that watches something (registered as fd %d) which only a "
			       "process outside the tree holds; remove it from the set (EPOLL_CTL_DEL) first",
			       fd);
	entry = object_message(Pbeam__EpollEntry, pbeam__epoll_entry__init);
	if (!entry || object_append(out->entries, out->n_entries, entry) < 0) {
		free(entry);
		return object_no_memory(err);
	}
	entry->fd = fd;
	entry->events = events;
	entry->data = data;
	entry->object = target->id;
	entry->owner_vpid = source->holder_vpid.n;
	return 0;
}

static int epoll_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		      struct err *err)
{
	out->epoll = object_message(Pbeam__Epoll, pbeam__epoll__init);
	if (!out->epoll)
		return object_no_memory(err);
	for (const char *line = strstr(source->fdinfo, "tfd:"); line; line = strstr(line + 1, "tfd:")) {
		unsigned events;
		unsigned long long data, ino;
		int fd, r;

		if (sscanf(line, "tfd: %d events: %x data: %llx pos:%*d ino:%llx", &fd, &events, &data,
			   &ino) != 4)
			return err_set(err, -EPROTO, "an epoll instance whose fdinfo is not understood");
		r = add_entry(dump, source, out->epoll, fd, events, data, ino, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int epoll_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	for (size_t i = 0; i < object->epoll->n_entries; i++)
		if (object->epoll->entries[i]->fd < 0 || object->epoll->entries[i]->object == object->id)
			return err_set(err, -EBADMSG, "the image's epoll entry %zu is malformed", i);
	return 0;
}

static int epoll_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			 struct err *err)
{
	*fd = epoll_create1(EPOLL_CLOEXEC);
	return *fd < 0 ? err_sys(err, "make an epoll instance") : 0;
}

/* A one-shot entry that has fired. These are added first, while nothing else in the set can be ready. */
static bool is_fired(const Pbeam__EpollEntry *entry)
{
	return entry->events & EPOLLONESHOT && !(entry->events & ~(uint32_t)PRIVATE_EVENTS);
}

/* In the child: the fired one-shot entry is added with what it is ready for, and fires here. */
static int add_fired(int epoll, int fd, struct epoll_event *event)
{
	uint32_t events = event->events;
	struct epoll_event fired;

	event->events = EPOLLIN | EPOLLOUT | EPOLLONESHOT | (events & EPOLLET);
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, event) < 0)
		return -errno;
	if (epoll_wait(epoll, &fired, 1, 0) == 1)
		return 0;
	event->events = events;
	return epoll_ctl(epoll, EPOLL_CTL_MOD, fd, event) < 0 ? -errno : 0;
}

/* In the child: puts the target, which is above all numbers that entries want, at the entry's number. */
static int add_in_child(int epoll, int target, const Pbeam__EpollEntry *entry)
{
	struct epoll_event event = {.events = entry->events, .data.u64 = entry->data};

	if (dup2(target, entry->fd) < 0)
		return -errno;
	if (is_fired(entry))
		return add_fired(epoll, entry->fd, &event);
	return epoll_ctl(epoll, EPOLL_CTL_ADD, entry->fd, &event) < 0 ? -errno : 0;
}

static _Noreturn void child_main(const Pbeam__Epoll *saved, const int *targets, int epoll, int report,
				 int highest)
{
	struct {
		int index, code;
	} failed = {-1, 0};

	epoll = fcntl(epoll, F_DUPFD, highest + 1);
	report = fcntl(report, F_DUPFD, highest + 1);
	if (epoll < 0 || report < 0)
		_exit(1);
	for (int pass = 0; pass < 2 && failed.code == 0; pass++)
		for (size_t i = 0; i < saved->n_entries && failed.code == 0; i++) {
			if (is_fired(saved->entries[i]) != (pass == 0))
				continue;
			failed.code = add_in_child(epoll, targets[i], saved->entries[i]);
			failed.index = (int)i;
		}
	_exit(io_write_full(report, &failed, sizeof(failed)) == 0 ? 0 : 1);
}

static int run_child(const Pbeam__Epoll *saved, const int *targets, int epoll, int highest, struct err *err)
{
	struct {
		int index, code;
	} failed;
	auto_close int report_read = -1, report_write = -1;
	int ends[2], status;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(err, "make a pipe");
	report_read = ends[0];
	report_write = ends[1];
	child = fork();
	if (child < 0)
		return err_sys(err, "fork a helper for epoll");
	if (child == 0)
		child_main(saved, targets, epoll, report_write, highest);
	close(steal_fd(&report_write));
	if (io_read_full(report_read, &failed, sizeof(failed)) != sizeof(failed))
		failed.code = -EIO;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return failed.code < 0 ? err_code(err, failed.code, "add entry %d of an epoll instance", failed.index)
			       : 0;
}

static int epoll_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__Epoll *saved = object->epoll;
	auto_free int *targets = calloc(saved->n_entries + 1, sizeof(*targets));
	size_t made = 0;
	int highest = 2, r = 0;

	if (saved->n_entries == 0)
		return 0;
	if (!targets)
		return object_no_memory(err);
	for (size_t i = 0; i < saved->n_entries; i++)
		if (saved->entries[i]->fd > highest)
			highest = saved->entries[i]->fd;
	for (; made < saved->n_entries; made++) {
		int target = object_restore_get(restore, saved->entries[made]->object, err);

		if (target < 0) {
			r = target;
			break;
		}
		targets[made] = fcntl(target, F_DUPFD_CLOEXEC, highest + 1);
		if (targets[made] < 0) {
			r = err_sys(err, "move a descriptor above %d", highest);
			break;
		}
	}
	if (r == 0)
		r = run_child(saved, targets, fd, highest, err);
	while (made)
		close(targets[--made]);
	return r;
}

const struct object_ops object_epoll = {
	.name = "epoll instance",
	.kind = PBEAM__OBJECT__KIND_EPOLL,
	.phase = 2,
	.match = epoll_match,
	.dump = epoll_dump,
	.check = epoll_check,
	.restore = epoll_restore,
	.finish = epoll_finish,
};
