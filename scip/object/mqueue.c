/*
 * POSIX message queues. Messages cannot be peeked at. All are received, in the order of their priorities, and
 * sent again in the same order, which gives the same queue; the group is frozen meanwhile. A queue outlives
 * its processes: on restore it is emptied and filled with what it held, in a rollback after the commit, since
 * the processes that are replaced have the same queue. A pending mq_notify() cannot be read back and is
 * refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"

#define MQUEUE_MAGIC 0x19800202

static bool mqueue_match(struct object_dump *dump, const struct object_source *source)
{
	struct statfs fs;

	return S_ISREG(source->st.st_mode) && fstatfs(source->local, &fs) == 0 && fs.f_type == MQUEUE_MAGIC;
}

/* Another description of the queue, for both directions; -errno. */
static int open_both(const struct object_source *source)
{
	int fd = mq_open(source->link, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == source->st.st_ino)
		return fd;
	if (fd >= 0)
		close(fd);
	return object_reopen(source->local, O_RDWR | O_NONBLOCK);
}

static int take_message(struct object_dump *dump, int fd, char *buf, size_t size, Pbeam__MessageQueue *out,
			struct err *err)
{
	Pbeam__Datagram *message;
	unsigned priority;
	ssize_t n = mq_receive(fd, buf, size, &priority);
	int r;

	if (n < 0)
		return errno == EAGAIN ? 0 : err_sys(err, "a message queue that cannot be read");
	message = object_message(Pbeam__Datagram, pbeam__datagram__init);
	if (!message || object_append(out->queue, out->n_queue, message) < 0) {
		free(message);
		(void)!mq_send(fd, buf, (size_t)n, priority);
		return object_no_memory(err);
	}
	message->priority = priority;
	r = object_put_extent(dump, buf, (size_t)n, &message->data, err);
	if (r < 0)
		(void)!mq_send(fd, buf, (size_t)n, priority);
	return r < 0 ? r : 1;
}

/* Receives all messages, then sends all again from memory, also after an error. */
static int dump_messages(struct object_dump *dump, int fd, Pbeam__MessageQueue *out, struct err *err)
{
	size_t size = out->message_size, room = out->max_messages;
	auto_free char *all = calloc(room + 1, size);
	auto_free size_t *lens = calloc(room + 1, sizeof(*lens));
	auto_free unsigned *priorities = calloc(room + 1, sizeof(*priorities));
	size_t n = 0;
	int r = 1;

	if (!all || !lens || !priorities)
		return object_no_memory(err);
	while (n < room && r == 1) {
		r = take_message(dump, fd, all + n * size, size, out, err);
		if (r != 1)
			break;
		lens[n] = out->queue[n]->data ? out->queue[n]->data->length : 0;
		priorities[n] = out->queue[n]->priority;
		n++;
	}
	for (size_t i = 0; i < n; i++)
		if (mq_send(fd, all + i * size, lens[i], priorities[i]) < 0 && r >= 0)
			r = err_sys(err, "a message queue that could not be refilled");
	return r < 0 ? r : 0;
}

static int mqueue_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
		       struct err *err)
{
	Pbeam__MessageQueue *out = object_message(Pbeam__MessageQueue, pbeam__message_queue__init);
	const Pbeam__Manifest *manifest = object_dump_manifest(dump);
	auto_close int fd = -1;
	struct mq_attr attr;
	char text[256] = "";
	const char *notify;
	int r;

	object->mqueue = out;
	if (!out)
		return object_no_memory(err);
	if (source->st.st_nlink == 0)
		return err_set(err, -ENOTSUP, "the message queue %s, which was unlinked; close it first",
			       source->link);
	if (mq_getattr(source->local, &attr) < 0)
		return err_sys(err, "a message queue that cannot be read");
	out->max_messages = (uint64_t)attr.mq_maxmsg;
	out->message_size = (uint64_t)attr.mq_msgsize;
	out->mode = source->st.st_mode & 07777;
	r = object_set_bytes(&out->name, source->link, strlen(source->link), err);
	if (r < 0)
		return r;
	/* The messages are with the first description. */
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->kind_case == PBEAM__OBJECT__KIND_MQUEUE &&
		    manifest->objects[i]->mqueue != out && manifest->objects[i]->mqueue &&
		    manifest->objects[i]->mqueue->has_queue &&
		    strcmp((const char *)object_dump_source(dump, i)->link, source->link) == 0)
			return 0;
	fd = open_both(source);
	if (fd < 0)
		return err_code(err, fd, "the message queue %s, whose messages cannot be read", source->link);
	if (pread(fd, text, sizeof(text) - 1, 0) > 0) {
		notify = strstr(text, "NOTIFY_PID:");
		if (notify && atoi(notify + 11) != 0)
			return err_set(
				err, -ENOTSUP,
				"the message queue %s, of which a process wants to be notified (mq_notify), "
				"which cannot be saved; cancel that first",
				source->link);
	}
	out->has_queue = true;
	return dump_messages(dump, fd, out, err);
}

