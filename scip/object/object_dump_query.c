/* Queries that a kind makes to the dump that it is part of. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "namespace/record.h"
#include "scip/object/common.h"
#include "scip/object/object_dump.h"

struct image_writer *object_dump_image(struct object_dump *dump)
{
	return dump->writer;
}

struct names *object_dump_names(struct object_dump *dump)
{
	return dump->names;
}

Pbeam__Manifest *object_dump_manifest(struct object_dump *dump)
{
	return dump->manifest;
}

bool object_dump_force(const struct object_dump *dump)
{
	return dump->options->force;
}

struct rpid object_dump_keeper(struct object_dump *dump)
{
	struct name_process process;

	if (dump->manifest->n_processes == 0 ||
	    names_process_get(dump->names, (struct vpid){dump->manifest->processes[0]->vpid}, &process) < 0)
		return (struct rpid){0};
	return process.keeper;
}

int object_dump_pts(struct object_dump *dump, int real)
{
	return record_pts_virtual(dump->names, object_dump_keeper(dump), real);
}

const struct object_source *object_dump_source(struct object_dump *dump, size_t index)
{
	return index < dump->nentries ? &dump->entries[index]->source : NULL;
}

static const struct object_entry *entry_of(const struct object_source *source)
{
	return (const void *)((const char *)source - offsetof(struct object_entry, source));
}

const struct object_source *object_dump_same_inode(struct object_dump *dump, uint64_t ino,
						   const struct object_source *after)
{
	const struct object_entry *entry;
	size_t first;

	if (after) {
		entry = entry_of(after)->next_same;
		return entry ? &entry->source : NULL;
	}
	first = u64_map_find(&dump->inodes, ino);
	return first == U64_MAP_NONE ? NULL : &dump->entries[first]->source;
}

const Pbeam__Object *object_dump_object(const struct object_source *source)
{
	return entry_of(source)->out;
}

void object_dump_pipe_ends(struct object_dump *dump, const struct object_source *of, bool *reads,
			   bool *writes)
{
	const struct object_source *other;

	*reads = *writes = false;
	for (other = object_dump_same_inode(dump, of->st.st_ino, NULL); other;
	     other = object_dump_same_inode(dump, of->st.st_ino, other)) {
		if (other->st.st_dev != of->st.st_dev)
			continue;
		*reads = *reads || (other->flags & O_ACCMODE) != O_WRONLY;
		*writes = *writes || (other->flags & O_ACCMODE) != O_RDONLY;
	}
}

bool object_dump_lose(struct object_dump *dump, const struct object_source *source, const char *peer)
{
	const struct object_external *external = dump->options->external;

	if (dump->options->force)
		return true;
	if (!external || !external->lost)
		return false;
	if (peer)
		external->lost(external->arg, source, peer);
	return true;
}

const struct object_source *object_dump_find_inode(struct object_dump *dump, uint64_t ino,
						   const struct object_source *skip)
{
	for (const struct object_source *source = object_dump_same_inode(dump, ino, NULL); source;
	     source = object_dump_same_inode(dump, ino, source))
		if (source != skip && (S_ISSOCK(source->st.st_mode) || S_ISFIFO(source->st.st_mode)))
			return source;
	return NULL;
}

static const Pbeam__Descriptor *find_held_number(const Pbeam__Process *process, int fd)
{
	size_t low = 0, high = process->n_descriptors; /* sorted by number, see object_scan.c */

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (process->descriptors[middle]->fd < fd)
			low = middle + 1;
		else
			high = middle;
	}
	return low < process->n_descriptors && process->descriptors[low]->fd == fd ? process->descriptors[low]
										   : NULL;
}

const struct object_source *object_dump_neighbour(struct object_dump *dump, const struct object_source *of,
						  int fd)
{
	for (size_t i = 0; i < dump->manifest->n_processes && !of->hidden; i++) {
		const Pbeam__Process *process = dump->manifest->processes[i];
		const Pbeam__Descriptor *found;

		if (process->vpid != of->holder_vpid.n)
			continue;
		found = find_held_number(process, fd);
		return found ? object_dump_source(dump, found->object - 1) : NULL;
	}
	return NULL;
}

const struct object_source *object_dump_find_epoll(struct object_dump *dump, int epoll, int fd, unsigned nth,
						   uint64_t ino)
{
	struct kcmp_epoll_slot slot = {.efd = (uint32_t)epoll, .tfd = (uint32_t)fd, .toff = nth};

	for (size_t i = 0; i < dump->nentries; i++) {
		const struct object_source *source = &dump->entries[i]->source;

		if (source->st.st_ino == ino && syscall(SYS_kcmp, getpid(), getpid(), KCMP_EPOLL_TFD,
							(unsigned long)source->local, &slot) == 0)
			return source;
	}
	return NULL;
}

int object_dump_console_stream(struct object_dump *dump, const struct object_source *source)
{
	for (int i = 0; i < 3; i++)
		if (dump->options->console && dump->options->console[i] >= 0 &&
		    syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, (unsigned long)source->local,
			    (unsigned long)dump->options->console[i]) == 0)
			return i;
	return -1;
}

int object_dump_console_tty(struct object_dump *dump)
{
	for (int i = 0; i < 3; i++)
		if (dump->options->console && dump->options->console[i] >= 0 &&
		    isatty(dump->options->console[i]))
			return dump->options->console[i];
	return -1;
}

int object_dump_add_hidden(struct object_dump *dump, int local, uint32_t *id, struct err *err)
{
	const struct object_source found = {
		.holder = {getpid()}, .holder_fd = local, .local = local, .hidden = true};
	struct object_entry *entry;
	int r = object_scan_add(dump, &found, NULL, &entry, err);

	if (r < 0)
		return r;
	*id = entry->source.id;
	return entry->source.hidden ? object_locks_parse(entry->source.fdinfo, local, &entry->source.st,
							 entry->out, NULL, err)
				    : 0;
}

uint64_t object_file_limit(const struct object_external *external, const struct stat *st, uint64_t max)
{
	return external && external->file_limit ? external->file_limit(external->arg, st, max) : max;
}

int object_dump_save_file(struct object_dump *dump, int local, const struct stat *st, const char *path,
			  bool unlinked, bool always, uint32_t *index, struct err *err)
{
	return object_files_save(
		dump->writer, dump->manifest, local, st, path, unlinked, always,
		object_file_limit(dump->options->external, st, dump->options->save_files_max), index, err);
}

int object_put_extent(struct object_dump *dump, const void *data, size_t len, Pbeam__Extent **out,
		      struct err *err)
{
	*out = NULL;
	if (len == 0)
		return 0;
	*out = object_message(Pbeam__Extent, pbeam__extent__init);
	if (!*out)
		return object_no_memory(err);
	return image_writer_put(object_dump_image(dump), data, len, *out, err);
}
