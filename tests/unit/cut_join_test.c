/* Joins two parts of a cut: equal numbers of two hosts become different, and the two ends of a bridged
 * stream become one connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "image/store.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/bridge/bridge.h"
#include "scip/object/object.h"
#include "scip/rejoin/cut_join.h"
#include "scip/rejoin/cut_provider.h"
#include "tests/unit/unit.h"

#define NEW(type)		message_new(&pbeam__##type##__descriptor)
#define ADD(owner, field, type) message_add(owner, field, pbeam__##type##__descriptor)

static char state_home[64];

static int setup(void **state)
{
	strcpy(state_home, "/tmp/pbeam-join-XXXXXX");
	assert_non_null(mkdtemp(state_home));
	return setenv("XDG_STATE_HOME", state_home, 1);
}

static int teardown(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", state_home);
	return system(command);
}

/* ---- making parts ---- */

static Pbeam__Process *add_process(Pbeam__Manifest *manifest, int32_t vpid, int32_t parent)
{
	Pbeam__Process *process = ADD(manifest, processes, process);

	process->vpid = vpid;
	process->vppid = parent;
	process->vpgid = process->vsid = 100;
	return process;
}

static void add_descriptor(Pbeam__Process *process, int fd, uint32_t object)
{
	Pbeam__Descriptor *descriptor = ADD(process, descriptors, descriptor);

	descriptor->fd = fd;
	descriptor->object = object;
}

static Pbeam__Object *add_object(Pbeam__Manifest *manifest, Pbeam__Object__KindCase kind)
{
	Pbeam__Object *object = ADD(manifest, objects, object);

	object->id = (uint32_t)manifest->n_objects;
	object->kind_case = kind;
	return object;
}

static Pbeam__Pipe *add_pipe(Pbeam__Manifest *manifest, bool reads)
{
	Pbeam__Object *object = add_object(manifest, PBEAM__OBJECT__KIND_PIPE);

	object->pipe = NEW(pipe);
	object->pipe->ino = 7; /* on either host */
	object->pipe->capacity = 4096;
	object->pipe->read_end = object->pipe->has_contents = reads;
	object->pipe->write_end = !reads;
	return object->pipe;
}

static void add_terminal(Pbeam__Manifest *manifest)
{
	Pbeam__Object *object = add_object(manifest, PBEAM__OBJECT__KIND_TTY);

	object->tty = NEW(tty);
	object->tty->pty = 5;
}