static int mqueue_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			  struct err *err)
{
	const Pbeam__MessageQueue *saved = object->mqueue;
	struct mq_attr attr = {.mq_maxmsg = (long)saved->max_messages,
			       .mq_msgsize = (long)saved->message_size};
	auto_free char *name = object_text(&saved->name);

	if (!name)
		return object_no_memory(err);
	*fd = mq_open(name, (int)(object->flags & O_ACCMODE) | O_CREAT | O_NONBLOCK | O_CLOEXEC, saved->mode,
		      &attr);
	return *fd < 0 ? err_sys(err, "open message queue %s", name) : 0;
}

/* Opens the queue to fill it, and checks that the saved messages fit: it may be another one of the name. */
static int open_to_fill(const Pbeam__MessageQueue *saved, struct mq_attr *attr, struct err *err)
{
	auto_free char *name = object_text(&saved->name);
	auto_close int both = name ? mq_open(name, O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;

	if (both < 0 || mq_getattr(both, attr) < 0)
		return err_sys(err, "open message queue %s to fill it", name ? name : "");
	if ((uint64_t)attr->mq_maxmsg < saved->n_queue || (uint64_t)attr->mq_msgsize < saved->message_size)
		return err_set(
			err, -ENOSPC,
			"message queue %s has room for %ld messages of %ld bytes now, and had %lu of %lu; "
			"unlink it, then try again",
			name, attr->mq_maxmsg, attr->mq_msgsize, (unsigned long)saved->max_messages,
			(unsigned long)saved->message_size);
	return steal_fd(&both);
}

static int fill_queue(struct object_restore *restore, const Pbeam__MessageQueue *saved, struct err *err)
{
	struct mq_attr attr;
	auto_close int both = open_to_fill(saved, &attr, err);
	auto_free char *buf = NULL;

	if (both < 0)
		return both;
	buf = malloc((size_t)attr.mq_msgsize + 1);
	if (!buf)
		return object_no_memory(err);
	while (mq_receive(both, buf, (size_t)attr.mq_msgsize, NULL) >= 0)
		;
	for (size_t i = 0; i < saved->n_queue; i++) {
		auto_free char *data = NULL;
		size_t len;
		int r = object_get_extent(restore, saved->queue[i]->data, &data, &len, err);

		if (r < 0)
			return r;
		if (mq_send(both, data, len, saved->queue[i]->priority) < 0)
			return err_sys(err, "refill a message queue");
	}
	return 0;
}

static int mqueue_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	struct mq_attr attr;
	int both;

	if (!object->mqueue->has_queue)
		return 0;
	if (!object_restore_is_beside(restore))
		return fill_queue(restore, object->mqueue, err);
	both = open_to_fill(object->mqueue, &attr, err);
	if (both >= 0)
		close(both);
	return both < 0 ? both : 0;
}

static int mqueue_take_over(struct object_restore *restore, const Pbeam__Object *object, int fd,
			    struct err *err)
{
	return object->mqueue->has_queue ? fill_queue(restore, object->mqueue, err) : 0;
}

const struct object_ops object_mqueue = {
	.name = "message queue",
	.kind = PBEAM__OBJECT__KIND_MQUEUE,
	.phase = 1,
	.match = mqueue_match,
	.dump = mqueue_dump,
	.restore = mqueue_restore,
	.finish = mqueue_finish,
	.take_over = mqueue_take_over,
	.shift = object_shift_none,
};
