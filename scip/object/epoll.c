/*
 * epoll: the interest list, from fdinfo (tfd, events, data, ino).
 *
 * An entry is kept by the kernel under (open file description, descriptor number). The number is that of the
 * process that added it, and may have been closed, or given to something else, while the description lives on
 * elsewhere; kcmp(KCMP_EPOLL_TFD) identifies the description. That walks through the set, so what the holder
 * has at the number is tried first, with a call that costs the same for any set. To restore both number and
 * description, entries are added by a child of ours that puts the description at that number in its own table
 * (dup2): the registration lasts as long as the description, not as long as the child.
 *
 * Signalfds differ: an entry waits for signals of the process that made it (ep_insert() polls
 * it, signalfd_poll() in fs/signalfd.c, Linux 6.18, queues at current->sighand), and waits for none once that
 * process has ended. The process itself adds its entries for signalfds (install). The kernel does not report
 * which process that was: the first that has both descriptions at these numbers, parents before children, is
 * taken. If no process has both, the child adds the entry, which never reports.
 *
 * An entry of EPOLLONESHOT that has fired is there without any events. It cannot be added without events
 * (the kernel adds EPOLLERR and EPOLLHUP); it is added with events that are pending now and made to fire, or,
 * if none are pending, left with EPOLLERR and EPOLLHUP. An edge-triggered entry that is ready reports once
 * more: no edge is lost, and programs must expect that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "base/u64_map.h"
#include "scip/object/common.h"
#include "scip/object/epoll.h"
#include "scip/object/epoll_place.h"
#include "scip/object/object_table.h"

#define PRIVATE_EVENTS (EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE)

int epoll_next_line(const char **at, struct epoll_line *out, struct err *err)
{
	const char *line = strstr(*at, "tfd:");
	unsigned long long data, ino;

	if (!line)
		return 0;
	if (sscanf(line, "tfd: %d events: %x data: %llx pos:%*d ino:%llx", &out->fd, &out->events, &data,
		   &ino) != 4)
		return err_set(err, -EPROTO, "an epoll instance whose fdinfo is not understood");
	out->data = data;
	out->ino = ino;
	*at = line + 1;
	return 1;
}

static bool epoll_match(struct object_dump *dump, const struct object_source *source)
{
	return strcmp(source->link, "anon_inode:[eventpoll]") == 0;
}

/* The lines of an interest list, and what each of them probably watches: what the holder has there now. */
struct interest {
	struct epoll_line *lines;
	struct epoll_guess *guesses;
	const struct object_source **guessed; /* of lines[i], or NULL */
	size_t n;
};

static int list_interest(struct object_dump *dump, const struct object_source *source, struct interest *out,
			 struct err *err)
{
	size_t room = 0;

	for (const char *at = source->fdinfo;;) {
		struct epoll_line line;
		int r = epoll_next_line(&at, &line, err);

		if (r < 0)
			return r;
		if (r == 0)
			break;
		if (out->n == room) {
			struct epoll_line *more = reallocarray(out->lines, 2 * room + 16, sizeof(*more));

			if (!more)
				return object_no_memory(err);
			room = 2 * room + 16;
			out->lines = more;
		}
		out->lines[out->n++] = line;
	}
	return 0;
}

/* A number that has several lines is not guessed: at most one of them can be what is there now. */
static int guess_interest(struct object_dump *dump, const struct object_source *source, struct interest *out,
			  struct err *err)
{
	struct u64_map numbers = {0}; /* number -> 0, or 1 if it has several lines */
	size_t nguesses = 0;
	int r = 0;

	out->guesses = calloc(out->n + 1, sizeof(*out->guesses));
	out->guessed = calloc(out->n + 1, sizeof(struct object_source *));
	if (!out->guesses || !out->guessed)
		return object_no_memory(err);
	for (size_t i = 0; i < out->n && r == 0; i++) {
		const uint64_t number = (uint64_t)out->lines[i].fd;

		r = u64_map_set(&numbers, number, u64_map_find(&numbers, number) != U64_MAP_NONE);
	}
	for (size_t i = 0; i < out->n && r == 0; i++) {
		const struct object_source *there = object_dump_neighbour(dump, source, out->lines[i].fd);

		if (!there || there->st.st_ino != out->lines[i].ino ||
		    u64_map_find(&numbers, (uint64_t)out->lines[i].fd) == 1)
			continue;
		out->guessed[i] = there;
		out->guesses[nguesses++] =
			(struct epoll_guess){.target = there->local, .number = out->lines[i].fd};
	}
	u64_map_free(&numbers);
	if (r < 0)
		return object_no_memory(err);
	epoll_place_check(source->local, out->guesses, nguesses);
	for (size_t i = 0, guess = 0; i < out->n; i++)
		if (out->guessed[i] && !out->guesses[guess++].right)
			out->guessed[i] = NULL;
	return 0;
}