static void add_record(Pbeam__BridgeStream *stream, const char *text)
{
	Pbeam__BridgeRecord record = PBEAM__BRIDGE_RECORD__INIT;
	ProtobufCBinaryData *frame;

	record.data = (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
	stream->unacked = realloc(stream->unacked, (stream->n_unacked + 1) * sizeof(*stream->unacked));
	frame = &stream->unacked[stream->n_unacked++];
	frame->len = FRAME_HEAD + pbeam__bridge_record__get_packed_size(&record);
	frame->data = calloc(1, frame->len);
	pbeam__bridge_record__pack(&record, frame->data + FRAME_HEAD);
	stream->sent++;
}

static Pbeam__BridgeStream *begin_stream(bool anchor, uint64_t id)
{
	Pbeam__BridgeStream *stream = NEW(bridge_stream);

	assert_int_equal(message_bytes(&stream->cookie, "0123456789abcdef", BRIDGE_COOKIE), 0);
	stream->id = id;
	stream->anchor = anchor;
	return stream;
}

static void mark(Pbeam__Object *object, Pbeam__BridgeStream *stream)
{
	Pbeam__BridgeList list = PBEAM__BRIDGE_LIST__INIT;
	struct err err = ERR_INIT;

	list.streams = &stream;
	list.n_streams = 1;
	assert_int_equal(cut_mark_streams(object, &list, &err), 1);
	message_free(stream);
}

static Pbeam__Manifest *begin_part(void)
{
	Pbeam__Manifest *manifest = NEW(manifest);
	struct utsname name;

	uname(&name);
	manifest->format = IMAGE_FORMAT;
	manifest->uid = geteuid();
	manifest->job = NEW(job);
	manifest->host = NEW(host);
	manifest->host->page_size = (uint32_t)sysconf(_SC_PAGESIZE);
	assert_int_equal(message_string(&manifest->host->machine, name.machine), 0);
	return manifest;
}

static struct image_writer *writer;

static void open_part(uint32_t part)
{
	struct err err = ERR_INIT;
	char path[PATH_MAX];

	assert_int_equal(store_image_path("test", 1, part, path, &err), 0);
	assert_int_equal(image_writer_open(&writer, path, 0, &err), 0);
}

static Pbeam__Extent *put(const char *text)
{
	Pbeam__Extent *extent = NEW(extent);
	struct err err = ERR_INIT;

	assert_int_equal(image_writer_put(writer, text, strlen(text), extent, &err), 0);
	return extent;
}

static void close_part(Pbeam__Manifest *manifest)
{
	struct err err = ERR_INIT;
	uint64_t bytes;

	assert_int_equal(image_writer_commit(writer, manifest, false, &bytes, &err), 0);
	image_writer_close(writer);
	message_free(manifest);
}

/* A parent that writes to its child on another host. */
static void make_first(void)
{
	Pbeam__Manifest *manifest = begin_part();
	Pbeam__BridgeStream *stream = begin_stream(true, 1);
	Pbeam__Process *stub;

	open_part(1);
	add_descriptor(add_process(manifest, 100, 1), 4, 1);
	stub = add_process(manifest, 200, 100);
	stub->state = PBEAM__PROCESS__STATE__STUB;
	stub->exit_signal = 17;
	add_pipe(manifest, false);
	add_terminal(manifest);
	add_record(stream, "lost ");
	add_record(stream, "hell");
	add_record(stream, "o wor");
	add_record(stream, "ld");
	mark(manifest->objects[0], stream);
	close_part(manifest);
}

/* The child, with an object of its own. It has the first two records and one byte of the next. */
static Pbeam__Manifest *begin_second(void)
{
	Pbeam__Manifest *manifest = begin_part();
	Pbeam__BridgeStream *stream = begin_stream(false, 1);
	Pbeam__Process *child = add_process(manifest, 200, 100);

	child->remote_parent = true;
	add_descriptor(child, 5, 1);
	add_descriptor(add_process(manifest, 300, 200), 6, 2);
	add_pipe(manifest, true)->contents = put("hello");
	add_terminal(manifest);
	stream->received = 2;
	stream->partial = 1;
	mark(manifest->objects[0], stream);
	return manifest;
}

static int join(struct image_reader **out, struct err *err)
{
	Pbeam__CutImageName cut = PBEAM__CUT_IMAGE_NAME__INIT;
	uint32_t with[1] = {2};

	cut.name = (char *)(uintptr_t) "test";
	cut.number = cut.part = 1;
	cut.with = with;
	cut.n_with = 1;
	return cut_join(&cut, out, err);
}

/* Joins both unchanged. */
static struct image_reader *join_both(void)
{
	struct err err = ERR_INIT;
	struct image_reader *image;

	make_first();
	open_part(2);
	close_part(begin_second());
	assert_int_equal(join(&image, &err), 0);
	return image;
}

/* ---- the joined parts ---- */

static void test_one_tree(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *image = join_both();
	const Pbeam__Manifest *all;

	assert_int_equal(image_reader_verify(image, &err), 0);
	all = image_reader_manifest(image);
	assert_int_equal(all->n_processes, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(all->processes[i]->vpid, 100 * (i + 1));
	assert_int_equal(all->processes[1]->state, PBEAM__PROCESS__STATE__RUNNING);
	assert_int_equal(all->processes[1]->exit_signal, 17);
	assert_false(all->processes[1]->remote_parent);
	image_reader_close(image);
}

static void test_one_pipe(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *image = join_both();
	const Pbeam__Manifest *all;
	const Pbeam__Object *reader;
	char text[16] = "";

	all = image_reader_manifest(image);
	assert_int_equal(all->n_objects, 4);
	for (size_t i = 0; i < 4; i++)
		for (size_t k = 0; k < i; k++)
			assert_int_not_equal(all->objects[i]->id, all->objects[k]->id);
	reader = all->objects[2];
	assert_int_equal(all->processes[1]->descriptors[0]->object, reader->id);
	assert_int_equal(reader->pipe->ino, all->objects[0]->pipe->ino);
	assert_null(reader->external);
	assert_null(all->objects[0]->external);
	assert_int_equal(reader->pipe->contents->length, strlen("hello world"));
	assert_int_equal(image_reader_get(image, reader->pipe->contents, text, &err), 0);
	assert_string_equal(text, "hello world");
	/* The buffer has the writer's size. */
	assert_true(reader->pipe->capacity >= 4096 + strlen(text));
	assert_int_equal(all->objects[0]->pipe->capacity, reader->pipe->capacity);
	image_reader_close(image);
}

static void test_two_terminals(void **state)
{
	struct image_reader *image = join_both();
	const Pbeam__Manifest *all;

	all = image_reader_manifest(image);
	assert_int_equal(all->objects[1]->tty->pty, 5);
	assert_int_not_equal(all->objects[3]->tty->pty, 5);
	assert_int_equal(all->processes[2]->descriptors[0]->object, all->objects[3]->id);
	image_reader_close(image);
}

/* A stream to a third part remains a stream. */
static void test_other_stream(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *image;
	Pbeam__Manifest *second;
	const Pbeam__Manifest *all;

	make_first();
	open_part(2);
	second = begin_second();
	add_pipe(second, true)->ino = 8;
	mark(second->objects[2], begin_stream(false, 2));
	close_part(second);
	assert_int_equal(join(&image, &err), 0);
	all = image_reader_manifest(image);
	assert_int_equal(all->n_objects, 5);
	assert_non_null(all->objects[4]->external);
	assert_int_not_equal(all->objects[4]->pipe->ino, all->objects[0]->pipe->ino);
	image_reader_close(image);
}

static void refused(int expected, const char *text)
{
	struct err err = ERR_INIT;
	struct image_reader *image = NULL;

	assert_int_equal(join(&image, &err), expected);
	assert_non_null(strstr(err.text, text));
	assert_null(image);
}

static void test_refused(void **state)
{
	Pbeam__Manifest *part = begin_part();
	Pbeam__SysvSet *set;

	open_part(1);
	add_process(part, 100, 1);
	((Pbeam__SysvSet *)ADD(part, sysv_sets, sysv_set))->id = 3;
	close_part(part);
	part = begin_part();
	open_part(2);
	add_process(part, 200, 1);
	set = ADD(part, sysv_sets, sysv_set);
	set->id = 3;
	close_part(part);
	refused(-EEXIST, "System V semaphore set with number 3");
	part = begin_part();
	open_part(2);
	add_process(part, 100, 1);
	close_part(part);
	refused(-EBADMSG, "vpid 100 is in two parts");
	part = begin_part();
	open_part(2);
	add_process(part, 200, 300);
	add_process(part, 300, 200);
	close_part(part);
	refused(-EBADMSG, "descends from itself");
	open_part(2);
	part = begin_second();
	part->objects[0]->external->data.len /= 2;
	close_part(part);
	make_first();
	refused(-EBADMSG, "malformed");
}

/* ---- every kind ---- */

static const struct object_ops *ops_of_kind(unsigned kind)
{
	for (size_t i = 0; object_table[i]; i++)
		if ((unsigned)object_table[i]->kind == kind)
			return object_table[i];
	return NULL;
}

static bool ends_with(const char *text, const char *end)
{
	size_t len = strlen(text), n = strlen(end);

	return len >= n && !strcmp(text + len - n, end);
}

/* The shift of every kind changes each inode and each shared id in the kind's message. */
static void test_every_kind_shifts(void **state)
{
	const struct object_shift shift = {.ino = 1000, .object = 2000, .shared = 3000, .saved = 4000};

	for (unsigned i = 0; i < pbeam__object__descriptor.n_fields; i++) {
		const ProtobufCFieldDescriptor *kind = &pbeam__object__descriptor.fields[i];
		const ProtobufCMessageDescriptor *type = kind->descriptor;
		const struct object_ops *ops;
		Pbeam__Object *object;
		char *message;

		if (!(kind->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
			continue;
		ops = ops_of_kind(kind->id);
		assert_non_null(ops);
		assert_non_null(ops->shift);
		object = NEW(object);
		message = message_new(type);
		object->kind_case = ops->kind;
		*(void **)((char *)object + kind->offset) = message;
		for (unsigned k = 0; k < type->n_fields; k++)
			if (ends_with(type->fields[k].name, "ino"))
				*(uint64_t *)(message + type->fields[k].offset) = 7;
			else if (!strcmp(type->fields[k].name, "shared_id"))
				*(uint32_t *)(message + type->fields[k].offset) = 7;
		ops->shift(object, &shift);
		for (unsigned k = 0; k < type->n_fields; k++)
			if (ends_with(type->fields[k].name, "ino"))
				assert_int_equal(*(uint64_t *)(message + type->fields[k].offset), 1007);
			else if (!strcmp(type->fields[k].name, "shared_id"))
				assert_int_equal(*(uint32_t *)(message + type->fields[k].offset), 3007);
		message_free(object);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_tree),      cmocka_unit_test(test_one_pipe),
		cmocka_unit_test(test_two_terminals), cmocka_unit_test(test_other_stream),
		cmocka_unit_test(test_refused),	      cmocka_unit_test(test_every_kind_shifts),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