/* How many of the lines before this one have its number: the kernel lists, and kcmp counts, entries of one
 * number in the same order. It sorts them by the description's address (ep_cmp_ffd(), fs/eventpoll.c), so
 * that those of one number are anywhere in the list. */
static unsigned count_before(const struct interest *interest, size_t index)
{
	unsigned n = 0;

	for (size_t i = 0; i < index; i++)
		n += interest->lines[i].fd == interest->lines[index].fd;
	return n;
}

static int epoll_add_entry(struct object_dump *dump, const struct object_source *source, Pbeam__Epoll *out,
			   const struct interest *interest, size_t index, struct err *err)
{
	const struct epoll_line *line = &interest->lines[index];
	const struct object_source *target = interest->guessed[index];
	Pbeam__EpollEntry *entry;

	if (!target)
		target = object_dump_find_epoll(dump, source->local, line->fd, count_before(interest, index),
						line->ino);
	if (!target)
		return err_set(err, -ENOTSUP,
			       "an epoll instance that watches something (registered as fd %d) which only a "
			       "process outside the tree holds; remove it from the set (EPOLL_CTL_DEL) first",
			       line->fd);
	entry = object_message(Pbeam__EpollEntry, pbeam__epoll_entry__init);
	if (!entry || object_append(out->entries, out->n_entries, entry) < 0) {
		free(entry);
		return object_no_memory(err);
	}
	entry->fd = line->fd;
	entry->events = line->events;
	entry->data = line->data;
	entry->object = target->id;
	return 0;
}

static int epoll_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		      struct err *err)
{
	struct interest interest = {0};
	int r;

	out->epoll = object_message(Pbeam__Epoll, pbeam__epoll__init);
	if (!out->epoll)
		return object_no_memory(err);
	r = list_interest(dump, source, &interest, err);
	if (r == 0)
		r = guess_interest(dump, source, &interest, err);
	for (size_t i = 0; i < interest.n && r == 0; i++)
		r = epoll_add_entry(dump, source, out->epoll, &interest, i, err);
	free(interest.lines);
	free(interest.guesses);
	free(interest.guessed);
	return r;
}

static bool process_has_descriptor(const Pbeam__Process *process, uint32_t object, int fd)
{
	for (size_t i = 0; i < process->n_descriptors; i++)
		if (process->descriptors[i]->object == object &&
		    (fd < 0 || process->descriptors[i]->fd == fd))
			return true;
	return false;
}

static bool object_is_signalfd(const struct object_restore *restore, uint32_t id)
{
	const Pbeam__Object *object = object_restore_object(restore, id);

	return object && object->kind_case == PBEAM__OBJECT__KIND_SIGNALFD;
}

static int32_t owner_of(const Pbeam__Manifest *manifest, uint32_t epoll, const Pbeam__EpollEntry *entry)
{
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (process_has_descriptor(manifest->processes[i], epoll, -1) &&
		    process_has_descriptor(manifest->processes[i], entry->object, entry->fd))
			return manifest->processes[i]->vpid;
	return 0;
}

static int epoll_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	for (size_t i = 0; i < object->epoll->n_entries; i++) {
		/* the coordinator's own copy: passes the result to finish and install
		 */
		Pbeam__EpollEntry *entry = object->epoll->entries[i];

		if (entry->fd < 0 || entry->object == object->id)
			return err_set(err, -EBADMSG, "the image's epoll entry %zu is malformed", i);
		entry->owner_vpid = object_is_signalfd(restore, entry->object)
					    ? owner_of(manifest, object->id, entry)
					    : 0;
	}
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

/* Adds the fired one-shot entry with the events that it is ready for, and lets it fire. */
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

static int add_in_child(int epoll, int number, void *arg)
{
	const Pbeam__EpollEntry *entry = arg;
	struct epoll_event event = {.events = entry->events, .data.u64 = entry->data};

	if (is_fired(entry))
		return add_fired(epoll, number, &event);
	return epoll_ctl(epoll, EPOLL_CTL_ADD, number, &event) < 0 ? -errno : 0;
}

/* Removes what was watched under the entry's number. */
static int remove_in_child(int epoll, int number, void *arg)
{
	return epoll_ctl(epoll, EPOLL_CTL_DEL, number, arg) < 0 && errno != ENOENT ? -errno : 0;
}

static _Noreturn void child_main(const Pbeam__Epoll *saved, const int *targets, const int *olds, int epoll,
				 int report)
{
	const struct epoll_place place = {epoll, fcntl(epoll, F_DUPFD, 0)};
	struct {
		int index, code;
	} failed = {-1, place.spare < 0 ? -errno : 0};

	for (size_t i = 0; olds && i < saved->n_entries && failed.code == 0; i++) {
		failed.code = epoll_place_run(&place, olds[i], saved->entries[i]->fd, remove_in_child, NULL);
		failed.index = (int)i;
	}
	for (int pass = 0; pass < 2 && failed.code == 0; pass++)
		for (size_t i = 0; i < saved->n_entries && failed.code == 0; i++) {
			if (is_fired(saved->entries[i]) != (pass == 0) || saved->entries[i]->owner_vpid)
				continue;
			failed.code = epoll_place_run(&place, targets[i], saved->entries[i]->fd, add_in_child,
						      saved->entries[i]);
			failed.index = (int)i;
		}
	_exit(io_write_full(report, &failed, sizeof(failed)) == 0 ? 0 : 1);
}

static int run_child(const Pbeam__Epoll *saved, const int *targets, const int *olds, int epoll,
		     struct err *err)
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
		child_main(saved, targets, olds, epoll, report_write);
	close(steal_fd(&report_write));
	if (io_read_full(report_read, &failed, sizeof(failed)) != sizeof(failed))
		failed.code = -EIO;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return failed.code < 0 ? err_code(err, failed.code, "add entry %d of an epoll instance", failed.index)
			       : 0;
}

int epoll_replace(int epoll, const Pbeam__Epoll *entries, const int *olds, const int *targets,
		  struct err *err)
{
	return entries->n_entries ? run_child(entries, targets, olds, epoll, err) : 0;
}

static int epoll_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	const Pbeam__Epoll *saved = object->epoll;
	auto_free int *targets = calloc(saved->n_entries + 1, sizeof(*targets));

	if (!targets)
		return object_no_memory(err);
	for (size_t i = 0; i < saved->n_entries; i++) {
		targets[i] = object_restore_get(restore, saved->entries[i]->object, err);
		if (targets[i] < 0)
			return targets[i];
	}
	return epoll_replace(fd, saved, NULL, targets, err);
}

size_t epoll_own_entries(const Pbeam__Object *object, int32_t vpid)
{
	size_t n = 0;

	if (object->kind_case != PBEAM__OBJECT__KIND_EPOLL)
		return 0;
	for (size_t i = 0; i < object->epoll->n_entries; i++)
		n += object->epoll->entries[i]->owner_vpid == vpid;
	return n;
}

/* The first number that a process has for it adds the entries, the others are the same instance. */
static int epoll_install(struct names *names, const Pbeam__Object *object, const Pbeam__Process *process,
			 int fd, struct batch *batch, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < process->n_descriptors; i++)
		if (process->descriptors[i]->object == object->id && process->descriptors[i]->fd < fd)
			return 0;
	for (size_t i = 0; i < object->epoll->n_entries && r >= 0; i++) {
		const Pbeam__EpollEntry *entry = object->epoll->entries[i];
		struct epoll_event event = {.events = entry->events, .data.u64 = entry->data};
		struct taddr where;

		if (entry->owner_vpid != process->vpid)
			continue;
		r = batch_data(batch, &event, sizeof(event), &where);
		if (r == 0)
			r = batch_add(batch, 0, SYS_epoll_ctl,
				      remote_args((uint64_t)fd, EPOLL_CTL_ADD, (uint64_t)entry->fd, where.a));
	}
	return r < 0 ? r : 0;
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
	.install = epoll_install,
	.shift = object_shift_none,
};
